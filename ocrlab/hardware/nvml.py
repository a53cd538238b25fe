"""The health of the GPUs through NVML, the library below nvidia-smi; only ever called in a child, Python 3.8 or newer.

`gpu_stream` asks it again and again. What nvidia-smi answers stands in for a library that cannot be loaded.

Functions, structures and numbers are those of nvml.h; whatever a card or a driver does not support is left out.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import subprocess
from typing import Any

NAMES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
GRAPHICS, MEMORY_CLOCK = 0, 2  # NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM
UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
MOST = 64  # processes of one card
THROTTLES = {  # nvmlClocksEventReason*; idle, application clocks and sync boost are no complaint
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
HIDDEN = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE: the memory of another container's process


class Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Rates(ctypes.Structure):
    """nvmlUtilization_t, in percent of the last sample period."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def health() -> dict[str, Any]:
    """Return what NVML says of every card, or why it says nothing."""
    library, answer = opened()
    if library is None:
        return answer
    answer = {**answer, "cards": cards(library), "holders": holders()}
    library.nvmlShutdown()
    return answer


def opened() -> tuple[Any, dict[str, Any]]:
    """Return NVML, initialised, with the driver's version; or None with the reason."""
    library, problem = None, ""
    for name in NAMES:
        try:
            library = ctypes.CDLL(name)
            break
        except OSError as error:
            problem = str(error)
    if library is None:
        return None, {"loaded": False, "error": problem}
    code = library.nvmlInit_v2()
    if code:
        return None, {"loaded": True, "code": code, "error": _error(library, code)}
    version = ctypes.create_string_buffer(96)
    library.nvmlSystemGetDriverVersion(version, 96)
    return library, {"loaded": True, "code": 0, "driver": version.value.decode(errors="replace")}


def cards(library: Any) -> list[dict[str, Any]]:
    """Return what NVML says of each card now."""
    return [_card(library, number) for number in range(_number(library, "nvmlDeviceGetCount_v2") or 0)]


def holders(root: str = "/") -> list[dict[str, Any]]:
    """Return the processes that hold a card's device file open, also those that NVML does not list."""
    processes: dict[int, dict[str, Any]] = {}
    for link in glob.iglob(f"{root}proc/[0-9]*/fd/*"):
        try:
            device = re.match(r"/dev/(nvidia\d+|dxg)$", os.readlink(link))
        except OSError:
            continue  # it is closed by now, or of another user
        if device:
            pid = int(link.split("/fd/")[0].rpartition("/")[2])
            processes.setdefault(pid, {"pid": pid, "name": name_of(pid)})
    return sorted(processes.values(), key=lambda process: process["pid"])


def smi(seconds: float) -> dict[str, Any]:
    """Return the first lines of `nvidia-smi -L`, which hangs where the driver does; ended after so many seconds."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        return {"missing": True}
    except subprocess.TimeoutExpired:
        return {"hung": seconds}
    except OSError as error:
        return {"error": str(error)}
    return {"status": done.returncode, "said": (done.stdout + done.stderr)[:1000]}


def _card(library: Any, number: int) -> dict[str, Any]:
    """Return name, memory with its holders, temperature, clocks, throttling and ECC errors of one card."""
    handle = ctypes.c_void_p()
    code = library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
    if code:
        return {"error": _error(library, code)}
    name, memory = ctypes.create_string_buffer(96), Memory()
    library.nvmlDeviceGetName(handle, name, 96)
    card: dict[str, Any] = {"name": name.value.decode(errors="replace"), "processes": _processes(library, handle)}
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
        card.update(total=memory.total, free=memory.free, used=memory.used)
    for key, function, arguments in (
        ("temperature", "nvmlDeviceGetTemperature", (0,)),
        ("slowdown", "nvmlDeviceGetTemperatureThreshold", (1,)),
        ("clock", "nvmlDeviceGetClockInfo", (GRAPHICS,)),
        ("clock_most", "nvmlDeviceGetMaxClockInfo", (GRAPHICS,)),
        ("clock_memory", "nvmlDeviceGetClockInfo", (MEMORY_CLOCK,)),
        ("mode", "nvmlDeviceGetComputeMode", ()),
        ("power", "nvmlDeviceGetPowerUsage", ()),
        ("power_limit", "nvmlDeviceGetEnforcedPowerLimit", ()),
        ("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus", ()),
    ):
        card[key] = _number(library, function, handle, *arguments)
    card["throttled"] = _throttled(library, handle)
    rates, call = Rates(), getattr(library, "nvmlDeviceGetUtilizationRates", None)
    if call is not None and call(handle, ctypes.byref(rates)) == 0:
        card.update(utilisation=rates.gpu, memory_utilisation=rates.memory)
    card["ecc"] = _ecc(library, handle)
    card["remap"] = _remapped(library, handle)
    return {key: value for key, value in card.items() if value is not None}


def _processes(library: Any, handle: ctypes.c_void_p) -> list[dict[str, Any]]:
    """Return the processes with a context on a card; their names only where they are in this container."""
    buffer, count = (Process * MOST)(), ctypes.c_uint(MOST)
    for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        if getattr(library, function, None) is not None:
            break
    else:
        return []
    if getattr(library, function)(handle, ctypes.byref(count), buffer) != 0:
        return []
    return [
        {"pid": process.pid, "bytes": None if process.used == HIDDEN else process.used, "name": name_of(process.pid)}
        for process in buffer[: count.value]
    ]


def name_of(pid: int) -> str | None:
    """Return the name of a process, None where it is gone or in another container."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _throttled(library: Any, handle: ctypes.c_void_p) -> list[str]:
    mask = ctypes.c_ulonglong(0)
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        call = getattr(library, function, None)
        if call is not None and call(handle, ctypes.byref(mask)) == 0:
            return [name for bit, name in THROTTLES.items() if mask.value & bit]
    return []


def _ecc(library: Any, handle: ctypes.c_void_p) -> int | None:
    """Return the uncorrectable memory errors since the driver was loaded; None on cards without ECC."""
    count = ctypes.c_ulonglong(0)
    call = getattr(library, "nvmlDeviceGetTotalEccErrors", None)
    if call is None or call(handle, UNCORRECTED, VOLATILE, ctypes.byref(count)) != 0:
        return None
    return count.value


def _remapped(library: Any, handle: ctypes.c_void_p) -> dict[str, int] | None:
    """Return row remapping of cards from Ampere on: rows that wait for a reset, and whether one failed."""
    call = getattr(library, "nvmlDeviceGetRemappedRows", None)
    numbers = [ctypes.c_uint(0) for _ in range(4)]  # corrected, uncorrected, pending, failed
    if call is None or call(handle, *(ctypes.byref(number) for number in numbers)) != 0:
        return None
    return {"pending": numbers[2].value, "failed": numbers[3].value}


def _number(library: Any, function: str, *arguments: Any) -> int | None:
    """Return the unsigned number that an NVML function writes to its last argument, or None where it refuses."""
    call, value = getattr(library, function, None), ctypes.c_uint(0)
    if call is None or call(*arguments, ctypes.byref(value)) != 0:
        return None
    return value.value


def _error(library: Any, code: int) -> str:
    library.nvmlErrorString.restype = ctypes.c_char_p
    try:
        return f"NVML {code}: {library.nvmlErrorString(code).decode(errors='replace')}"
    except AttributeError:
        return f"NVML {code}"
