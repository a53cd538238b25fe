"""What is said at the end of a program that did well by its exit status, though its output tells another story."""

from __future__ import annotations

import re

TRACEBACK = re.compile(r"^[^\S\n]*Traceback \(most recent call last\):", re.MULTILINE)
IGNORED = re.compile(r"^Exception ignored [^\n]*\n\Z", re.MULTILINE)  # in __del__: Python goes on as if nothing were
LINE = re.compile(r"[^\r\n]+")
NONFINITE = re.compile(r"(?i)loss\w{0,20}\W{1,4}?[-+]?(nan|inf)(?:inity)?\b")
LOSS = re.compile(r"(?i)loss\w{0,20}\W{1,4}?[-+]?(?:\d|\.\d|nan\b|inf(?:inity)?\b)")
GAP = re.compile(r"^\.\.\. \d+ bytes left out \.\.\.$", re.MULTILINE)


def traceback(log: str) -> str:
    """Return a sentence about the first traceback in the output of a program with exit status 0; empty if none."""
    found = next((one for one in TRACEBACK.finditer(log) if not IGNORED.search(log, 0, one.start())), None)
    if found is None:
        return ""
    where = _line(log, found.start())
    begins = "holds" if where == "its output" else "begins"
    return f"exit status 0, but {where} {begins} a traceback; with a pipe use set -o pipefail"


def loss(log: str) -> str:
    """Return a sentence about a loss that is NaN or Inf to the end of a program with exit status 0; empty if none."""
    begins, value = -1, ""
    for line in LINE.finditer(log):
        if LOSS.search(line[0]):
            found = NONFINITE.search(line[0])
            begins, value = (line.start() if begins < 0 else begins, found[1].lower()) if found else (-1, "")
    return f"exit status 0, but the loss is {value} to the end, from {_line(log, begins)} on" if value else ""


def _line(log: str, offset: int) -> str:
    before = log[:offset]
    return "its output" if GAP.search(before) else f"line {before.count(chr(10)) + 1} of its output"


def lost(stream: int, error: OSError) -> str:
    """Return a sentence about output that could not be written where it should be."""
    name = {1: "stdout", 2: "stderr"}[stream]
    return f"{name} of the watched program cannot be written: [Errno {error.errno}] {error.strerror}; output is lost"
