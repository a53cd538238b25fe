"""What became of a child that hangs, dies, floods or answers nonsense, which is itself a finding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ocrlab.hardware import host
from ocrlab.hardware.doctor.check_spec import Probe, fail, size, warn
from ocrlab.hardware.doctor.probe_runner import ProbeResult
from ocrlab.hardware.processes import exit_codes, faulthandler_text
from ocrlab.records import Check

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
OWN_FILES = ("ocrlab/hardware/", "<frozen importlib")
FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")


def ended_well(ran: ProbeResult) -> bool:
    """Return whether a child answered all it wanted to."""
    return ran.done and not ran.garbage and "raised" not in ran.answer


def checks(probe: Probe, ran: ProbeResult) -> list[Check]:
    """Return the findings on a child that did not end as it should; none for one that did."""
    if not ended_well(ran):
        return [_judge_failure(probe, ran)]
    if ran.ended in ("deadline", "idle"):
        observed = "answered, but its process never ended"
    elif ran.signal:
        observed = f"answered, and then died of {ran.signal} as its process ended"
    elif ran.ended == "flood":
        observed = f"answered, and printed more than {size(ran.printed)}"
    else:
        return []
    return [warn(f"{probe.name}: end", observed, "a process ends when its work is done", remedy(probe), probe.crash)]


def _judge_failure(probe: Probe, ran: ProbeResult) -> Check:
    """Return the finding on a child that did not answer."""
    at, frames, cause = f" at {ran.answer['at']}" if "at" in ran.answer else "", stack(ran.errors), None
    need, do = "an answer", ""
    if ran.ended == "unstarted":
        observed, need, do = f"the check could not be started: {ran.errors}", "a process can be started", "ulimit -u"
    elif ran.ended == "flood":
        observed = (
            f"printed more than {size(ran.printed)} and was stopped{at}; it ends: {last_line(ran.out, ran.errors)}"
        )
        need = "a check prints nothing"
    elif ran.ended == "stopped":
        observed, need, do = f"was interrupted after {ran.seconds:.0f} s", "time to end", "ocrlab doctor"
    elif ran.signal == "SIGILL" or ran.trapped:
        instruction = ran.answer.get("illegal")
        observed, need, do, cause = explain(instruction if isinstance(instruction, dict) else {}, frames)
        observed = f"died of SIGILL{at}: {observed}"
    elif ran.ended in ("deadline", "idle"):
        stuck = f"stuck in {frames[0]}" if frames else "in native code or in the kernel"
        idle = " without using the processor" if ran.ended == "idle" else ""
        observed = f"did not return within {ran.seconds:.0f} s{at}, {stuck}{idle}"
        need, cause = f"an answer within {probe.deadline:.0f} s", probe.hang or "hang.deadlock"
        do = remedy(probe, probe.hang)
    elif ran.signal:
        causes = dict.fromkeys(FROM_OUTSIDE, "ext.signal") | {"SIGABRT": "native.abort"}
        cause = causes.get(ran.signal) or probe.crash or "native.segv"
        observed = f"died of {ran.signal}{at}: {exit_codes.meaning(ran.signal) or 'it was ended from outside'}"
        observed, need = observed + (f"; last in {frames[0]}" if frames else ""), "the process lives"
        do = remedy(probe, cause)
    elif ran.garbage:
        observed, need = f"answered with garbage: {ran.garbage}", "one JSON object a line"
    elif "raised" in ran.answer:
        error = ran.answer["raised"] if isinstance(ran.answer["raised"], dict) else {}
        place, need = short(str(error.get("where"))), ""
        observed = f"the check failed: {error.get('type')}: {error.get('message')} ({place}){at}"
    elif "SyntaxError" in ran.errors and "probe_child.py" in ran.errors:
        observed, need, do = "this Python is too old to be asked", "Python 3.8 or newer", "uv venv --python 3.12"
    else:
        printed = last_line(ran.errors, ran.out)
        observed = f"exited with status {ran.code} and no answer{at}" + (f": {printed}" if printed else "")
    return fail(probe.name, observed, need, do or remedy(probe), cause)


def remedy(probe: Probe, cause: str | None = None) -> str:
    """Return what to do about a check that died: what fixes its cause, else the same by hand with every stack."""
    module = probe.name.removeprefix("import ") if probe.name.startswith("import ") else ""
    if cause == "hang.import":
        return f"python -X importtime -c 'import {module or 'torch'}', and in another terminal: py-spy dump --pid PID"
    by_hand = f"python -X faulthandler -c 'import {module}'; python -m pip install --force-reinstall {module}"
    return REMEDIES.get(cause or "") or (by_hand if module else "dmesg | tail -20; ocrlab doctor")


def stack(text: str) -> list[str]:
    """Return the frames of the thread that faulthandler names last, innermost first, without ours and importlib's."""
    block = text[max(text.rfind("Fatal Python error"), text.rfind("Current thread"), 0) :]
    frames = [frame for thread in faulthandler_text.parse(block) for frame in thread.frames]
    return [
        f"{frame.function} ({short(frame.file)}:{frame.line})"
        for frame in frames
        if not any(own in frame.file for own in OWN_FILES)
    ]


def short(file: str) -> str:
    """Return the last three parts of a path, which name package and file."""
    return "/".join(file.split("/")[-3:])


def last_line(*texts: str) -> str:
    """Return the last line that is not empty of the first text that has one, cut to a readable length."""
    lines = next(filter(str.strip, texts), "").strip().splitlines()
    return lines[-1].strip()[-160:] if lines else ""


PREFIXES = r"(?:66|f[023]|2e|36|3e|26|6[45]|4[0-9a-f])*"  # legacy and REX
VEX_0F38 = r"c4[02468ace]2.."  # a VEX instruction of the opcode map 0F38
INSTRUCTIONS = (  # how an instruction of x86-64 begins, in hex -> its instruction set, the flag Linux has for it
    ("0f0b|0fb9|0fff", "ud2", ""),
    ("62", "AVX-512 or AVX10", "avx512f"),
    ("c5", "AVX", "avx"),
    (VEX_0F38 + "(?:49|4b|5c|5e|6c)", "AMX", "amx_tile"),  # tile configuration, loads and products
    (VEX_0F38 + "[9ab][6-9a-f]", "FMA", "fma"),
    (VEX_0F38 + "f[23567]", "BMI", "bmi2"),
    (VEX_0F38 + "5[0-3]", "AVX-VNNI", "avx_vnni"),
    ("c4[02468ace]1....", "AVX", "avx"),
    ("c4......", "AVX2", "avx2"),
    (f"{PREFIXES}f3{PREFIXES}0fb8", "POPCNT", "popcnt"),
    (f"{PREFIXES}f3{PREFIXES}0fbd", "LZCNT or BMI1", "abm"),
    (f"{PREFIXES}f3{PREFIXES}0fbc", "LZCNT or BMI1", "bmi1"),
    (f"{PREFIXES}f2{PREFIXES}0f38f[01]", "SSE4.2", "sse4_2"),
    (f"{PREFIXES}0f38f[01]", "MOVBE", "movbe"),
    (f"{PREFIXES}0f38d[b-f]", "AES", "aes"),
    (f"{PREFIXES}0f38c[8-d]", "SHA", "sha_ni"),
    (f"{PREFIXES}0f38(?:0[0-9ab]|1[cde])", "SSSE3", "ssse3"),
    (f"{PREFIXES}0f38..", "SSE4", "sse4_1"),
    (f"{PREFIXES}0f3a", "SSE4.1", "sse4_1"),
    ("", "unknown", ""),
)
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
    return next((kind, flag) for pattern, kind, flag in INSTRUCTIONS if re.match(pattern, code.hex()))


def explain(instruction: dict[str, Any], frames: list[str], flags: set[str] | None = None) -> tuple[str, str, str, str]:
    """Return what an illegal instruction was, what is needed, what to do, and the cause.

    `instruction` is {"library", "offset", "code"} of `probe_child.py`, or empty where the process could not tell.
    """
    place = f"; Python was in {frames[0]}" if frames else ""
    if not instruction:
        do = "dmesg | grep 'invalid opcode' names the library"
        return f"an illegal instruction{place}", "a build for this processor", do, "build.cpu_isa"
    library, code = Path(str(instruction.get("library"))).name, bytes.fromhex(str(instruction.get("code", "")))
    kind, flag = name(code)
    observed = f"illegal instruction {code[:8].hex(' ')} in {library}+{int(instruction.get('offset', 0)):#x}"
    if kind == "ud2":
        observed += f": ud2, a trap that the library sets on purpose where it must never come{place}"
        return observed, "a library that does not trap", f"reinstall what {library} belongs to", "native.abort"
    has = flag in (host.cpu_flags() if flags is None else flags)
    if kind != "unknown":
        observed += f", an {kind} instruction; this processor {'has' if has else 'lacks'} {flag}"
    need = f"a build of {library} for this processor" + (f", or a processor with {flag}" if flag else "")
    caps = next((cap for part, cap in CAPS if part in library), "")
    do = "in a virtual machine pass the host's processor through (qemu -cpu host); else build the library from source"
    if caps and not has:
        do = f"try: env {caps} python ...; {do}"
    return observed + place, need, do, "build.cpu_isa"
