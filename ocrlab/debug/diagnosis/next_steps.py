"""What to do next: the evidence that is missing where no cause is sure, and the experiments that are left."""

from __future__ import annotations

import re
from dataclasses import replace

from ocrlab.debug.diagnosis import catalogue, evidence, failure_place, final_exception
from ocrlab.debug.diagnosis.log_records import RAISED
from ocrlab.debug.diagnosis.log_text import LogText
from ocrlab.hardware.processes import exit_codes
from ocrlab.records import Cause, Incident, Verdict

OWN = "nothing from outside: this is the program's own error, "
UNEXPLAINED = "what caused its error, "
NOTHING = "no error in this log"
NO_LOG = "no log lines recognised; here is how to get them"
HOW_TO_GET_A_LOG = (
    NO_LOG,
    "python train.py 2>&1 | tee train.log; ocrlab diagnose train.log    (all that it prints, traceback included)",
    "ocrlab watch -- python train.py    (for a crash without an error or a hang: signals, stacks and the kernel log)",
    "ocrlab doctor    (where the machine is in doubt: driver, GPU, installed packages, limits)",
)
# What a program says that catches its exception and tells only the message, or that never raised one.
WORDS = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|^(?:[Ee]rror|[Ff]atal|FAILED)\b ?[:!]|^[\w./-]{1,80}: (?:fatal )?error: "
)
USAGE = re.compile(r"^[\w./-]{1,80}: error: ")
OURS = re.compile(r"^ocrlab: [^\n]{1,400}\b(?:Given|Needed): ")  # as `ocrlab.errors` says what was wrong
# What a launcher raises when the program that it started failed of an exception.
RELAYED = re.compile(r"ChildFailedError|Process(?:Raised|Exited)Exception|ExecuteUserScriptError")
RELAYED_SAYS = (
    "the traceback of the program itself: `{}` ({} line {}) only says that one of its processes failed; it stands"
    " above, or in that process's own output (torchrun --redirects 3 --log-dir DIR keeps one file for each rank)"
)
IMPORTED = re.compile(r"(?:ImportError|ModuleNotFoundError)\b")
FEW = 40  # lines at the end of a log in which last words stand
SENDER = 'journalctl -k --since "1 hour ago" | grep -iE "oom|killed"'
READS = (
    "a line of the OOM killer: memory; none: somebody sent it, and the scheduler's log or `ocrlab diagnose --explain "
    "ext.signal`, which has the command that catches the sender, tells who"
)
COPIES = "COMMAND with num_workers=0    (fits: copies in the workers; killed again: the main process)"
LEFT = {
    "host.oom_kill": f"{SENDER}    ({READS})",
    "ext.signal": f"{SENDER}    ({READS})",
    "loader.worker_killed": f"{SENDER}    ({READS}); then {COPIES}",
    "loader.worker_crash": "COMMAND with worker_init_fn=lambda _: faulthandler.enable()    (names the line); each "
    "index of that worker alone with num_workers=0 names the sample",
    "loader.hang_sample": "dataset[INDEX] of the sample that the evidence names, alone, with num_workers=0    (stands "
    "still too: that sample or its file; returns: the worker)",
    "hang.deadlock": "py-spy dump --native --pid PID ; gdb -p PID -batch -ex 'thread apply all bt'    (native frames: "
    "which lock, and which thread holds it)",
}


# By the beginning of the id of the first cause.
WOULD_TELL = {
    ("kernel.", "data.index_range", "hw."): "the same run with CUDA_LAUNCH_BLOCKING=1 (ocrlab watch --debug-cuda)",
    ("gpumem.",): "nvidia-smi at the moment of the error, and memory_allocated() at each step",
    ("loader.", "data.sample"): "the output with num_workers=0",
    ("build.", "driver."): "ocrlab doctor --json of that machine",
}


def own_error(verdict: Verdict) -> str:
    """Return the error of the program itself that ended it, and where; empty where a cause or no error is known."""
    own = (thing.removeprefix(OWN) for thing in verdict.missing if thing.startswith(OWN) and not verdict.causes)
    return next(own, "")


def missing_evidence(incident: Incident, causes: list[Cause], texts: list[LogText]) -> list[str]:
    """Return what would make a verdict certain; where no cause is known, first what the program itself has said."""
    name, facts = causes[0].id if causes else "", incident.facts
    hung, stacks = incident.status in ("hung", "suspected"), "stacks.txt" in incident.texts
    wanted: list[str] = []
    if hung and not causes and stacks:
        wanted.append("the same stacks a minute later (ocrlab watch --silence 60): what does not move is what hangs")
    if not causes and not hung:
        wanted += [_error(incident, texts)]
        wanted += ["the exit code or signal"] if incident.exit_code is None and not incident.signal else []
    wanted += [str(facts["silent"])] if facts.get("silent") else []
    if name in ("host.oom_kill", "loader.worker_killed", "ext.signal", "loader.worker_exit", "notebook.kernel_died"):
        if "oom_kills" not in facts:
            wanted.append("cgroup counters (oom_kill) before and after")
        elif not facts["oom_kills"]:
            wanted.append("who sent the signal (bpftrace, auditd, the scheduler's log)")
    if not stacks and (hung or name.startswith(("hang.", "loader.hang", "loader.fork", "dist."))):
        wanted.append("stacks of every process (ocrlab watch --silence 60)")
    wanted += [what for ids, what in WOULD_TELL.items() if name.startswith(ids)]
    ended_itself = incident.exit_code is not None and exit_codes.signal_of_exit(incident.exit_code) is None
    of_the_kernel = not hung or name.startswith(("hw.", "hang.gpu", "hang.cuda", "hang.stopped", "driver."))
    of_the_kernel &= not name.startswith(("build.", "user.", "ckpt.", "data.", "io."))
    unread = evidence.KERNEL_LOG not in incident.texts and not facts.get("kernel_log_read")
    if not ended_itself and of_the_kernel and unread:
        wanted.append("kernel log (dmesg) of the time of the failure")
    return wanted


def has_no_log(incident: Incident, texts: list[LogText]) -> bool:
    """Return whether a pasted text, without a context beside it, has no line that looks printed by a program."""
    described = incident.status == "log" and not (incident.context or incident.exit_code or incident.signal)
    return described and final_exception.find_uncaught(texts) is None and not any(page.printed for page in texts)


def _error(incident: Incident, texts: list[LogText]) -> str:
    """Return the exception that no signature explains, and where; else the last words of the program."""
    end = final_exception.find_uncaught(texts)
    if end is not None:
        if RELAYED.search(end.own.text):
            return RELAYED_SAYS.format(end.own.text.strip()[:160], end.page.name, end.own.number)
        error = f"`{end.own.text.strip()[:160]}`{failure_place.frame_place(end.own)}"
        error += f" ({end.page.name} line {end.own.number})"
        return OWN + error if end.plain or IMPORTED.match(end.own.text) else f"{UNEXPLAINED}{error}"
    if final_exception.ended_well(texts) or not any(RAISED.match(line.text) for page in texts for line in page.lines):
        return _last_words(incident, texts) or f"{NOTHING}{_last_line(incident, texts)}"
    return "the first error line with its traceback"


def _last_words(incident: Incident, texts: list[LogText]) -> str:
    """Return the last line in which the program itself speaks of an error, without an exception."""
    if incident.status == "log" and final_exception.ended_well(texts):
        return ""
    for page in texts:
        lines = page.lines[-FEW:]
        errors = [line for line in lines if WORDS.search(line.text) or OURS.match(line.text)]
        if errors and page.name not in (final_exception.CONTEXT, final_exception.KERNEL_LOG):
            number, text = errors[-1].number, errors[-1].text.strip()
            if OURS.match(text):
                return f"{OWN}`{text.removeprefix('ocrlab: ')}` ({page.name} line {number})"
            quoted = f"`{text[:200]}` ({page.name} line {number})"
            asked = text.lower().startswith("error: ") and any(line.text.startswith("Usage: ") for line in lines)
            if USAGE.match(text) or asked:  # argparse; click, fire
                return f"{OWN}{quoted}, of the words that it was called with"
            return f"its traceback: the program says only {quoted}; log.exception(...) or a bare `raise` would print it"
    return ""


def _last_line(incident: Incident, texts: list[LogText]) -> str:
    """Return how a program ended that had nothing to say, and what it said before."""
    wanted = "; if the program failed, the first error line with its traceback"
    if incident.status == "log":
        wanted += "; if it stands still, its stacks: py-spy dump --pid PID > stacks.txt, or ocrlab watch -- COMMAND"
    if incident.status != "failed" or incident.exit_code is None or incident.signal:
        return wanted
    last = next((text.text.rstrip().rpartition("\n")[2].strip() for text in texts if text.text.strip()), "")
    after = f", after `{last[:120]}`" if last else ""
    return f"; it ended itself with status {incident.exit_code} (sys.exit, os._exit, a library's exit()){after}"


def replace_experiments(causes: list[Cause], incident: Incident) -> list[Cause]:
    """Return the causes; where the watcher made the incident their experiments are those that it has not done."""
    if not watched(incident):
        return causes
    left = {**LEFT, "host.oom_kill": COPIES} if incident.facts.get("oom_kills") else LEFT
    entries = catalogue.load().entries  # an experiment of the form that was seen here stays
    generic = [cause.id in left and cause.experiment == entries[cause.id].experiment for cause in causes]
    return [replace(c, experiment=left[c.id]) if old else c for c, old in zip(causes, generic, strict=True)]


def watched(incident: Incident) -> bool:
    """Return whether `ocrlab watch` has seen the program end: then its facts name the main process."""
    return incident.status != "log" and "main_pid" in incident.facts
