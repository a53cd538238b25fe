"""The findings as text for a terminal: a heading for each step, a line for each finding, and below it what to do."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ocrlab.hardware.doctor.doctor_job import STEPS, WORST, worst
from ocrlab.records import Check

SIGNS = {"ok": "✓", "warn": "▲", "fail": "✗", "skip": "·"}
COLOURS = {"ok": "32", "warn": "33", "fail": "1;31", "skip": "2"}  # SGR codes
NARROWEST, WIDEST = 60, 112  # columns; longer lines are hard to read
LABEL = 26  # columns of a finding's name; the longest has 29 and then takes a line of its own


@dataclass(frozen=True)
class TerminalStyle:
    """How a terminal is written to: its columns, and whether it takes colours."""

    columns: int = 80
    colours: bool = False

    @property
    def width(self) -> int:
        """The columns that are used."""
        return max(NARROWEST, min(self.columns, WIDEST))

    def paint(self, text: str, code: str) -> str:
        """Return a text in a colour, where there are colours; as it is for an empty code."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and code and text else text

    def sign(self, judgement: str) -> str:
        """Return sign and word of a judgement, seven columns wide: they differ without colours too."""
        return self.paint(f"{SIGNS[judgement]} {judgement:<5}", COLOURS[judgement])


def heading(step: int, look: TerminalStyle) -> str:
    """Return the line that opens a step."""
    title = f"{step:>2}  {STEPS[step - 1]} "
    return look.paint(title, "1") + look.paint("─" * (look.width - len(title)), "2")


def finding(check: Check, look: TerminalStyle) -> list[str]:
    """Return the lines of a finding; what is needed and what to do only where something is wrong."""
    dim = "2" if check.judgement == "skip" else ""
    indent = 12 + LABEL + 1
    name, observed = check.name, _wrap(check.observed, look.width - indent) or [""]
    lines = [f"    {look.sign(check.judgement)} {name:<{LABEL}}"]
    if len(name) <= LABEL:
        lines[0] += f" {look.paint(observed.pop(0), dim)}"
    lines = [lines[0].rstrip(), *(" " * indent + look.paint(line, dim) for line in observed)]
    if check.judgement in ("warn", "fail"):
        for word, text in (("need", check.need), ("do", check.do), ("cause", check.cause or "")):
            wrapped = _wrap(text, look.width - 18, break_long_words=False)
            painted = [look.paint(line, "1" if word == "do" else "") for line in wrapped]
            leads = [" " * 12 + look.paint(f"{word:<6}", "2"), *[" " * 18] * len(painted)]
            lines += [lead + line for lead, line in zip(leads, painted, strict=False)]
    return lines


def summary(checks: Sequence[Check], seconds: float, look: TerminalStyle) -> list[str]:
    """Return how it ended in one line: the worst judgement, how many of each, and how long it took."""
    word = worst(checks)
    return [look.paint(word.upper(), COLOURS[word]) + f"  {totals(checks)} · {seconds:.1f} s"]


def totals(checks: Sequence[Check]) -> str:
    """Return how many findings there are of each judgement, the worst first: `1 fail, 12 ok`."""
    counts = Counter(check.judgement for check in checks)
    return ", ".join(f"{counts[name]} {name}" for name in WORST if counts[name])


def _wrap(text: str, columns: int, *, break_long_words: bool = True) -> list[str]:
    return textwrap.wrap(text, columns, break_on_hyphens=False, break_long_words=break_long_words)
