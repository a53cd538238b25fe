"""The data doctor: every page of a data set is read, judged box by box, and compared with the others.

One page is in memory at a time; of the others a fingerprint is stored. A page that cannot be used is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ocrlab.data.annotations import PageError
from ocrlab.data.audit import box_rules, ink_rules, page_image, page_rules
from ocrlab.data.audit.box_alignment import lies_well, look
from ocrlab.data.audit.finding import ERROR, NOTE, Finding
from ocrlab.data.audit.raw_annotations import Raw, pages

Progress = Callable[[int, int], None]

# Of the ink of a page is in its boxes: receipts have 0.6 and more, drawn ones on cloth 0.1, street photographs 0.04.
DOCUMENT = 0.09


@dataclass(slots=True)
class PageFindings:
    """What was found on one page, by its numbers and texts and by its pixels, and the share of its ink in boxes."""

    split: str
    by_numbers: list[Finding] = field(default_factory=list)
    by_pixels: list[Finding] = field(default_factory=list)
    boxed: float | None = None  # None where nothing was judged by pixels


def check(path: Path | str, splits: Sequence[str] | None = None, progress: Progress | None = None) -> list[Finding]:
    """Return what is wrong with a data folder or JSON file, in the order of its pages; without `splits` check all.

    Raises DataError if there is no such data; a bad page is a finding. `progress(done, pages)` is called after each.
    """
    readers = pages(path, splits)
    judged: list[PageFindings] = []
    prints: list[page_rules.PageFingerprint] = []
    misfits: list[page_rules.MisfitPage] = []
    for number, read in enumerate(readers, 1):
        raw = read()
        result = PageFindings(raw.split)
        try:
            _judge_page(raw, result, prints, misfits)
        except Exception as error:  # what nobody foresaw is an error of this page and does not end the check
            why = f"the check of this page broke off: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            result = PageFindings(raw.split, [raw.finding("unreadable_annotation", ERROR, why)])
        judged.append(result)
        if progress:
            progress(number, len(readers))
    notes = _no_documents(judged)
    silent = {note.split for note in notes}  # splits of which the pixels tell nothing
    findings: list[Finding] = []
    for result in judged:
        by_pixels = [] if result.split in silent else result.by_pixels
        flipped = {finding.box for finding in by_pixels if finding.kind == "swapped"}
        # Where x and y changed places the pixels know better than the order of points.
        findings += [f for f in result.by_numbers if f.box is None or f.box not in flipped] + by_pixels
    whole = [f for f in page_rules.exchanged_pages(misfits) if f.kind != "misplaced" or f.split not in silent]
    return findings + notes + whole + list(page_rules.duplicate_pages(prints))


def _no_documents(judged: list[PageFindings]) -> list[Finding]:
    """Return a note a split whose pages have most ink outside their boxes: their pixels decide nothing."""
    notes = []
    for split in dict.fromkeys(page.split for page in judged):
        shares = [page.boxed for page in judged if page.split == split and page.boxed is not None]
        if shares and np.median(shares) < DOCUMENT:
            why = (
                f"{np.median(shares):.0%} of what looks like ink is in boxes, the median of {len(shares)} pages: "
                "these are not fully boxed documents, and are judged by numbers and texts only"
            )
            notes.append(Finding("no_document", "*", split, None, None, NOTE, why))
    return notes


def _judge_page(
    raw: Raw, result: PageFindings, prints: list[page_rules.PageFingerprint], misfits: list[page_rules.MisfitPage]
) -> None:
    """Put what one page is like into `result`; adds its fingerprint, and the page if its boxes seem another page's."""
    findings = result.by_numbers
    findings += [raw.finding("unreadable_annotation", ERROR, why, line=line) for line, why in raw.faults]
    findings += [raw.finding("unreadable_annotation", NOTE, why) for why in raw.notes]
    good = []
    for box in raw.boxes:
        problem = box_rules.shape_problem(box)
        if problem:
            findings.append(raw.finding(*problem, box))
        else:
            good.append(box)
    image = header = None
    if raw.image is not None:
        try:
            image, header, warnings = page_image.decode(raw.image)
            if warnings:
                findings.append(raw.finding("broken_image", ERROR, f"the decoder says: {'; '.join(warnings)}"))
        except PageError as error:
            findings.append(raw.finding("unreadable_image", ERROR, error.problem.message))
    elif raw.lost or not raw.faults:
        why = raw.lost or "there is no image of that name"
        findings.append(raw.finding("unreadable_image", ERROR if raw.lost else NOTE, why))
    prints.append(page_rules.fingerprint(raw, image))
    if image is None or header is None or raw.annotation is None:
        findings += [*box_rules.number_findings(raw, good, None), *box_rules.text_findings(raw, good)]
        return
    image, tag = page_rules.exif(raw, image, header, [box.polygon for box in good])
    findings += [tag] if tag else []
    size = (image.shape[1], image.shape[0])
    sheet = page_image.sheet(image, [box.polygon for box in good])
    places = [(box, look(sheet, polygon)) for box, polygon in zip(good, sheet.polygons, strict=True)]
    counted = [(box, place) for box, place in places if not box.ignored]
    if counted:
        result.boxed = float((sheet.ink & (sheet.covered > 0)).sum() / max(sheet.ink.sum(), 1))
    well = sum(lies_well(place) for _, place in counted)
    if len(counted) >= page_rules.FEWEST and well < page_rules.POOR * len(counted):  # it is not judged box by box
        findings += page_rules.misfit_findings(raw, image, counted, well, misfits)
        findings += [*box_rules.number_findings(raw, good, None), *box_rules.text_findings(raw, good)]
        return
    numbers = [*box_rules.number_findings(raw, good, size), *box_rules.text_findings(raw, good)]
    pairs = [(f.box, int((f.other or "").rpartition(":")[2])) for f in numbers if f.kind == "duplicate_box"]
    twice = {line for pair in pairs for line in pair}
    findings += numbers
    result.by_pixels += ink_rules.findings(raw, places, sheet, twice)
