"""What became of a child that hangs, dies, floods or answers nonsense, which is itself a finding."""

from __future__ import annotations

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
    "build.cpu_isa": "dmesg | grep 'invalid opcode' names the library: install a build of it for this processor; in a "
    "virtual machine pass the host's processor through (qemu -cpu host)",
}
OWN_FILES = ("ocrlab/hardware/", "<frozen importlib")
SIGNALS = dict.fromkeys(("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT"), "ext.signal")
SIGNALS |= {"SIGABRT": "native.abort", "SIGILL": "build.cpu_isa"}


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
    printed, need, do = last_line(ran.errors or ran.out), "an answer", ""
    if ran.ended == "unstarted":
        observed, need, do = f"the check could not be started: {ran.errors}", "a process can be started", "ulimit -u"
    elif ran.ended == "flood":
        observed = f"printed more than {size(ran.printed)} and was stopped{at}; it ends: "
        observed, need = observed + last_line(ran.out or ran.errors), "a check prints nothing"
    elif ran.ended == "stopped":
        observed, need, do = f"was interrupted after {ran.seconds:.0f} s", "time to end", "ocrlab doctor"
    elif ran.ended in ("deadline", "idle"):
        stuck = f"stuck in {frames[0]}" if frames else "in native code or in the kernel"
        idle = " without using the processor" if ran.ended == "idle" else ""
        observed = f"did not return within {ran.seconds:.0f} s{at}, {stuck}{idle}"
        need, cause = f"an answer within {probe.deadline:.0f} s", probe.hang or "hang.deadlock"
        do = remedy(probe, probe.hang)
    elif ran.signal:
        cause = SIGNALS.get(ran.signal) or probe.crash or "native.segv"
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
        observed = f"exited with status {ran.code} and no answer{at}" + (f": {printed}" if printed else "")
    return fail(probe.name, observed, need, do or remedy(probe), cause)


def remedy(probe: Probe, cause: str | None = None) -> str:
    """Return what to do about a check that died: what fixes its cause, else the same by hand with every stack."""
    if cause in REMEDIES:
        return REMEDIES[cause]
    module = probe.name.removeprefix("import ") if probe.name.startswith("import ") else ""
    if cause == "hang.import":
        return f"python -X importtime -c 'import {module or 'torch'}', and in another terminal: py-spy dump --pid PID"
    if module:
        return f"python -X faulthandler -c 'import {module}'; python -m pip install --force-reinstall {module}"
    return "dmesg | tail -20; ocrlab doctor"


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


def last_line(text: str) -> str:
    """Return the last line that is not empty, cut to a readable length."""
    return next((line.strip()[-160:] for line in reversed(text.splitlines()) if line.strip()), "")
