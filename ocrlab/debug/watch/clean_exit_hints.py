"""Warnings at the end of a program with exit status 0 whose output shows a failure all the same."""

from __future__ import annotations

import re

TRACEBACK = re.compile(r"^[^\S\n]*Traceback \(most recent call last\):", re.MULTILINE)
IGNORED = re.compile(r"^Exception ignored [^\n]*\n\Z", re.MULTILINE)  # in __del__: Python goes on as if nothing were
LINE = re.compile(r"[^\r\n]+")
SUFFERERS = {"the loss": r"loss\w{0,20}", "the norm of the gradients": r"grad(?:ient)?s?_?norm\w{0,10}"}
NUMBER = r"(?i){}\W{{1,4}}?[-+]?(?:(nan|inf)(?:inity)?\b|\d|\.\d)"
GAP = re.compile(r"^\.\.\. \d+ bytes left out \.\.\.$", re.MULTILINE)


def traceback(log: str) -> str:
    """Return a sentence about the first traceback in the output of a program with exit status 0; empty if none."""
    first = next((match for match in TRACEBACK.finditer(log) if not IGNORED.search(log, 0, match.start())), None)
    if first is None:
        return ""
    where = _line(log, first.start())
    begins = "holds" if where == "its output" else "begins"
    return f"exit status 0, but {where} {begins} a traceback; with a pipe use set -o pipefail"


def loss(log: str) -> str:
    """Return a sentence about a loss or a norm of gradients that is NaN or Inf to the end of a program with status 0.

    Empty where there is none. Some trainers print a loss of 0 in place of NaN, and only the norm tells.
    """
    for name, pattern in SUFFERERS.items():
        number, begins, value = re.compile(NUMBER.format(pattern)), -1, ""
        for line in LINE.finditer(log):
            values = [match[1] for match in number.finditer(line[0])]
            if values:
                bad = next(filter(None, values), "")
                begins, value = (line.start() if begins < 0 else begins, bad.lower()) if bad else (-1, "")
        if value:
            return f"exit status 0, but {name} is {value} to the end, from {_line(log, begins)} on"
    return ""


def _line(log: str, offset: int) -> str:
    before = log[:offset]
    return "its output" if GAP.search(before) else f"line {before.count(chr(10)) + 1} of its output"


def lost(stream: int, error: OSError) -> str:
    """Return a sentence about output that could not be written where it should be."""
    name = {1: "stdout", 2: "stderr"}[stream]
    return f"{name} of the watched program cannot be written: [Errno {error.errno}] {error.strerror}; output is lost"
