"""What is said at the end of a program that did well by its exit status, though its output tells another story."""

from __future__ import annotations

import re

TRACEBACK = re.compile(r"^[^\S\n]*Traceback \(most recent call last\):", re.MULTILINE)
GAP = re.compile(r"^\.\.\. \d+ bytes left out \.\.\.$", re.MULTILINE)


def traceback(log: str) -> str:
    """Return a sentence about the first traceback in the output of a program with exit status 0; empty if none."""
    found = TRACEBACK.search(log)
    if found is None:
        return ""
    before = log[: found.start()]
    where = "its output" if GAP.search(before) else f"line {before.count(chr(10)) + 1} of its output"
    begins = "holds" if where == "its output" else "begins"
    return f"exit status 0, but {where} {begins} a traceback; with a pipe use set -o pipefail"


def lost(stream: int, error: OSError) -> str:
    """Return a sentence about output that could not be written where it should be."""
    name = {1: "stdout", 2: "stderr"}[stream]
    return f"{name} of the watched program cannot be written: [Errno {error.errno}] {error.strerror}; output is lost"
