"""How a notebook ended when it did not end by itself: the word, the sentence, the verdict, and the exit status."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field
from typing import Any

from ocrlab.debug.diagnosis.hangs import hang_cause
from ocrlab.debug.watch.incident import judge
from ocrlab.hardware.processes import exit_codes, kernel_log, process_tree, stack_dumps
from ocrlab.records import Incident, Verdict
from ocrlab.reports.notebooks.jupyter_kernel import Kernel

WORDS = {"killed": "CRASHED", "hung": "STUCK", "failed": "FAIL", "stopped": "INCOMPLETE"}
STACKS_WITHIN = 1.0  # seconds for the stacks of everything that a stuck kernel started
LOG_LINES = 400  # of the kernel's stderr and the cell's output, for the diagnosis
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Ending:
    """What ended a notebook; `status` is killed, hung, failed or stopped, `cell` the number in its brackets."""

    status: str
    sentence: str
    exit_status: int
    cell: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    verdict: Verdict | None = None
    stack: str = ""
    texts: dict[str, str] = field(default_factory=dict)  # from which the verdict was made

    @property
    def word(self) -> str:
        """Return the word of the outcome block."""
        return WORDS[self.status]


def _place(cell: int | None, preposition: str = "in") -> str:
    return f"{preposition} cell [{cell}]" if cell is not None else "before its first cell"


def died(kernel: Kernel, cell: int | None, log: str) -> Ending:
    """Return how a notebook ended whose kernel is gone: by a signal (CRASHED), else with an exit code (FAIL)."""
    code = kernel.exit_code()
    name, place = exit_codes.signal_of_exit(code), _place(cell)
    if name:
        reason = exit_codes.meaning(name)  # what the signal means in general; the verdict says how sure it is here
        sentence = f"The kernel died of {name} {place}" + (f"; usually {reason}." if reason else ".")
        exit_status = 128 - code if code and code < 0 else code or 1
    elif code is None:
        sentence, exit_status = f"The kernel died {place}, cause unknown: its exit code could not be read.", 1
    else:
        sentence, exit_status = f"The kernel ended {place} with exit status {code}, and without a message.", code or 1
    status = "killed" if name or code is None else "failed"
    incident = _incident(kernel, status, log, code, name)
    return Ending(status, sentence, exit_status, cell, code, name, judge(incident), kernel.stack(), incident.texts)


def unstarted(kernel: Kernel, error: Exception) -> Ending:
    """Return how a notebook ended whose kernel is not there, died while it started, or never answered."""
    log = f"{error}\n{kernel.log()}"
    if kernel.exit_code() is not None:
        return died(kernel, None, log)
    incident = _incident(kernel, "failed", log)
    sentence = f"The kernel did not start. {error}".strip()
    return Ending("failed", sentence, 1, verdict=judge(incident), texts=incident.texts)


def stuck(kernel: Kernel, seconds: float, what: str, cell: int | None, log: str) -> Ending:
    """Return how a notebook ended whose cell ran past `what` (the limit's name); it still runs when this is called."""
    table = process_tree.snapshot()
    taken = stack_dumps.take([table[pid] for pid in kernel.family() if pid in table], STACKS_WITHIN)
    text = stack_dumps.text(taken)
    kernel.ask()  # afterwards: a watch that runs in the kernel hands the signal on to its program
    stack = kernel.stack()
    incident = _incident(kernel, "hung", log, stack=text or stack)
    with contextlib.suppress(Exception):  # a verdict without the cause of the hang is better than none
        incident.facts["hang"] = hang_cause.hang_fact(taken, incident.facts, text)
    sentence = f"Cell [{cell}] still ran after {seconds:g} s, the limit of {what}, and was ended."
    return Ending("hung", sentence, 124, cell, None, None, judge(incident), stack or text, incident.texts)


def late(seconds: float, cell: int | None) -> Ending:
    """Return how a notebook ended that had no time left for its next cell; `cell` was the last one that ran."""
    sentence = f"The limit of {seconds:g} s for the whole notebook was reached {_place(cell, 'after')}."
    return Ending("hung", sentence, 124)


def failed(cell: int | None, error: str, log: str, traceback: str) -> Ending:
    """Return how a notebook ended that an exception stopped; `error` is its type and message."""
    texts = {"log_tail.txt": _tail(log), "traceback.txt": COLOURS.sub("", traceback)}
    verdict = judge(Incident("failed", 1, None, {name: text for name, text in texts.items() if text}))
    sentence = f"It stopped in cell [{cell}]. {COLOURS.sub('', error)}".strip()
    return Ending("failed", sentence, 1, cell, verdict=verdict)


def stopped(cell: int | None, error: BaseException) -> Ending:
    """Return how a notebook ended that somebody stopped, by Ctrl-C or by a signal to the process that runs it."""
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
    name = exit_codes.signal_of_exit(code) or "SIGINT"
    return Ending("stopped", f"It was stopped by {name} {_place(cell)}; what comes after it never ran.", code, cell)


def _incident(
    kernel: Kernel, status: str, log: str, code: int | None = None, name: str | None = None, stack: str = ""
) -> Incident:
    pids = sorted(kernel.pids | {pid for pid in (kernel.pid,) if pid})
    facts: dict[str, Any] = {"main_pid": kernel.pid, "pids": pids, "run_seconds": time.monotonic() - kernel.began}
    kills = kernel.kills.count()
    facts |= {"oom_kills": kills} if kills is not None else {}
    facts |= {"ended_by": "limit"} if status == "hung" else {}
    own = re.compile(rf"NVRM|\b(?:{'|'.join(map(str, pids)) or 'none'})\b")  # not a neighbour's trouble
    kernel_lines = "\n".join(line for line in kernel_log.lines(kernel.began).value or [] if own.search(line))
    texts = {"log_tail.txt": _tail(log), "stacks.txt": stack or kernel.stack(), "kernel_log.txt": kernel_lines}
    exit_code = code if code is None or code >= 0 else None
    return Incident(status, exit_code, name, texts, context="the kernel of a notebook", facts=facts)


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-LOG_LINES:])
