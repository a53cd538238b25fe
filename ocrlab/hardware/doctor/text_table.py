"""The findings as text for a terminal: a heading for each step, a line for each finding, and below it what to do."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ocrlab.hardware.doctor.doctor_job import STEPS, WORST, worst
from ocrlab.records import Check

SIGNS = {"ok": "✓", "warn": "▲", "fail": "✗", "skip": "·"}  # they differ without colours too
COLOURS = {"ok": "32", "warn": "33", "fail": "1;31", "skip": "2"}  # SGR codes
NARROWEST, WIDEST = 60, 112  # columns; longer lines are hard to read
LABEL = 26  # columns of a finding's name; the longest has 29 and then takes a line of its own
NOTES = (
    "TORCH_USE_CUDA_DSA does nothing in a stock wheel: it is a flag for building torch, not a variable for running it.",
    '"CPU capability usage" is what torch dispatches at run time on this processor, not what it was compiled for.',
    "`.cpu()` before `.item()` cannot avoid an illegal access: it happened before, and only surfaces there.",
    "No CUDA toolkit is needed to run torch: the wheel brings CUDA with it, the machine only has to bring the driver.",
)


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


def heading(step: int, look: TerminalStyle) -> str:
    """Return the line that opens a step."""
    title = f"{step:>2}  {STEPS[step - 1]} "
    return look.paint(title, "1") + look.paint("─" * (look.width - len(title)), "2")


def finding(check: Check, look: TerminalStyle) -> list[str]:
    """Return the lines of a finding; what is needed and what to do only where something is wrong."""
    dim, indent = "2" if check.judgement == "skip" else "", 12 + LABEL + 1
    observed = _wrap(check.observed, look.width - indent) or [""]
    sign = look.paint(f"{SIGNS[check.judgement]} {check.judgement:<5}", COLOURS[check.judgement])
    beside = f" {look.paint(observed.pop(0), dim)}" if len(check.name) <= LABEL else ""
    lines = [f"    {sign} {check.name:<{LABEL}}{beside}".rstrip()]
    lines += [" " * indent + look.paint(line, dim) for line in observed]
    if check.judgement in ("warn", "fail"):
        for word, text in (("need", check.need), ("do", check.do), ("cause", check.cause or "")):
            for number, line in enumerate(_wrap(text, look.width - 18, break_long_words=False)):
                lead = " " * 18 if number else " " * 12 + look.paint(f"{word:<6}", "2")
                lines.append(lead + look.paint(line, "1" if word == "do" else ""))
    return lines


def summary(checks: Sequence[Check], seconds: float, look: TerminalStyle) -> str:
    """Return how it ended in one line: the worst judgement, how many of each, and how long it took."""
    word = worst(checks)
    return look.paint(word.upper(), COLOURS[word]) + f"  {totals(checks)} · {seconds:.1f} s"


def totals(checks: Sequence[Check]) -> str:
    """Return how many findings there are of each judgement, the worst first: `1 fail, 12 ok`."""
    counts = Counter(check.judgement for check in checks)
    return ", ".join(f"{counts[name]} {name}" for name in WORST if counts[name])


def notes(look: TerminalStyle) -> list[str]:
    """Return what is true where guides go wrong."""
    lines = [textwrap.fill(note, look.width, initial_indent="  • ", subsequent_indent="    ") for note in NOTES]
    return [look.paint("What many guides get wrong", "1"), *lines]


def _wrap(text: str, columns: int, *, break_long_words: bool = True) -> list[str]:
    return textwrap.wrap(text, columns, break_on_hyphens=False, break_long_words=break_long_words)
