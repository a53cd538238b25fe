"""Warnings that a program prints at every start: they explain nothing where something later says how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ocrlab.debug.diagnosis.evidence import CONTEXT, KERNEL_LOG, Hit
from ocrlab.debug.diagnosis.final_exception import CAPPED, HARMLESS, MILD, WARNED, WARNED_LINES, akin
from ocrlab.debug.diagnosis.log_lines import LogText

ILL = ("num.", "hw.", "wsl.")  # what ends no program: only a warning tells it
LASTING = (*ILL, "build.arch", "gpumem.", "kernel.", "data.index_range", "hang.")
UNSURE = 0.7  # of a warning after which the log says something else
SPEAKS = ("decisive", "strong", "likely", "possible", "fallback")


def outweighed(hits: list[Hit], texts: list[LogText]) -> list[Hit]:
    """Return the hits of a log without an exception at its end; a warning yields to what stands after it."""
    pages = {page.name: page for page in texts}
    mild = {id(hit) for hit in hits if is_mild(hit, pages.get(hit.evidence.file))}
    grave = [hit for hit in hits if id(hit) not in mild and hit.strength in SPEAKS]
    return [_beside(hit, grave, pages) if id(hit) in mild else hit for hit in hits]


def is_mild(hit: Hit, page: LogText | None) -> bool:
    """Tell whether a line only warns, by its level or by its own words."""
    if page is None or page.name in (CONTEXT, KERNEL_LOG) or hit.evidence.line is None:
        return False
    text, number = hit.evidence.text, hit.evidence.line
    if any(mild.search(text) for mild in MILD):
        return True
    return any(WARNED.search(above) for at, above in _lines(page) if number - WARNED_LINES <= at < number)


def _beside(hit: Hit, grave: Iterable[Hit], pages: dict[str, LogText]) -> Hit:
    """Return a warning with what it is worth: little beside an end that is not its own, less than sure beside words."""
    page, number = pages[hit.evidence.file], hit.evidence.line or 0
    later = [other for other in grave if other.evidence.file != page.name or (other.evidence.line or 0) > number]
    if any(other.cause == hit.cause for other in later) or hit.cause.startswith(ILL):
        return hit
    fits = hit.cause.startswith(LASTING)
    if later and not any(akin(hit, other) or _leads(hit, other) for other in later):
        return _at_most(hit, CAPPED)
    if not fits and any(at > number for at in page.progress):
        return _at_most(hit, CAPPED)
    spoken = any(at > number and not _continues(text) for at, text in _lines(page))
    return _at_most(hit, UNSURE) if spoken and not fits else hit


def _leads(hit: Hit, later: Hit) -> bool:
    """Tell whether what a line warns of can be why something else is said later."""
    if (hit.cause, later.cause) == ("loss.ctc_length", "num.nonfinite"):  # a label without a path costs infinitely much
        return True
    # What a person says of ranks that stand still is what a connection does that is tried for ever.
    return later.evidence.file == CONTEXT and all(side.cause.startswith("dist.") for side in (hit, later))


def _continues(text: str) -> bool:
    return not text.strip() or text.startswith((" ", "\t")) or HARMLESS.search(text) is not None


def _at_most(hit: Hit, most: float) -> Hit:
    return replace(hit, confidence=min(hit.confidence, most), ceiling=min(hit.ceiling, most))


def _lines(page: LogText) -> Iterable[tuple[int, str]]:
    return zip(page.numbers, page.text.split("\n"), strict=False)
