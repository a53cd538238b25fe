"""What became of a child that hangs, dies, floods or answers nonsense, which is itself a finding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ocrlab.hardware import host
from ocrlab.hardware.doctor.check_spec import Probe, fail, size, warn
from ocrlab.hardware.doctor.probe_runner import ProbeResult
from ocrlab.records import Check

VEX_AMX = {0x49, 0x4B, 0x5C, 0x5E, 0x6C}  # in map 0F38: tile configuration, loads, and tile products
VEX_FMA = {*range(0x96, 0xA0), *range(0xA6, 0xB0), *range(0xB6, 0xC0)}  # in map 0F38
VEX_BMI = {0xF2, 0xF3, 0xF5, 0xF6, 0xF7}  # in map 0F38
VEX_VNNI = {0x50, 0x51, 0x52, 0x53}  # in map 0F38, without EVEX: AVX-VNNI
PREFIXES = {0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0xF0}
CAPS = (  # part of a library's name -> what keeps it from dispatching newer instructions, where it dispatches at all
    ("torch", "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41"),
    ("dnnl", "ONEDNN_MAX_CPU_ISA=SSE41"),
    ("openblas", "OPENBLAS_CORETYPE=Nehalem"),
    ("mkl", "MKL_ENABLE_INSTRUCTIONS=SSE4_2"),
    ("umath", "NPY_DISABLE_CPU_FEATURES='AVX2 FMA3 AVX512F AVX512_SKX'"),
    ("cv2", "OPENCV_CPU_DISABLE=AVX,AVX2,AVX512F"),
)


def name(code: bytes) -> tuple[str, str]:
    """Return the instruction set that an instruction of x86-64 belongs to, and the flag Linux has for it."""
    if code[:2] in (b"\x0f\x0b", b"\x0f\xb9", b"\x0f\xff"):
        return "ud2", ""
    if code[:1] == b"\x62":
        return "AVX-512 or AVX10", "avx512f"
    if code[:1] == b"\xc5":
        return "AVX", "avx"
    if code[:1] == b"\xc4" and len(code) > 3:
        return _vex(code[1] & 0x1F, code[3])
    rest, prefixes = _without_prefixes(code)
    if rest[:2] == b"\x0f\xb8" and 0xF3 in prefixes:
        return "POPCNT", "popcnt"
    if rest[:2] in (b"\x0f\xbd", b"\x0f\xbc") and 0xF3 in prefixes:
        return "LZCNT or BMI1", "abm" if rest[1] == 0xBD else "bmi1"
    if rest[:2] == b"\x0f\x38" and len(rest) > 2:
        return _three_byte(rest[2], prefixes)
    if rest[:2] == b"\x0f\x3a":
        return "SSE4.1", "sse4_1"
    return "unknown", ""


def _vex(opcode_map: int, opcode: int) -> tuple[str, str]:
    if opcode_map == 2:
        if opcode in VEX_AMX:
            return "AMX", "amx_tile"
        if opcode in VEX_FMA:
            return "FMA", "fma"
        if opcode in VEX_BMI:
            return "BMI", "bmi2"
        if opcode in VEX_VNNI:
            return "AVX-VNNI", "avx_vnni"
    return ("AVX", "avx") if opcode_map == 1 else ("AVX2", "avx2")


def _three_byte(opcode: int, prefixes: set[int]) -> tuple[str, str]:
    if opcode in (0xF0, 0xF1):
        return ("SSE4.2", "sse4_2") if 0xF2 in prefixes else ("MOVBE", "movbe")
    if 0xDB <= opcode <= 0xDF:
        return "AES", "aes"
    if 0xC8 <= opcode <= 0xCD:
        return "SHA", "sha_ni"
    return ("SSSE3", "ssse3") if opcode <= 0x0B or 0x1C <= opcode <= 0x1E else ("SSE4", "sse4_1")


def _without_prefixes(code: bytes) -> tuple[bytes, set[int]]:
    """Return an instruction after its legacy and REX prefixes, and the prefixes."""
    at = 0
    while at < len(code) and (code[at] in PREFIXES or 0x40 <= code[at] <= 0x4F):
        at += 1
    return code[at:], set(code[:at])


def explain(instruction: dict[str, Any], frames: list[str], flags: set[str] | None = None) -> tuple[str, str, str, str]:
    """Return for an illegal instruction what was seen, what is needed, what to do, and the cause.

    `instruction` is {"library", "offset", "code"} of `probe_child.py`, or empty where the process could not tell.
    """
    flags = host.cpu_flags() if flags is None else flags
    place = f"; Python was in {frames[0]}" if frames else ""
    if not instruction:
        observed = f"an illegal instruction{place}; the kernel log names the library: dmesg | grep 'invalid opcode'"
        return observed, "a build for this processor", "dmesg | grep 'invalid opcode'", "build.cpu_isa"
    library, raw = Path(str(instruction.get("library"))).name, str(instruction.get("code", ""))
    at = f"{library}+{int(instruction.get('offset', 0)):#x}"
    kind, flag = name(bytes.fromhex(raw))
    observed = f"illegal instruction {' '.join(raw[i : i + 2] for i in range(0, min(len(raw), 16), 2))} in {at}"
    if kind == "ud2":
        observed += f": ud2, a trap that the library sets on purpose where it must never come{place}"
        return observed, "a library that does not trap", f"reinstall what {library} belongs to", "native.abort"
    has = bool(flag) and flag in flags
    if kind != "unknown":
        observed += f", an {kind} instruction; this processor {'has' if has else 'lacks'} {flag}"
    need = f"a build of {library} for this processor" + (f", or a processor with {flag}" if flag else "")
    caps = next((cap for part, cap in CAPS if part in library), "")
    do = "in a virtual machine pass the host's processor through (qemu -cpu host); else build the library from source"
    if caps and not has:
        do = f"try: env {caps} python ...; {do}"
    return observed + place, need, do, "build.cpu_isa"


FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)
REMEDIES = {  # cause of a hang or a crash -> the command that fixes it, or shows more
    "hang.cuda_init": "dmesg | grep -iE 'nvrm|xid'; end what holds the GPU: sudo fuser -v /dev/nvidia*; "
    "then sudo reboot. On WSL2: wsl --shutdown",
    "hang.gpu_kernel": "nvidia-smi -q -d PERFORMANCE,ECC; dmesg | grep -i xid; then sudo reboot",
    "hang.tracker": "export WANDB_MODE=disabled, or: pip install --upgrade --force-reinstall wandb",
    "loader.fork_deadlock": "DataLoader(multiprocessing_context='spawn'), or OMP_NUM_THREADS=1",
    "loader.worker_crash": "python -X faulthandler with num_workers=0 names the line; ocrlab watch -- python train.py",
    "tracker.network": "export WANDB_MODE=offline, and `wandb sync` afterwards",
    "host.shm": "docker run --shm-size=8g (or --ipc=host)",
}
OURS = ("ocrlab/hardware/", "<frozen importlib")
SIGNALS = {
    "SIGSEGV": "native code used memory that is not its own",
    "SIGABRT": "native code called abort()",
    "SIGBUS": "memory that is mapped from a file could not be read; a full /dev/shm or a truncated library",
    "SIGFPE": "an integer division by zero in native code",
    "SIGKILL": "it was killed from outside, mostly by the kernel for memory",
    "SIGSYS": "the sandbox forbids a system call",
}


def ended_well(ran: ProbeResult) -> bool:
    """Tell whether a child answered all it wanted to."""
    return ran.done and not ran.garbage and not any("raised" in answer for answer in ran.answers)


def checks(ask: Probe, ran: ProbeResult) -> list[Check]:
    """Return the findings on a child that did not end as it should; none for one that did."""
    findings = [_fate(ask, ran)] if not ended_well(ran) else _afterwards(ask, ran)
    return [check for check in findings if check is not None]


def _fate(ask: Probe, ran: ProbeResult) -> Check:
    """Return the finding on a child that did not answer."""
    at = where(ran)
    if ran.ended == "unstarted":
        return fail(ask.name, f"the check could not be started: {ran.errors}", "a process can be started", "ulimit -u")
    if ran.ended == "flood":
        observed = (
            f"printed more than {size(ran.printed)} and was stopped{at}; it ends: {last_line(ran.out or ran.errors)}"
        )
        return fail(ask.name, observed, "a check prints nothing", again(ask))
    if ran.ended == "stopped":
        return fail(ask.name, f"was interrupted after {ran.seconds:.0f} s", "time to end", "ocrlab doctor")
    if ran.signal == "SIGILL" or ran.trapped:
        return illegal(ask.name, ran, at)
    if ran.ended in ("deadline", "idle"):
        return _hung(ask, ran, at)
    if ran.signal:
        why = SIGNALS.get(ran.signal, "it was ended from outside")
        cause = "native.abort" if ran.signal == "SIGABRT" else ask.crash or "native.segv"
        cause = "ext.signal" if ran.signal in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT") else cause
        frames = stack(ran.errors)
        observed = f"died of {ran.signal}{at}: {why}" + (f"; last in {frames[0]}" if frames else "")
        return fail(ask.name, observed, "the process lives", again(ask, cause), cause)
    if ran.garbage:
        return fail(ask.name, f"answered with garbage: {ran.garbage}", "one JSON object a line", again(ask))
    raised: Any = next((answer["raised"] for answer in ran.answers if "raised" in answer), None)
    if raised is not None:
        error = raised if isinstance(raised, dict) else {}
        observed = f"{error.get('type')}: {error.get('message')} ({short(str(error.get('where')))}){at}"
        return fail(ask.name, f"the check failed: {observed}", "", again(ask))
    if "SyntaxError" in ran.errors and "probe_child.py" in ran.errors:
        return fail(ask.name, "this Python is too old to be asked", "Python 3.8 or newer", "uv venv --python 3.12")
    last = last_line(ran.errors or ran.out)
    observed = f"exited with status {ran.code} and no answer{at}" + (f": {last}" if last else "")
    return fail(ask.name, observed, "an answer", again(ask))


def _hung(ask: Probe, ran: ProbeResult, at: str) -> Check:
    frames = stack(ran.errors)
    stuck = f", stuck in {frames[0]}" if frames else ", in native code or in the kernel"
    idle = " without using the processor" if ran.ended == "idle" else ""
    observed = f"did not return within {ran.seconds:.0f} s{at}{stuck}{idle}"
    return fail(
        ask.name, observed, f"an answer within {ask.deadline:.0f} s", again(ask, ask.hang), ask.hang or "hang.deadlock"
    )


def illegal(name: str, ran: ProbeResult, at: str = "") -> Check:
    """Return the finding on SIGILL: which library, which instruction, and whether this processor has it."""
    instruction: Any = next((answer["illegal"] for answer in ran.answers if "illegal" in answer), {})
    observed, need, do, cause = explain(instruction if isinstance(instruction, dict) else {}, stack(ran.errors))
    return fail(name, f"died of SIGILL{at}: {observed}", need, do, cause)


def _afterwards(ask: Probe, ran: ProbeResult) -> list[Check | None]:
    """Return the finding on a child that answered and then did not leave as it should."""
    if ran.ended in ("deadline", "idle"):
        observed = "answered, but its process never ended"
    elif ran.signal:
        observed = f"answered, and then died of {ran.signal} as its process ended"
    elif ran.ended == "flood":
        observed = f"answered, and printed more than {size(ran.printed)}"
    else:
        return []
    return [warn(f"{ask.name}: end", observed, "a process ends when its work is done", again(ask), ask.crash)]


def again(ask: Probe, cause: str | None = None) -> str:
    """Return what to do next about a check that died: what fixes its cause, else the same by hand with every stack."""
    if cause in REMEDIES:
        return REMEDIES[cause]
    module = ask.name.removeprefix("import ") if ask.name.startswith("import ") else ""
    if cause == "hang.import":
        return f"python -X importtime -c 'import {module or 'torch'}', and in another terminal: py-spy dump --pid PID"
    if module:
        return f"python -X faulthandler -c 'import {module}'; python -m pip install --force-reinstall {module}"
    return "dmesg | tail -20; ocrlab doctor"


def where(ran: ProbeResult) -> str:
    """Return at which of its own stages a check was, as ` at STAGE`, or nothing."""
    stages = [answer["at"] for answer in ran.answers if "at" in answer]
    return f" at {stages[-1]}" if stages else ""


def stack(text: str) -> list[str]:
    """Return the frames of the thread that faulthandler names last, innermost first, without ours and importlib's."""
    block = text[max(text.rfind("Fatal Python error"), text.rfind("Current thread"), 0) :]
    frames = [(m["file"], m["line"], m["name"]) for m in FRAME.finditer(block)]
    theirs = [frame for frame in frames if not any(own in frame[0] for own in OURS)]
    return [f"{name} ({short(file)}:{line})" for file, line, name in theirs]


def short(file: str) -> str:
    """Return the last three parts of a path, which name package and file."""
    return "/".join(file.split("/")[-3:])


def last_line(text: str) -> str:
    """Return the last line that says something, cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-160:] if lines else ""
