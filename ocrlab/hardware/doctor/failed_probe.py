"""A check that hangs, dies, floods or answers nonsense is itself a finding: what became of its child, in words."""

from __future__ import annotations

import re
from typing import Any

from ocrlab.hardware.doctor.check_spec import Probe, fail, size, warn
from ocrlab.hardware.doctor.illegal_instruction import explain
from ocrlab.hardware.doctor.probe_runner import ProbeResult
from ocrlab.records import Check

FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)
REMEDIES = {  # cause of a hang or a crash -> the command that mends it, or shows more
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
    """Return what to do next about a check that died: what mends its cause, else the same by hand with every stack."""
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
