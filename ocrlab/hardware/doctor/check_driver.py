"""Step 4, first half: is there a GPU, does its driver start, and is it new enough for this torch?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_spec import (
    PROBES,
    Answers,
    Facts,
    Options,
    Probe,
    fail,
    ok,
    size,
    skip,
    version,
    warn,
)
from ocrlab.hardware.doctor.cuinit_errors import OLDEST, WHEELS, cuda, state
from ocrlab.records import Check

NODE = re.compile(r"nvidia(\d+|ctl|-uvm)$")  # the others are for displays and tools
EXCLUSIVE = {1: "exclusive (thread)", 2: "prohibited", 3: "exclusive process"}  # CUcomputemode
NO_TOOLKIT = "torch brings its own CUDA: a driver is needed, a CUDA toolkit (nvcc) is not"


def asks(options: Options) -> list[Probe]:
    """Return the ask of the driver.

    `cuInit` takes 0.1 s for one GPU and up to 10 s for eight without persistence, and works all the while: ten seconds
    without work are a driver that will not answer.
    """
    probe, after = PROBES / "nvidia_driver.py", ("packages",)
    return [Probe(4, "driver", probe, "driver", judge, 30, {}, 10, own=True, after=after, hang="hang.cuda_init")]


def merged(answers: Answers) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the kernel and what libcuda told."""
    kernel: dict[str, Any] = {}
    library: dict[str, Any] = {}
    for answer in answers:
        kernel |= answer.get("kernel", {})
        library |= answer.get("cuda", {})
    return kernel, library


def no_gpu(facts: Facts) -> str | None:
    """Return why nothing that needs an NVIDIA GPU can be asked, or None where a driver started."""
    kernel, library = merged(facts.get("driver", []))
    if "driver" not in facts:
        return "the driver did not answer, see step 4"
    if library.get("init") == 0 and library.get("devices"):
        return None
    if not (kernel["cards"] or kernel["nodes"] or kernel["dxg"] or library["loaded"]):
        return "no NVIDIA GPU on this machine"
    return "the driver does not start, see step 4"


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on cards, nodes, `cuInit` and versions."""
    kernel, library = merged(answers)
    build = facts["packages"][0]["torch"] if "packages" in facts else {}
    if not (kernel["cards"] or kernel["nodes"] or kernel["dxg"] or library["loaded"]):
        wheel = f"; torch is built for CUDA {build['cuda']} and will use the processor" if build.get("cuda") else ""
        yield skip("NVIDIA GPU", f"no NVIDIA GPU on this machine{wheel}")
        return
    if not library["loaded"]:
        yield unloaded(kernel, library)
        return
    yield from nodes(kernel, library)
    yield started(kernel, library)
    yield from agrees(kernel, library)
    if library.get("version"):
        yield new_enough(library["version"], build, kernel)
    yield from gpus(library, build)


def unloaded(kernel: dict[str, Any], library: dict[str, Any]) -> Check:
    """Return the finding on a machine with a GPU whose libcuda cannot be loaded."""
    observed = f"there is a GPU, but {library['error']}"
    do = "install the driver of the distribution (ubuntu-drivers install); in a container: docker run --gpus all"
    if kernel["dxg"]:
        do = "export LD_LIBRARY_PATH=/usr/lib/wsl/lib; update the Windows driver; install no Linux driver in WSL2"
    elif "nouveau" in kernel["modules"]:
        observed += "; the module nouveau is loaded instead of nvidia"
    return fail("driver", observed, NO_TOOLKIT, do, "driver.none")


def nodes(kernel: dict[str, Any], library: dict[str, Any]) -> Iterator[Check]:
    """Yield the finding on the device nodes; WSL2 has /dev/dxg instead of them."""
    if kernel["dxg"]:
        return
    closed = {name: why for name, why in kernel["nodes"].items() if why != "ok" and NODE.match(name)}
    label = "device nodes"
    if closed:
        observed = ", ".join(f"/dev/{name}: {why}" for name, why in closed.items())
        need, do = "they can be opened", "sudo usermod -aG video,render $USER, and log in again"
        yield fail(label, observed, need, do, "driver.no_visible_device")
    elif "nvidia-uvm" not in kernel["nodes"] and library.get("init") != 0:
        observed = f"no /dev/nvidia-uvm; there is: {', '.join(kernel['nodes']) or 'no /dev/nvidia*'}"
        yield warn(label, observed, "/dev/nvidia-uvm", "sudo nvidia-modprobe -u -c=0", "driver.state")
    elif kernel["nodes"]:
        yield ok(label, f"{len(kernel['nodes'])} of /dev/nvidia* can be opened")


def started(kernel: dict[str, Any], library: dict[str, Any]) -> Check:
    """Return the finding on what `cuInit` returned."""
    code, path = library.get("init"), library.get("real") or library.get("path")
    if code is None:
        observed = f"{path} has no cuInit: {library.get('error')}"
        return fail("driver", observed, "NVIDIA's libcuda", "unset LD_LIBRARY_PATH", "driver.state")
    if code == 0:
        return ok("driver", f"cuInit works; libcuda is {path}")
    error = state(code)
    observed = f"cuInit returned {code}, {error.name}: {error.means}; libcuda is {path}"
    variables = kernel["variables"]
    if code in (100, 101) and "CUDA_VISIBLE_DEVICES" in variables:
        observed += f"; CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']!r}"
    return fail("driver", observed, f"cuInit returns 0. {NO_TOOLKIT}", error.do, error.cause)


def agrees(kernel: dict[str, Any], library: dict[str, Any]) -> Iterator[Check]:
    """Yield the finding where the library's file name says another version than the kernel's module."""
    file = str(library.get("real") or "").rpartition("libcuda.so.")[2]
    if kernel["module"] and len(version(file)) > 1:
        observed = f"kernel module {kernel['module']}, libcuda {file}"
        if version(file) != version(kernel["module"]):
            do = "sudo reboot; with a compat/ or stubs/ folder in LD_LIBRARY_PATH: unset LD_LIBRARY_PATH"
            yield warn("driver versions", observed, "the same version", do, "driver.state")
        else:
            yield ok("driver versions", observed)


def new_enough(number: int, build: dict[str, Any], kernel: dict[str, Any]) -> Check:
    """Judge the driver against the CUDA that torch was built for: within one major version any driver will do."""
    label, wheel = "driver for this torch", version(build.get("cuda", ""))
    driver = f"the driver {kernel['module']}" if kernel["module"] else "the driver"
    if not wheel:
        if build and not build.get("hip"):
            do = f"uv pip install --reinstall --torch-backend={backend(number)} torch torchvision"
            return fail(label, "torch is built for the processor only", "a CUDA build", do, "build.cpu_only")
        return skip(label, f"{driver} supports CUDA {cuda(number)}; no CUDA build of torch to compare it with")
    observed = f"{driver} supports CUDA {cuda(number)}, torch is built for {build['cuda']}"
    if number // 1000 >= wheel[0]:
        if version(cuda(number)) < wheel[:2]:
            observed += "; works by minor-version compatibility, except for PTX that must be compiled for this GPU"
        return ok(label, observed)
    oldest = OLDEST.get(wheel[0], "the newest")
    do = f"update the driver to {oldest} or newer, or take the build for this driver: "
    do += f"uv pip install --reinstall --torch-backend={backend(number)} torch torchvision"
    return fail(label, f"{observed}: too old", f"driver {oldest} or newer for CUDA {wheel[0]}", do, "driver.too_old")


def backend(number: int) -> str:
    """Return the build of torch that runs on a driver: the oldest still made for its major version."""
    return WHEELS.get(min(number // 1000, max(WHEELS)), "cpu")


def gpus(library: dict[str, Any], build: dict[str, Any]) -> Iterator[Check]:
    """Yield the finding on the devices that libcuda shows."""
    if library.get("init") != 0:
        return
    devices = library.get("devices") or []
    if not devices:
        do = "unset CUDA_VISIBLE_DEVICES; nvidia-smi -L"
        yield fail("NVIDIA GPU", "the driver shows no device", "one", do, "driver.no_visible_device")
    for number, device in enumerate(devices):
        major, minor = device["capability"]
        observed = f"{device['name']}, compute capability {major}.{minor}, {size(device['bytes'])}"
        if device["mode"] in EXCLUSIVE:
            need, do = "compute mode default", f"sudo nvidia-smi -i {number} -c 0"
            yield warn(f"GPU {number}", f"{observed}, {EXCLUSIVE[device['mode']]}", need, do, "driver.device_busy")
        else:
            yield ok(f"GPU {number}", observed)
