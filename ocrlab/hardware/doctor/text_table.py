"""The ladder as text for a terminal: a heading a step, a line a finding, and what is needed and to be done below it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ocrlab.hardware.doctor.doctor_job import STEPS, worst
from ocrlab.records import Check

SIGNS = {"ok": "✓", "warn": "▲", "fail": "✗", "skip": "·"}
PLAIN = {"ok": "+", "warn": "!", "fail": "x", "skip": "-"}
COLOURS = {"ok": "32", "warn": "33", "fail": "1;31", "skip": "2"}  # SGR codes
ASCII = str.maketrans({"…": "...", "—": "-", "–": "-", "·": "-", "°": "", "’": "'", "×": "x"})
NARROWEST, WIDEST = 60, 112  # columns; longer lines are hard to read
LABEL = 26  # columns of a finding's name; the longest has 29 and then takes a line of its own
NOTES = (
    "TORCH_USE_CUDA_DSA does nothing in a stock wheel: it is a flag for building torch, not a variable for running it.",
    '"CPU capability usage" is what torch dispatches at run time on this processor, not what it was compiled for.',
    "`.cpu()` before `.item()` cannot avoid an illegal access: it happened before, and is only told there.",
    "No CUDA toolkit is needed to run torch: the wheel brings CUDA with it, the machine only has to bring the driver.",
)


@dataclass(frozen=True)
class TerminalStyle:
    """How a terminal is written to: its columns, whether it takes colours, and whether it can show more than ASCII."""

    columns: int = 80
    colours: bool = False
    unicode: bool = True

    @property
    def width(self) -> int:
        """The columns that are used."""
        return max(NARROWEST, min(self.columns, WIDEST))

    def paint(self, text: str, code: str) -> str:
        """Return a text in a colour, where there are colours."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and text else text

    def sign(self, judgement: str) -> str:
        """Return sign and word of a judgement, seven columns wide: no colour is needed to tell them apart."""
        sign = (SIGNS if self.unicode else PLAIN)[judgement]
        return self.paint(f"{sign} {judgement:<5}", COLOURS[judgement])

    def encode(self, text: str) -> str:
        """Return a text that the terminal can show."""
        return text if self.unicode else text.translate(ASCII).encode("ascii", errors="replace").decode()


def heading(step: int, look: TerminalStyle) -> str:
    """Return the line that opens a step."""
    title = f"{step:>2}  {STEPS[step - 1]} "
    return look.paint(title, "1") + look.paint(("─" if look.unicode else "-") * (look.width - len(title)), "2")


def finding(check: Check, look: TerminalStyle) -> list[str]:
    """Return the lines of a finding; one that is as it should be is told without what is needed."""
    name = f"{check.name:<{LABEL}}" if len(check.name) <= LABEL else check.name
    first, later = 12, 12 + LABEL + 1
    observed = textwrap.wrap(check.observed, look.width - later, break_on_hyphens=False) or [""]
    opened = f"    {look.sign(check.judgement)} {look.encode(name)}"
    if len(name) <= LABEL:
        lines = [f"{opened} {_dim(look.encode(observed.pop(0)), check, look)}".rstrip()]
    else:
        lines = [opened]
    lines += [" " * later + _dim(look.encode(line), check, look) for line in observed]
    if check.judgement in ("warn", "fail"):
        lines += _more("need", check.need, look, first) + _more("do", check.do, look, first)
        lines += _more("cause", check.cause or "", look, first)
    return lines


def summary(checks: Sequence[Check], seconds: float, look: TerminalStyle) -> list[str]:
    """Return how it ended in one line: the worst judgement, how many of each, and how long it took."""
    word = worst(checks)
    counts = {name: sum(check.judgement == name for check in checks) for name in SIGNS}
    totals = ", ".join(f"{counts[name]} {name}" for name in ("fail", "warn", "ok", "skip") if counts[name])
    dot = "·" if look.unicode else "-"
    return [look.paint(word.upper(), COLOURS[word]) + f"  {totals} {dot} {seconds:.1f} s"]


def notes(look: TerminalStyle) -> list[str]:
    """Return what is true where guides go wrong."""
    lines = [look.paint("True where many guides are wrong", "1")]
    for note in NOTES:
        wrapped = textwrap.wrap(note, look.width - 4, break_on_hyphens=False)
        lines += [("  • " if look.unicode else "  * ") + wrapped[0], *("    " + line for line in wrapped[1:])]
    return lines


def _more(word: str, text: str, look: TerminalStyle, indent: int) -> list[str]:
    if not text:
        return []
    lead = indent + 6
    wrapped = textwrap.wrap(look.encode(text), look.width - lead, break_on_hyphens=False, break_long_words=False)
    bold = "1" if word == "do" else ""
    painted = [look.paint(line, bold) if bold else line for line in wrapped]
    first = " " * indent + look.paint(f"{word:<6}", "2")
    return [first + painted[0], *(" " * lead + line for line in painted[1:])]


def _dim(text: str, check: Check, look: TerminalStyle) -> str:
    return look.paint(text, "2") if check.judgement == "skip" else text
