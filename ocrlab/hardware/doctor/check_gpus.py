"""Steps 4 and 7: the NVIDIA driver, the GPUs that torch sees, and their health."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ocrlab.hardware.doctor.check_packages import torch_facts, torchless
from ocrlab.hardware.doctor.check_spec import (
    PROBES,
    Answer,
    Facts,
    Options,
    Probe,
    fail,
    judge,
    ok,
    size,
    skip,
    version,
    warn,
)
from ocrlab.hardware.processes import kernel_log
from ocrlab.records import Check


class CuinitError(NamedTuple):
    """One error of `cuInit`: its name, what it means, the command that fixes it, and the cause of the catalogue."""

    name: str
    means: str
    do: str
    cause: str = "driver.state"


RELOAD = "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm (no process may use the GPU); else reboot"
CUINIT_ERRORS = {
    2: CuinitError("CUDA_ERROR_OUT_OF_MEMORY",
        "the driver has no memory for itself: the GPU's or the host's is all in use, or WSL2's driver is confused",
        "nvidia-smi names who holds the memory: end it. On WSL2: wsl --shutdown, then update the Windows driver"),
    3: CuinitError("CUDA_ERROR_NOT_INITIALIZED",
        "the driver could not initialise, mostly after suspend or without /dev/nvidia-uvm", RELOAD),
    34: CuinitError("CUDA_ERROR_STUB_LIBRARY",
        "this libcuda.so.1 is the stub for linking, no driver",
        "take the folder with stubs/ out of LD_LIBRARY_PATH: unset LD_LIBRARY_PATH"),
    36: CuinitError("CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        "a call is not supported by the driver that is installed: libcuda is newer than the kernel module",
        "reboot after the driver update; in a container remove its own libcuda and cuda-compat: unset LD_LIBRARY_PATH"),
    46: CuinitError("CUDA_ERROR_DEVICE_UNAVAILABLE",
        "the GPU is busy: exclusive compute mode with a process on it, or it hangs since a crash",
        "nvidia-smi names the process: end it; sudo nvidia-smi -c 0; with no process there: reboot",
        "driver.device_busy"),
    100: CuinitError("CUDA_ERROR_NO_DEVICE",
        "the driver works, but shows this process no GPU",
        "unset CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all", "driver.no_visible_device"),
    101: CuinitError("CUDA_ERROR_INVALID_DEVICE",
        "a device number that does not exist, or a MIG slice that was not made",
        "unset CUDA_VISIBLE_DEVICES; compare with nvidia-smi -L", "driver.no_visible_device"),
    214: CuinitError("CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU's memory has an error that ECC cannot correct",
        "nvidia-smi -q -d ECC,ROW_REMAPPER; reboot, which retires the page; when it returns the card is faulty",
        "hw.gpu"),
    304: CuinitError("CUDA_ERROR_OPERATING_SYSTEM",
        "a call to the operating system failed: device nodes, permissions, or the module nvidia_uvm",
        "ls -l /dev/nvidia*; sudo modprobe nvidia_uvm; sudo nvidia-modprobe -u -c=0"),
    802: CuinitError("CUDA_ERROR_SYSTEM_NOT_READY",
        "the NVSwitch fabric is not up: its manager does not run, or has another version than the driver",
        "sudo systemctl restart nvidia-fabricmanager; systemctl status nvidia-fabricmanager"),
    803: CuinitError("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kernel module and libcuda are of different versions, mostly after an update without a reboot",
        "sudo reboot; in a container: the host's driver changed, so restart the container"),
    804: CuinitError("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the cuda-compat libcuda was loaded, which only works on data-centre GPUs",
        "take the compat/ folder out of LD_LIBRARY_PATH: unset LD_LIBRARY_PATH; or update the driver"),
    999: CuinitError("CUDA_ERROR_UNKNOWN",
        "the driver does not know what is wrong: after suspend, without /dev/nvidia-uvm, or with a wedged GPU", RELOAD),
}  # fmt: skip

# The oldest Linux driver for each CUDA major version, from the table of minor-version compatibility in NVIDIA's CUDA
# compatibility guide: within a major version every wheel runs on it, whatever its minor version is.
OLDEST_DRIVERS = {10: "440.33", 11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
WHEELS = {11: "cu118", 12: "cu126", 13: "cu130"}  # builds of torch that run on any driver of that major version

NODE = re.compile(r"nvidia(\d+|ctl|-uvm)$")  # the others are for displays and tools
EXCLUSIVE = {1: "exclusive (thread)", 2: "prohibited", 3: "exclusive process"}  # CUcomputemode
NO_TOOLKIT = "torch brings its own CUDA: a driver is needed, a CUDA toolkit (nvcc) is not"
NO_GPU = "no NVIDIA GPU on this machine"
RECENT = 86_400.0  # seconds; an Xid of yesterday still explains the crash of this morning


def gpu_probes(options: Options) -> list[Probe]:
    """Return the probes of steps 4 and 7.

    `cuInit` takes 0.1 s for one GPU and up to 10 s for eight without persistence, and works all the while: ten seconds
    without work are a driver that will not answer. torch's first CUDA call is a probe of its own, apart from the
    import, because that is where a sick driver hangs. NVML answers in milliseconds, or never where the driver is stuck.
    """
    hang = "hang.cuda_init"

    def skip_health(facts: Facts) -> str | None:  # where the driver hangs, NVML may still answer
        driver = facts.get("driver")
        return None if driver is None or has_card(driver["kernel"]) or driver["cuda"].get("devices") else NO_GPU

    return [
        Probe(4, "driver", PROBES / "nvidia_driver.py", "driver", judge_driver, 30, {}, 10, own=True,
            after=("packages",), hang=hang),
        Probe(4, "torch and the GPU", PROBES / "torch_probe.py", "torch_cuda", judge_torch_gpus, 60, {}, 20,
            after=("driver", "import torch"), skip=skip_torch_gpus, hang=hang, crash="driver.state"),
        Probe(7, "GPU health", PROBES / "nvml.py", "health", judge_cards, 15, own=True, after=("driver",),
            skip=skip_health, hang=hang),
        Probe(7, "kernel log", PROBES / "resource_limits.py", "kernel", judge_log, 15, {"seconds": RECENT}, own=True),
    ]  # fmt: skip


def has_card(kernel: dict[str, Any]) -> bool:
    """Return whether the kernel shows a GPU of NVIDIA, or WSL2's stand-in for it."""
    return bool(kernel["cards"] or kernel["nodes"] or kernel["dxg"])


def no_gpu(facts: Facts) -> str | None:
    """Return why nothing that needs an NVIDIA GPU can be asked, or None where a driver started."""
    if "driver" not in facts:
        return "the driver did not answer, see step 4"
    kernel, library = facts["driver"]["kernel"], facts["driver"]["cuda"]
    if library.get("init") == 0 and library.get("devices"):
        return None
    return "the driver does not start, see step 4" if has_card(kernel) or library["loaded"] else NO_GPU


def skip_torch_gpus(facts: Facts) -> str | None:
    """Return why torch need not be asked: it is not there, or there is nothing that it could see."""
    if torch_facts(facts).get("hip"):
        return None  # AMD's cards speak through torch.cuda too
    if "driver" not in facts:
        return "the driver did not answer, see above: torch would not return either"
    kernel, library = facts["driver"]["kernel"], facts["driver"]["cuda"]
    if not library["loaded"]:
        return "no driver that torch could use" if kernel["cards"] or kernel["dxg"] else NO_GPU
    return torchless(facts)


def judge_driver(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on cards, nodes, `cuInit`, versions and devices."""
    kernel, library = answer["kernel"], answer["cuda"]
    build = facts["packages"]["torch"] if "packages" in facts else {}
    if not library["loaded"] and has_card(kernel):
        nouveau = "; the module nouveau is loaded instead of nvidia" if "nouveau" in kernel["modules"] else ""
        yield fail(
            "driver",
            f"there is a GPU, but {library['error']}{nouveau}",
            need=NO_TOOLKIT,
            do="export LD_LIBRARY_PATH=/usr/lib/wsl/lib; update the Windows driver; install no Linux driver in WSL2"
            if kernel["dxg"]
            else "install the driver, as by ubuntu-drivers install; in a container: docker run --gpus all",
            cause="driver.none",
        )
        return
    if not library["loaded"]:
        wheel = f"; torch is built for CUDA {build['cuda']} and will use the processor" if build.get("cuda") else ""
        yield skip("NVIDIA GPU", NO_GPU + wheel)
        return
    if not kernel["dxg"]:  # which WSL2 has instead of device nodes
        yield from judge_nodes(kernel["nodes"], library)
    yield judge_cuinit(kernel, library)
    # The library's file name may name another version than the kernel's module.
    file = str(library.get("real") or "").rpartition("libcuda.so.")[2]
    if kernel["module"] and len(version(file)) > 1:
        yield judge(
            "driver versions",
            f"kernel module {kernel['module']}, libcuda {file}",
            need="the same version",
            do="sudo reboot; with a compat/ or stubs/ folder in LD_LIBRARY_PATH: unset LD_LIBRARY_PATH",
            cause="driver.state",
            warns=version(file) != version(kernel["module"]),
        )
    if library.get("version"):
        yield judge_cuda_version(library["version"], build, kernel)
    devices = library.get("devices") or []
    if library.get("init") == 0 and not devices:
        yield fail(
            "NVIDIA GPU",
            "the driver shows no device",
            need="one",
            do="unset CUDA_VISIBLE_DEVICES; nvidia-smi -L",
            cause="driver.no_visible_device",
        )
    for number, device in enumerate(devices):
        mode = EXCLUSIVE.get(device["mode"])
        capability = ".".join(map(str, device["capability"]))
        yield judge(
            f"GPU {number}",
            f"{device['name']}, compute capability {capability}, {size(device['bytes'])}"
            + (f", {mode}" if mode else ""),
            need="compute mode default",
            do=f"sudo nvidia-smi -i {number} -c 0",
            cause="driver.device_busy",
            warns=mode is not None,
        )


def judge_nodes(nodes: dict[str, str], library: dict[str, Any]) -> Iterator[Check]:
    """Yield the finding on the device nodes."""
    closed = ", ".join(f"/dev/{name}: {why}" for name, why in nodes.items() if why != "ok" and NODE.match(name))
    if closed:
        yield fail(
            "device nodes",
            closed,
            need="they can be opened",
            do="sudo usermod -aG video,render $USER, and log in again",
            cause="driver.no_visible_device",
        )
    elif "nvidia-uvm" not in nodes and library.get("init") != 0:
        yield warn(
            "device nodes",
            f"no /dev/nvidia-uvm; there is: {', '.join(nodes) or 'no /dev/nvidia*'}",
            need="/dev/nvidia-uvm",
            do="sudo nvidia-modprobe -u -c=0",
            cause="driver.state",
        )
    elif nodes:
        yield ok("device nodes", f"{len(nodes)} of /dev/nvidia* can be opened")


def judge_cuinit(kernel: dict[str, Any], library: dict[str, Any]) -> Check:
    """Return the finding on what `cuInit` returned."""
    code, path = library.get("init"), library.get("real") or library.get("path")
    if code == 0:
        return ok("driver", f"cuInit works; libcuda is {path}")
    if code is None:
        observed = f"{path} has no cuInit: {library.get('error')}"
        return fail("driver", observed, "NVIDIA's libcuda", "unset LD_LIBRARY_PATH", "driver.state")
    error = CUINIT_ERRORS.get(code) or CuinitError(f"CUresult {code}", "the driver did not start", "nvidia-smi")
    observed = f"cuInit returned {code}, {error.name}: {error.means}; libcuda is {path}"
    if code in (100, 101) and kernel["visible"] is not None:
        observed += f"; CUDA_VISIBLE_DEVICES={kernel['visible']!r}"
    return fail("driver", observed, f"cuInit returns 0. {NO_TOOLKIT}", error.do, error.cause)


def judge_cuda_version(number: int, build: dict[str, Any], kernel: dict[str, Any]) -> Check:
    """Judge the driver against the CUDA that torch was built for: within one major version any driver will do.

    `number` is what `cuDriverGetVersion` returns, 1000 * major + 10 * minor: 12020 is CUDA 12.2.
    """
    label, wheel, major, minor = "driver for this torch", version(build.get("cuda", "")), number // 1000, number % 1000
    driver = f"the driver {kernel['module']}" if kernel["module"] else "the driver"
    observed = f"{driver} supports CUDA {major}.{minor // 10}"
    backend = WHEELS.get(min(major, max(WHEELS)), "cpu")  # the oldest build that is still made for its major version
    reinstall = f"uv pip install --reinstall --torch-backend={backend} torch torchvision"
    if not wheel and build and not build.get("hip"):
        return fail(label, "torch is built for the processor only", "a CUDA build", reinstall, "build.cpu_only")
    if not wheel:
        return skip(label, f"{observed}; no CUDA build of torch to compare it with")
    observed, oldest = f"{observed}, torch is built for {build['cuda']}", OLDEST_DRIVERS.get(wheel[0], "the newest")
    if major < wheel[0]:
        return fail(
            label,
            f"{observed}: too old",
            need=f"driver {oldest} or newer for CUDA {wheel[0]}",
            do=f"update the driver to {oldest} or newer, or take the build for this driver: {reinstall}",
            cause="driver.too_old",
        )
    if (major, minor // 10) < wheel[:2]:
        observed += "; works by minor-version compatibility, except for PTX that must be compiled for this GPU"
    return ok(label, observed)


MESSAGE = 200  # characters of torch's own words
QUESTION = "Did you run some cuda functions before calling NumCudaDevices() that might have already set an error?"
TORCH_MESSAGES = (  # what torch says when its initialisation fails -> cause; the first that is found
    (r"Found no NVIDIA driver", "driver.none"),
    (r"driver on your system is too old|insufficient", "driver.too_old"),
    (r"No CUDA GPUs|Error 100|Error 101|no CUDA-capable|invalid device ordinal", "driver.no_visible_device"),
    (r"Error 46|busy or unavailable", "driver.device_busy"),
    (r"Error 214|uncorrectable ECC", "hw.gpu"),
    (r"not compiled with CUDA|without CUDA", "build.cpu_only"),
    (r"", "driver.state"),
)
ARCH = re.compile(r"^(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<exact>[af]?)$")


def judge_torch_gpus(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on torch's view of the GPUs and on the architectures it was built for."""
    gpus = answer["torch"]
    if not gpus["devices"]:
        message = gpus["said"] or "; ".join(gpus["warned"]) or "torch.cuda.is_available() is False"
        message = " ".join(message.replace(QUESTION, " ").split())
        driver = judge_driver(facts["driver"], facts) if "driver" in facts else ()
        yield fail(
            "torch and the GPU",
            message[:MESSAGE] + ("…" if len(message) > MESSAGE else ""),
            need="torch sees the GPU",
            do=next((check.do for check in driver if check.judgement == "fail"), "nvidia-smi; dmesg | grep -i nvrm"),
            cause=next(cause for pattern, cause in TORCH_MESSAGES if re.search(pattern, message)),
        )
        return
    yield ok("torch and the GPU", f"torch sees {len(gpus['devices'])}: {gpus['devices'][0]['name']}")
    build = {**torch_facts(facts), **gpus}
    for number, device in enumerate(gpus["devices"]):
        label = f"kernels for GPU {number}"
        yield judge_architecture(label, tuple(device["capability"]), build.get("arch_list") or [], build)


def judge_architecture(label: str, capability: tuple[int, ...], arch_list: list[str], build: dict[str, Any]) -> Check:
    """Judge whether torch has machine code for a GPU, or at least PTX that the driver can compile for it.

    A cubin of sm_XY runs on X.Z with Z >= Y; PTX of compute_XY on anything newer (CUDA programming guide).
    """
    matches = [match for match in map(ARCH.match, arch_list) if match]
    have = f"compute capability {'.'.join(map(str, capability))}"
    if not matches:
        return skip(label, f"{have}; torch names no architectures")
    cubins = [(int(a["major"]), int(a["minor"])) for a in matches if a["kind"] == "sm"]
    ptx = [(int(a["major"]), int(a["minor"])) for a in matches if a["kind"] == "compute" and not a["exact"]]
    observed = f"{have}; torch {build.get('version', '')} has {' '.join(arch_list)}"
    need = f"sm_{capability[0]}{capability[1]} in torch.cuda.get_arch_list()"
    if any(major == capability[0] and minor <= capability[1] for major, minor in cubins):
        return ok(label, observed)
    do = "a newer torch: uv pip install --upgrade --torch-backend=auto torch torchvision"
    if any(arch <= capability for arch in ptx):
        slow = f"expect a first call that takes minutes; better {do}"
        return warn(label, f"{observed}; only PTX fits", need, slow, "build.arch")
    if cubins and capability <= max(cubins):
        do = f"a build for older cards (this one begins at sm_{''.join(map(str, min(cubins)))}): "
        do += "uv pip install --reinstall --torch-backend=cu126 torch torchvision"
    return fail(label, observed, need, do, "build.arch")


BUSY = 0.10  # of a card's memory; a desktop takes some 0.05
HOT = 85  # degrees Celsius; most cards lower their clocks between 83 and 95
HARDWARE = {"48", "63", "64", "74", "79", "92", "94", "95", "110", "119", "120"}  # Xids of the card, bus or firmware


def judge_cards(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on every card."""
    if not answer["loaded"]:
        do = "install the driver's nvidia-utils; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield warn("GPU health", f"NVML is not there: {answer['error']}", "libnvidia-ml.so.1", do, "driver.state")
    elif answer["code"]:
        do = "sudo reboot: kernel module and driver libraries differ"
        yield fail("GPU health", answer["error"], "NVML starts", do, "driver.state")
    elif not answer["cards"]:
        yield skip("GPU health", "NVML shows no card")
    for number, card in enumerate(answer.get("cards", ())):
        if "error" in card:
            yield fail(f"GPU {number}", card["error"], "it answers", "dmesg | grep -i xid; sudo reboot", "hw.gpu")
        else:
            yield judge_card_memory(number, card)
            yield judge_card_health(number, card)


def judge_card_memory(number: int, card: dict[str, Any]) -> Check:
    """Judge the memory of a card that others hold already."""
    label, total, processes = f"GPU {number} memory", card.get("total") or 0, card["processes"]
    if not total:
        return skip(label, "the card does not say how much it has")
    busy = card["used"] > BUSY * total
    names = [
        f"{process['name'] or 'a process of another container'} ({process['pid']}"
        + (f", {size(process['bytes'])})" if process["bytes"] is not None else ")")
        for process in processes
    ]
    holders = f" by {', '.join(names)}" if names else ""
    if busy and not names:
        holders = ", by no process that is visible here: another container, or one that died"
    pids = " ".join(str(process["pid"]) for process in processes if process["name"])
    return judge(
        label,
        f"{size(card['used'])} of {size(total)} in use{holders}",
        need=f"at most {BUSY:.0%} before a training begins",
        do=f"kill {pids}" if pids else "nvidia-smi on the host names it; sudo fuser -v /dev/nvidia*",
        cause="gpumem.foreign",
        warns=busy,
    )


def judge_card_health(number: int, card: dict[str, Any]) -> Check:
    """Judge errors of a card's memory, its temperature and what slows it down."""
    label, remap = f"GPU {number} health", card.get("remap") or {}
    parts = [
        f"{card['temperature']} °C" if "temperature" in card else "",
        f"{card['clock']} of {card.get('clock_most', '?')} MHz" if "clock" in card else "",
        f"{card['power'] / 1000:.0f} of {card.get('power_limit', 0) / 1000:.0f} W" if "power" in card else "",
        f"{card['ecc']} uncorrectable ECC errors" if "ecc" in card else "",
        f"slowed down by {', '.join(card['throttled'])}" if card["throttled"] else "",
    ]
    observed = ", ".join(filter(None, parts)) or "it reports nothing"
    if remap.get("failed"):
        return fail(label, f"{observed}; a row could not be replaced", "healthy memory", "exchange the card", "hw.gpu")
    if card.get("ecc"):
        do = "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT; reboot"
        return fail(label, observed, "no uncorrectable ECC error", do, "hw.gpu")
    if remap.get("pending") or card.get("retired_pending"):
        return warn(label, f"{observed}; rows wait for a reset to be replaced", "none", "sudo reboot", "hw.gpu")
    slowed = any("thermal" in name or "brake" in name for name in card["throttled"])
    return judge(
        label,
        observed,
        need=f"below {HOT} °C",
        do="nvidia-smi -q -d TEMPERATURE,PERFORMANCE; clean the fans",
        cause="hw.gpu",
        warns=slowed or card.get("temperature", 0) >= min(HOT, card.get("slowdown", HOT)),
    )


def judge_log(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on the kernel's log: Xid lines, illegal instructions, and what was killed for memory."""
    if answer["missing"]:
        yield skip("kernel log", answer["missing"])
        return
    events = kernel_log.events(answer["lines"])
    xids = [event for event in events if event.kind == "xid"]
    traps = [event for event in events if (event.kind, event.detail) == ("trap", "invalid opcode") and event.library]
    killed = [event for event in events if event.kind == "oom" and "Killed process" in event.text]
    if xids:
        numbers = {event.detail for event in xids}
        observed = f"Xid {', '.join(sorted(numbers, key=int))}; the last: {xids[-1].text}"
        do = "dmesg | grep -i xid; ocrlab diagnose --explain hw.gpu"
        judged, cause = (fail, "hw.gpu") if HARDWARE & numbers else (warn, "hw.xid_app")
        yield judged("kernel log: Xid", observed, "no Xid", do, cause)
    if traps:
        last = f"{traps[-1].name} in {traps[-1].library}"
        yield warn(
            "kernel log: SIGILL",
            f"illegal instructions in the last day: {len(traps)}; the last: {last}",
            need="no illegal instruction",
            do=f"reinstall the package of {traps[-1].library}; dmesg | grep 'invalid opcode'",
            cause="build.cpu_isa",
        )
    if killed:
        resident = re.search(r"anon-rss:(\d+)kB", killed[-1].text)
        resident_size = f", which held {size(int(resident[1]) * 1024)}" if resident else ""
        yield warn(
            "kernel log: memory",
            f"{len(killed)} processes killed for memory in the last day; the last: {killed[-1].name}{resident_size}",
            need="nothing killed for memory",
            do="fewer loader workers and smaller batches; dmesg | grep 'Killed process'",
            cause="host.oom_kill",
        )
    if not (xids or traps or killed):
        yield ok("kernel log", "no Xid, no illegal instruction, nothing killed for memory in the last day")
