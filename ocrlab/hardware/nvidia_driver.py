"""The NVIDIA driver asked directly, without torch; what loads libcuda is only ever called in a child.

Names and numbers are of cuda.h; the kernel side speaks through /proc/driver/nvidia, /dev and /sys.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocrlab.hardware.system_files import read_text

NVIDIA = "0x10de"  # vendor number on the PCI bus
MAJOR, MINOR, COMPUTE_MODE = 75, 76, 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR, _COMPUTE_MODE
LIMITS = {  # CUdevice_attribute
    "threads_per_block": 1, "block_x": 2, "block_y": 3, "block_z": 4, "grid_x": 5, "grid_y": 6, "grid_z": 7,
    "shared_default": 8, "registers_per_block": 12, "sm_count": 16, "threads_per_sm": 39, "shared_per_sm": 81,
    "registers_per_sm": 82, "shared_per_block": 97, "blocks_per_sm": 106, "shared_reserved": 111,
}  # fmt: skip


def driver(root: str = "/") -> Iterator[dict[str, Any]]:
    """Yield what the kernel knows of NVIDIA, then load libcuda, initialise it and ask for its devices."""
    yield {"kernel": kernel(Path(root))}
    yield {"at": "loading libcuda.so.1"}
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        yield {"cuda": {"loaded": False, "error": str(error)}}
        return
    path = mapped("libcuda.so")
    cuda: dict[str, Any] = {"loaded": True, "path": path, "real": os.path.realpath(path) if path else None}
    cuda |= {"version": _number(library, "cuDriverGetVersion"), "init": None, "devices": []}
    yield {"cuda": cuda, "at": "cuInit"}
    try:
        cuda["init"] = int(library.cuInit(0))
        if cuda["init"] == 0:
            cuda["version"] = _number(library, "cuDriverGetVersion")
            yield {"at": "asking libcuda for its devices"}
            cuda["devices"] = devices(library)
    except AttributeError as error:  # a function that this libcuda has not
        cuda["error"] = str(error)
    yield {"cuda": cuda}


def kernel(root: Path) -> dict[str, Any]:
    """Return the cards on the PCI bus, the kernel module's version and the device nodes with what we may do to them."""
    text = read_text(root / "proc/driver/nvidia/version")
    module = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    modules = {line.split()[0] for line in read_text(root / "proc/modules").splitlines() if line.strip()}
    return {
        "cards": cards(root),
        "module": module[1] if module else None,
        "modules": sorted(modules & {"nvidia", "nvidia_uvm", "nvidia_drm", "nouveau", "amdgpu"}),
        "nodes": nodes(root),
        "dxg": (root / "dev/dxg").exists(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def cards(root: Path) -> list[str]:
    """Return the PCI addresses of NVIDIA's display and compute cards (class 0x03)."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    nvidia = [device for device in devices if read_text(device / "vendor") == NVIDIA]
    return [device.name for device in nvidia if read_text(device / "class").startswith("0x03")]


def present(root: Path) -> bool:
    """Return whether this machine shows a GPU of any maker: a PCI card of NVIDIA, or a device node that drives one."""
    named = ("nvidia[0-9]*", "dxg", "kfd", "dri/renderD*")
    return bool(cards(root)) or any(next((root / "dev").glob(name), None) is not None for name in named)


def nodes(root: Path) -> dict[str, str]:
    """Return each /dev/nvidia* with ok, or why it cannot be opened."""
    states = {}
    for node in sorted((root / "dev").glob("nvidia*")):
        try:
            if not stat.S_ISCHR(node.stat().st_mode):
                continue
            os.close(os.open(node, os.O_RDWR | os.O_NONBLOCK))
        except OSError as error:
            states[node.name] = f"{error.strerror} ({error.errno})"
        else:
            states[node.name] = "ok"
    return states


def devices(library: Any) -> list[dict[str, Any]]:
    """Return name, capability, bytes and compute mode of every device of an initialised driver."""
    count, records = ctypes.c_int(0), []
    if library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    for number in range(count.value):
        device, name, total = ctypes.c_int(0), ctypes.create_string_buffer(256), ctypes.c_size_t(0)
        if library.cuDeviceGet(ctypes.byref(device), number) != 0:
            continue
        library.cuDeviceGetName(name, 256, device)
        library.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        major, minor, mode = (_attribute(library, which, device) for which in (MAJOR, MINOR, COMPUTE_MODE))
        text = name.value.decode(errors="replace")
        records.append({"name": text, "bytes": total.value, "capability": [major, minor], "mode": mode})
    return records


def limits(device: int) -> dict[str, Any]:
    """Return the limits of a device on a kernel by the names of `launch_limits.Limits`; raises OSError."""
    library, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    for name, arguments in (("cuInit", (0,)), ("cuDeviceGet", (ctypes.byref(handle), device))):
        code = getattr(library, name)(*arguments)
        if code:
            raise OSError(f"{name} failed with CUresult {code}")
    values = {name: _attribute(library, which, handle) for name, which in LIMITS.items()}
    for name in ("block", "grid"):
        values[name] = [values.pop(f"{name}_{axis}") for axis in "xyz"]
    values["capability"] = f"{_attribute(library, MAJOR, handle)}.{_attribute(library, MINOR, handle)}"
    return {name: value for name, value in values.items() if value is not None}


def _attribute(library: Any, which: int, device: ctypes.c_int) -> Any:
    value = ctypes.c_int(-1)
    return value.value if library.cuDeviceGetAttribute(ctypes.byref(value), which, device) == 0 else None


def mapped(name: str) -> str | None:
    """Return the path of the mapped library whose file name begins so."""
    for line in read_text(Path("/proc/self/maps")).splitlines():
        path = line.split(None, 5)[5:]
        if path and os.path.basename(path[0]).startswith(name):
            return path[0].strip()
    return None


def _number(library: Any, function: str) -> int | None:
    value = ctypes.c_int(0)
    try:
        return value.value if getattr(library, function)(ctypes.byref(value)) == 0 else None
    except AttributeError:
        return None
