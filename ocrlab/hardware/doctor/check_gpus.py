"""Steps 4 and 7: the NVIDIA driver, the GPUs that torch sees, and their health."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ocrlab.hardware.doctor.check_packages import torch_facts, torchless
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
from ocrlab.records import Check


@dataclass(frozen=True)
class CuinitError:
    """One answer of `cuInit`: its name, what it means, the cause of the catalogue, and the command that fixes it."""

    name: str
    means: str
    cause: str
    do: str


RELOAD = "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm (no process may use the GPU); else reboot"
CUINIT_ERRORS = {
    2: CuinitError(
        "CUDA_ERROR_OUT_OF_MEMORY",
        "the driver has no memory for itself: the GPU's or the host's is all in use, or WSL2's driver is confused",
        "driver.state",
        "nvidia-smi names who holds the memory: end it. On WSL2: wsl --shutdown, then update the Windows driver",
    ),
    3: CuinitError(
        "CUDA_ERROR_NOT_INITIALIZED",
        "the driver could not initialise, mostly after suspend or without /dev/nvidia-uvm",
        "driver.state",
        RELOAD,
    ),
    34: CuinitError(
        "CUDA_ERROR_STUB_LIBRARY",
        "this libcuda.so.1 is the stub for linking, no driver",
        "driver.state",
        "take the folder with stubs/ out of LD_LIBRARY_PATH: unset LD_LIBRARY_PATH",
    ),
    36: CuinitError(
        "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        "a call is not supported by the driver that is installed: libcuda is newer than the kernel module",
        "driver.state",
        "reboot after the driver update; in a container remove its own libcuda and cuda-compat: unset LD_LIBRARY_PATH",
    ),
    46: CuinitError(
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "the GPU is busy: exclusive compute mode with a process on it, or it hangs since a crash",
        "driver.device_busy",
        "nvidia-smi names the process: end it; sudo nvidia-smi -c 0; with no process there: reboot",
    ),
    100: CuinitError(
        "CUDA_ERROR_NO_DEVICE",
        "the driver works, but shows this process no GPU",
        "driver.no_visible_device",
        "unset CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all",
    ),
    101: CuinitError(
        "CUDA_ERROR_INVALID_DEVICE",
        "a device number that does not exist, or a MIG slice that was not made",
        "driver.no_visible_device",
        "unset CUDA_VISIBLE_DEVICES; compare with nvidia-smi -L",
    ),
    214: CuinitError(
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU's memory has an error that ECC cannot correct",
        "hw.gpu",
        "nvidia-smi -q -d ECC,ROW_REMAPPER; reboot, which retires the page; when it returns the card is faulty",
    ),
    304: CuinitError(
        "CUDA_ERROR_OPERATING_SYSTEM",
        "a call to the operating system failed: device nodes, permissions, or the module nvidia_uvm",
        "driver.state",
        "ls -l /dev/nvidia*; sudo modprobe nvidia_uvm; sudo nvidia-modprobe -u -c=0",
    ),
    802: CuinitError(
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the NVSwitch fabric is not up: its manager does not run, or has another version than the driver",
        "driver.state",
        "sudo systemctl restart nvidia-fabricmanager; systemctl status nvidia-fabricmanager",
    ),
    803: CuinitError(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kernel module and libcuda are of different versions, mostly after an update without a reboot",
        "driver.state",
        "sudo reboot; in a container: the host's driver changed, so start the container anew",
    ),
    804: CuinitError(
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the cuda-compat libcuda was loaded, which only works on data-centre GPUs",
        "driver.state",
        "take the compat/ folder out of LD_LIBRARY_PATH: unset LD_LIBRARY_PATH; or update the driver",
    ),
    999: CuinitError(
        "CUDA_ERROR_UNKNOWN",
        "the driver does not know what is wrong: after suspend, without /dev/nvidia-uvm, or with a wedged GPU",
        "driver.state",
        RELOAD,
    ),
}

# The oldest Linux driver for each CUDA major version, from the table of minor-version compatibility in NVIDIA's CUDA
# compatibility guide: within a major version every wheel runs on it, whatever its minor version is.
OLDEST_DRIVERS = {10: "440.33", 11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
WHEELS = {11: "cu118", 12: "cu126", 13: "cu130"}  # builds of torch that run on any driver of that major version


def cuinit_error(code: int) -> CuinitError:
    """Return the state that a code of `cuInit` stands for."""
    return CUINIT_ERRORS.get(code) or CuinitError(
        f"CUresult {code}", "the driver did not start", "driver.state", "nvidia-smi"
    )


def cuda_version(number: int) -> str:
    """Return what `cuDriverGetVersion` encodes as 1000 * major + 10 * minor: 12020 is CUDA 12.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


NODE = re.compile(r"nvidia(\d+|ctl|-uvm)$")  # the others are for displays and tools
EXCLUSIVE = {1: "exclusive (thread)", 2: "prohibited", 3: "exclusive process"}  # CUcomputemode
NO_TOOLKIT = "torch brings its own CUDA: a driver is needed, a CUDA toolkit (nvcc) is not"


def driver_probes(options: Options) -> list[Probe]:
    """Return the ask of the driver.

    `cuInit` takes 0.1 s for one GPU and up to 10 s for eight without persistence, and works all the while: ten seconds
    without work are a driver that will not answer.
    """
    probe, after = PROBES / "nvidia_driver.py", ("packages",)
    return [Probe(4, "driver", probe, "driver", judge_driver, 30, {}, 10, own=True, after=after, hang="hang.cuda_init")]


def driver_facts(answers: Answers) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the kernel and what libcuda told."""
    kernel: dict[str, Any] = {}
    library: dict[str, Any] = {}
    for answer in answers:
        kernel |= answer.get("kernel", {})
        library |= answer.get("cuda", {})
    return kernel, library


def no_gpu(facts: Facts) -> str | None:
    """Return why nothing that needs an NVIDIA GPU can be asked, or None where a driver started."""
    kernel, library = driver_facts(facts.get("driver", []))
    if "driver" not in facts:
        return "the driver did not answer, see step 4"
    if library.get("init") == 0 and library.get("devices"):
        return None
    if not (kernel["cards"] or kernel["nodes"] or kernel["dxg"] or library["loaded"]):
        return "no NVIDIA GPU on this machine"
    return "the driver does not start, see step 4"


def judge_driver(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on cards, nodes, `cuInit` and versions."""
    kernel, library = driver_facts(answers)
    build = facts["packages"][0]["torch"] if "packages" in facts else {}
    if not (kernel["cards"] or kernel["nodes"] or kernel["dxg"] or library["loaded"]):
        wheel = f"; torch is built for CUDA {build['cuda']} and will use the processor" if build.get("cuda") else ""
        yield skip("NVIDIA GPU", f"no NVIDIA GPU on this machine{wheel}")
        return
    if not library["loaded"]:
        yield driver_not_loaded(kernel, library)
        return
    yield from judge_nodes(kernel, library)
    yield judge_cuinit(kernel, library)
    yield from judge_versions(kernel, library)
    if library.get("version"):
        yield judge_cuda_version(library["version"], build, kernel)
    yield from judge_devices(library, build)


def driver_not_loaded(kernel: dict[str, Any], library: dict[str, Any]) -> Check:
    """Return the finding on a machine with a GPU whose libcuda cannot be loaded."""
    observed = f"there is a GPU, but {library['error']}"
    do = "install the driver of the distribution (ubuntu-drivers install); in a container: docker run --gpus all"
    if kernel["dxg"]:
        do = "export LD_LIBRARY_PATH=/usr/lib/wsl/lib; update the Windows driver; install no Linux driver in WSL2"
    elif "nouveau" in kernel["modules"]:
        observed += "; the module nouveau is loaded instead of nvidia"
    return fail("driver", observed, NO_TOOLKIT, do, "driver.none")


def judge_nodes(kernel: dict[str, Any], library: dict[str, Any]) -> Iterator[Check]:
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


def judge_cuinit(kernel: dict[str, Any], library: dict[str, Any]) -> Check:
    """Return the finding on what `cuInit` returned."""
    code, path = library.get("init"), library.get("real") or library.get("path")
    if code is None:
        observed = f"{path} has no cuInit: {library.get('error')}"
        return fail("driver", observed, "NVIDIA's libcuda", "unset LD_LIBRARY_PATH", "driver.state")
    if code == 0:
        return ok("driver", f"cuInit works; libcuda is {path}")
    error = cuinit_error(code)
    observed = f"cuInit returned {code}, {error.name}: {error.means}; libcuda is {path}"
    variables = kernel["variables"]
    if code in (100, 101) and "CUDA_VISIBLE_DEVICES" in variables:
        observed += f"; CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']!r}"
    return fail("driver", observed, f"cuInit returns 0. {NO_TOOLKIT}", error.do, error.cause)


def judge_versions(kernel: dict[str, Any], library: dict[str, Any]) -> Iterator[Check]:
    """Yield the finding where the library's file name says another version than the kernel's module."""
    file = str(library.get("real") or "").rpartition("libcuda.so.")[2]
    if kernel["module"] and len(version(file)) > 1:
        observed = f"kernel module {kernel['module']}, libcuda {file}"
        if version(file) != version(kernel["module"]):
            do = "sudo reboot; with a compat/ or stubs/ folder in LD_LIBRARY_PATH: unset LD_LIBRARY_PATH"
            yield warn("driver versions", observed, "the same version", do, "driver.state")
        else:
            yield ok("driver versions", observed)


def judge_cuda_version(number: int, build: dict[str, Any], kernel: dict[str, Any]) -> Check:
    """Judge the driver against the CUDA that torch was built for: within one major version any driver will do."""
    label, wheel = "driver for this torch", version(build.get("cuda", ""))
    driver = f"the driver {kernel['module']}" if kernel["module"] else "the driver"
    if not wheel:
        if build and not build.get("hip"):
            do = f"uv pip install --reinstall --torch-backend={torch_backend(number)} torch torchvision"
            return fail(label, "torch is built for the processor only", "a CUDA build", do, "build.cpu_only")
        return skip(label, f"{driver} supports CUDA {cuda_version(number)}; no CUDA build of torch to compare it with")
    observed = f"{driver} supports CUDA {cuda_version(number)}, torch is built for {build['cuda']}"
    if number // 1000 >= wheel[0]:
        if version(cuda_version(number)) < wheel[:2]:
            observed += "; works by minor-version compatibility, except for PTX that must be compiled for this GPU"
        return ok(label, observed)
    oldest = OLDEST_DRIVERS.get(wheel[0], "the newest")
    do = f"update the driver to {oldest} or newer, or take the build for this driver: "
    do += f"uv pip install --reinstall --torch-backend={torch_backend(number)} torch torchvision"
    return fail(label, f"{observed}: too old", f"driver {oldest} or newer for CUDA {wheel[0]}", do, "driver.too_old")


def torch_backend(number: int) -> str:
    """Return the build of torch that runs on a driver: the oldest still made for its major version."""
    return WHEELS.get(min(number // 1000, max(WHEELS)), "cpu")


def judge_devices(library: dict[str, Any], build: dict[str, Any]) -> Iterator[Check]:
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


MESSAGE = 200  # characters of torch's own words
QUESTION = "Did you run some cuda functions before calling NumCudaDevices() that might have already set an error?"
ARCH = re.compile(r"^(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<exact>[af]?)$")


def torch_gpu_probes(options: Options) -> list[Probe]:
    """Return the ask of torch's first CUDA call, apart from the import: this is where a sick driver hangs."""
    return [
        Probe(4, "torch and the GPU", PROBES / "import_probe.py", "torch_cuda", judge_torch_gpus, 60, {}, 20,
            after=("driver", "import torch"), skip=skip_torch_gpus, hang="hang.cuda_init", crash="driver.state"),
    ]  # fmt: skip


def skip_torch_gpus(facts: Facts) -> str | None:
    """Return why torch need not be asked: it is not there, or there is nothing that it could see."""
    kernel, library = driver_facts(facts.get("driver", []))
    if torch_facts(facts).get("hip"):
        return None  # AMD's cards speak through torch.cuda too
    if "driver" in facts and not library["loaded"]:
        return "no driver that torch could use" if kernel["cards"] or kernel["dxg"] else "no NVIDIA GPU on this machine"
    if "driver" not in facts:
        return "the driver did not answer, see above: torch would not return either"
    return torchless(facts)


def judge_torch_gpus(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on torch's view of the GPUs and on the architectures it was built for."""
    gpus: dict[str, Any] = {}
    for answer in answers:
        gpus |= answer.get("torch", {})
    build = {**torch_facts(facts), **gpus}
    if not gpus["devices"]:
        message = gpus["said"] or "; ".join(gpus["warned"]) or "torch.cuda.is_available() is False"
        message = " ".join(message.replace(QUESTION, " ").split())
        observed = message[:MESSAGE] + ("…" if len(message) > MESSAGE else "")
        yield fail("torch and the GPU", observed, "torch sees the GPU", driver_remedy(facts), cause_of_message(message))
        return
    yield ok("torch and the GPU", f"torch sees {len(gpus['devices'])}: {gpus['devices'][0]['name']}")
    for number, device in enumerate(gpus["devices"]):
        yield judge_architecture(
            f"kernels for GPU {number}", tuple(device["capability"]), build.get("arch_list") or [], build
        )


def driver_remedy(facts: Facts) -> str:
    """Return what fixes a driver that torch complains about: the same as for the driver itself."""
    checks = judge_driver(facts["driver"], facts) if "driver" in facts else ()
    return next((check.do for check in checks if check.judgement == "fail"), "nvidia-smi; dmesg | grep -i nvrm")


def cause_of_message(message: str) -> str:
    """Return the cause that torch's own message on a failed initialisation names."""
    for pattern, name in (
        (r"Found no NVIDIA driver", "driver.none"),
        (r"driver on your system is too old|insufficient", "driver.too_old"),
        (r"No CUDA GPUs|Error 100|Error 101|no CUDA-capable|invalid device ordinal", "driver.no_visible_device"),
        (r"Error 46|busy or unavailable", "driver.device_busy"),
        (r"Error 214|uncorrectable ECC", "hw.gpu"),
        (r"not compiled with CUDA|without CUDA", "build.cpu_only"),
    ):
        if re.search(pattern, message):
            return name
    return "driver.state"


def judge_architecture(label: str, capability: tuple[int, ...], arch_list: list[str], build: dict[str, Any]) -> Check:
    """Judge whether torch has machine code for a GPU, or at least PTX that the driver can compile for it.

    A cubin of sm_XY runs on X.Z with Z >= Y; PTX of compute_XY on anything newer (CUDA programming guide).
    """
    matches = [text for text in map(ARCH.match, arch_list) if text]
    have, need = ".".join(map(str, capability)), f"sm_{capability[0]}{capability[1]} in torch.cuda.get_arch_list()"
    listed = " ".join(arch_list)
    observed = f"compute capability {have}; torch {build.get('version', '')} has {listed}"
    if not matches:
        return skip(label, f"compute capability {have}; torch names no architectures")
    exact = [(int(arch["major"]), int(arch["minor"])) for arch in matches if arch["kind"] == "sm"]
    if any(major == capability[0] and minor <= capability[1] for major, minor in exact):
        return ok(label, observed)
    newest, oldest = max(exact, default=(0, 0)), min(exact, default=(0, 0))
    ptx = [
        (int(arch["major"]), int(arch["minor"])) for arch in matches if arch["kind"] == "compute" and not arch["exact"]
    ]
    if any(arch <= capability for arch in ptx):
        do = (
            "expect a first call that takes minutes; better a newer torch: uv pip install -U --torch-backend=auto torch"
        )
        return warn(label, f"{observed}; only PTX fits", need, do, "build.arch")
    if capability > newest:
        do = "a newer torch: uv pip install --upgrade --torch-backend=auto torch torchvision"
    else:
        do = f"a build for older cards (this one begins at sm_{oldest[0]}{oldest[1]}): "
        do += "uv pip install --reinstall --torch-backend=cu126 torch torchvision"
    return fail(label, observed, need, do, "build.arch")


BUSY = 0.10  # of a card's memory; a desktop takes some 0.05
HOT = 85  # degrees Celsius; most cards lower their clocks between 83 and 95
HANG = "hang.cuda_init"  # what it means when neither NVML nor nvidia-smi returns
RECENT = 86_400.0  # seconds; an Xid of yesterday still explains the crash of this morning
SMI = 8.0  # seconds; with eight cards and without persistence it takes 5
XID = re.compile(r"NVRM: Xid \((?P<card>[^)]*)\): (?P<number>\d+)(?:,\s*(?P<rest>.*))?")
HARDWARE = {48, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120}  # faults of the card, its bus or its firmware
KILLED = re.compile(r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)(?:.*?anon-rss:(?P<kb>\d+)kB)?")
TRAP = re.compile(r"(?P<name>[^\s\[\]]+)\[(?P<pid>\d+)\] trap invalid opcode.*? in (?P<library>[^\s\[]+)\[")


def health_probes(options: Options) -> list[Probe]:
    """Return the asks of step 7; NVML answers in milliseconds, or never where the driver is stuck."""
    probe, gpu = PROBES / "nvml.py", ("driver",)
    return [
        Probe(7, "GPU health", probe, "health", judge_cards, 15, own=True, after=gpu, skip=skip_health, hang=HANG),
        Probe(
            7,
            "nvidia-smi",
            probe,
            "smi",
            judge_smi,
            SMI + 4,
            {"seconds": SMI},
            own=True,
            after=gpu,
            skip=skip_health,
            hang=HANG,
        ),
        Probe(7, "kernel log", PROBES / "resource_limits.py", "kernel", judge_log, 15, {"seconds": RECENT}, own=True),
    ]


def skip_health(facts: Facts) -> str | None:
    """Return why no card can be asked for its health."""
    kernel, library = driver_facts(facts.get("driver", []))
    if "driver" not in facts or kernel["cards"] or kernel["nodes"] or kernel["dxg"] or library.get("devices"):
        return None
    return "no NVIDIA GPU on this machine"


def judge_cards(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on every card."""
    [answer] = answers
    if not answer["loaded"]:
        do = "install the driver's nvidia-utils; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield warn("GPU health", f"NVML is not there: {answer['error']}", "libnvidia-ml.so.1", do, "driver.state")
        return
    if answer["code"]:
        observed = answer["error"]
        yield fail("GPU health", observed, "NVML starts", "sudo reboot: kernel module and driver libraries differ",
                   "driver.state")  # fmt: skip
        return
    for number, card in enumerate(answer["cards"]):
        if "error" in card:
            yield fail(f"GPU {number}", card["error"], "it answers", "dmesg | grep -i xid; sudo reboot", "hw.gpu")
            continue
        yield judge_card_memory(number, card, answer.get("holders") or [])
        yield judge_card_health(number, card)
    if not answer["cards"]:
        yield skip("GPU health", "NVML shows no card")


def judge_card_memory(number: int, card: dict[str, Any], holders: list[dict[str, Any]]) -> Check:
    """Judge the memory of a card that others hold already."""
    label, total = f"GPU {number} memory", card.get("total") or 0
    if not total:
        return skip(label, "the card does not tell")
    observed = f"{size(card['used'])} of {size(total)} in use"
    who = [
        f"{process['name'] or 'a process of another container'} ({process['pid']}{_bytes(process['bytes'])})"
        for process in card["processes"]
    ]
    observed += f" by {', '.join(who)}" if who else ""
    if card["used"] > BUSY * total:
        if not who and holders:
            names = ", ".join(f"{process['name']} ({process['pid']})" for process in holders)
            observed += f"; /dev/nvidia* is held open by {names}"
        elif not who:
            observed += ", by no process that is visible here: another container, or one that died"
        pids = " ".join(str(process["pid"]) for process in card["processes"] or holders if process["name"])
        do = f"kill {pids}" if pids else "nvidia-smi on the host names it; sudo fuser -v /dev/nvidia*"
        return warn(label, observed, f"at most {BUSY:.0%} before a training begins", do, "gpumem.foreign")
    return ok(label, observed)


def _bytes(count: int | None) -> str:
    return f", {size(count)}" if count is not None else ""


def judge_card_health(number: int, card: dict[str, Any]) -> Check:
    """Judge errors of a card's memory, its temperature and what slows it down."""
    label, remap = f"GPU {number} health", card.get("remap") or {}
    parts = [f"{card['temperature']} °C"] if "temperature" in card else []
    parts += [f"{card['clock']} of {card.get('clock_most', '?')} MHz"] if "clock" in card else []
    parts += [f"{card['power'] / 1000:.0f} of {card.get('power_limit', 0) / 1000:.0f} W"] if "power" in card else []
    parts += [f"{card['ecc']} uncorrectable ECC errors"] if "ecc" in card else []
    parts += [f"slowed down by {', '.join(card['throttled'])}"] if card["throttled"] else []
    observed, do = ", ".join(parts) or "it tells nothing", "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT; reboot"
    if remap.get("failed"):
        return fail(label, f"{observed}; a row could not be replaced", "healthy memory", "exchange the card", "hw.gpu")
    if card.get("ecc"):
        return fail(label, observed, "no uncorrectable ECC error", do, "hw.gpu")
    if remap.get("pending") or card.get("retired_pending"):
        return warn(label, f"{observed}; rows wait for a reset to be replaced", "none", "sudo reboot", "hw.gpu")
    thermal = [name for name in card["throttled"] if "thermal" in name or "brake" in name]
    if thermal or card.get("temperature", 0) >= min(HOT, card.get("slowdown", HOT)):
        return warn(
            label, observed, f"below {HOT} °C", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE; clean the fans", "hw.gpu"
        )
    return ok(label, observed)


def judge_smi(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the finding on nvidia-smi: it is the first thing to hang with a driver."""
    [answer] = answers
    if answer.get("missing"):
        yield skip("nvidia-smi", "not installed; nothing needs it")
    elif "hung" in answer:
        observed = f"nvidia-smi did not return within {answer['hung']:.0f} s"
        yield fail("nvidia-smi", observed, "an answer", "dmesg | grep -iE 'nvrm|xid'; sudo reboot", "hang.cuda_init")
    elif answer.get("status") or "error" in answer:
        message = str(answer.get("said") or answer.get("error")).strip().partition("\n")[0]
        observed = f"exit status {answer.get('status')}: {message}"
        yield fail("nvidia-smi", observed, "it lists the cards", "mend what step 4 says of the driver", "driver.state")
    else:
        yield ok("nvidia-smi", f"lists {answer['said'].count('GPU ')} cards")


def judge_log(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on the kernel's log: Xid lines, illegal instructions, and what was killed for memory."""
    [answer] = answers
    if answer["missing"]:
        yield skip("kernel log", answer["missing"])
        return
    lines: list[str] = answer["lines"]
    xids = [match for line in lines if (match := XID.search(line))]
    if xids:
        numbers = sorted({int(match["number"]) for match in xids})
        observed = f"Xid {', '.join(map(str, numbers))}; the last: {xids[-1][0]}"
        cause = "hw.gpu" if HARDWARE & set(numbers) else "hw.xid_app"
        judged = fail if HARDWARE & set(numbers) else warn
        yield judged(
            "kernel log: Xid", observed, "no Xid", "dmesg | grep -i xid; ocrlab diagnose --explain hw.gpu", cause
        )
    killed = [match for line in lines if (match := KILLED.search(line))]
    traps = [match for line in lines if (match := TRAP.search(line))]
    if traps:
        last = traps[-1]
        observed = f"{len(traps)} illegal instructions in the last day; the last: {last['name']} in {last['library']}"
        do = f"reinstall what brings {last['library']}; dmesg | grep 'invalid opcode'"
        yield warn("kernel log: SIGILL", observed, "no illegal instruction", do, "build.cpu_isa")
    if killed:
        last = killed[-1]
        resident = f", which held {size(int(last['kb']) * 1024)}" if last["kb"] else ""
        observed = f"{len(killed)} processes killed for memory in the last day; the last: {last['name']}{resident}"
        do = "fewer loader workers and smaller batches; dmesg | grep 'Killed process'"
        yield warn("kernel log: memory", observed, "nothing killed for memory", do, "host.oom_kill")
    if not (xids or traps or killed):
        yield ok("kernel log", "no Xid, no illegal instruction, nothing killed for memory in the last day")
