"""The data doctor: every page of a data set is read, looked at box by box, and compared with the others.

One page is in memory at a time; of the others a fingerprint is kept. A page that cannot be used is a finding.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ocrlab.data.annotations import PageError
from ocrlab.data.audit import box_rules, missing_boxes, page_image, page_rules
from ocrlab.data.audit.box_alignment import Place, lies_well, look, settled
from ocrlab.data.audit.finding import ERROR, NOTE, Finding
from ocrlab.data.audit.raw_annotations import Raw, pages
from ocrlab.geometry import Polygon

Progress = Callable[[int, int], None]

# Of the ink of a page is in its boxes: receipts have 0.6 and more, drawn ones on cloth 0.1, street photographs 0.04.
DOCUMENT = 0.09


@dataclass(slots=True)
class PageFindings:
    """What was found on one page, by its numbers and texts and by its pixels, and the share of its ink in boxes."""

    split: str
    by_numbers: list[Finding]
    by_pixels: list[Finding] = field(default_factory=list)
    boxed: float | None = None  # None where nothing was judged by pixels


def check(path: Path | str, splits: Sequence[str] | None = None, progress: Progress | None = None) -> list[Finding]:
    """Return what is wrong with a data folder or JSON, page by page in their order; without `splits` with all of it.

    Raises DataError if there is no such data; a bad page is a finding. `progress(done, pages)` is called after each.
    """
    readers = pages(path, splits)
    looked: list[PageFindings] = []
    prints: list[page_rules.PageFingerprint] = []
    strangers: list[page_rules.MisfitPage] = []
    for number, read in enumerate(readers, 1):
        looked.append(_guarded(read(), prints, strangers))
        if progress:
            progress(number, len(readers))
    notes = _no_documents(looked)
    silent = {note.split for note in notes}
    findings = [finding for page in looked for finding in _reported(page, page.split in silent)]
    whole = [f for f in page_rules.exchanged_pages(strangers) if f.kind != "misplaced" or f.split not in silent]
    return findings + notes + whole + list(page_rules.duplicate_pages(prints))


def _guarded(
    raw: Raw, prints: list[page_rules.PageFingerprint], strangers: list[page_rules.MisfitPage]
) -> PageFindings:
    """Return the findings of one page; what nobody foresaw is an error of this page and does not end the check."""
    try:
        return page(raw, prints, strangers)
    except Exception as error:
        why = f"the check of this page broke off: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return PageFindings(raw.split, [_whole(raw, "unreadable_annotation", ERROR, why)])


def _no_documents(looked: list[PageFindings]) -> list[Finding]:
    """Return a note a split whose pages have most ink outside their boxes: nothing there can be told by pixels."""
    notes = []
    for split in dict.fromkeys(page.split for page in looked):
        shares = [page.boxed for page in looked if page.split == split and page.boxed is not None]
        if shares and np.median(shares) < DOCUMENT:
            why = (
                f"{np.median(shares):.0%} of what looks like ink is in boxes, the median of {len(shares)} pages: "
                "these are no fully boxed documents, and are judged by numbers and texts only"
            )
            notes.append(Finding("no_document", "*", split, None, None, NOTE, why))
    return notes


def _reported(page: PageFindings, silent: bool) -> list[Finding]:
    """Return what is told of a page: where x and y changed places the pixels know better than the order of points."""
    if silent:
        return page.by_numbers
    flipped = {finding.box for finding in page.by_pixels if finding.kind == "swapped"}
    return [f for f in page.by_numbers if f.box is None or f.box not in flipped] + page.by_pixels


def page(raw: Raw, prints: list[page_rules.PageFingerprint], strangers: list[page_rules.MisfitPage]) -> PageFindings:
    """Return what one page is like; adds its fingerprint, and the page itself if its boxes seem another page's."""
    findings = [_whole(raw, "unreadable_annotation", ERROR, why, line) for line, why in raw.faults]
    findings += [_whole(raw, "unreadable_annotation", NOTE, why) for why in raw.notes]
    broken, good = box_rules.split_usable(raw)
    findings += broken
    image = header = None
    if raw.image is None:
        why = raw.lost or ("" if raw.faults else "there is no image of that name")
        findings += [_whole(raw, "unreadable_image", ERROR if raw.lost else NOTE, why)] if why else []
    else:
        try:
            image, header, warnings = page_image.decode(raw.image)
            findings += (
                [_whole(raw, "broken_image", ERROR, f"the decoder says: {'; '.join(warnings)}")] if warnings else []
            )
        except PageError as error:
            findings.append(_whole(raw, "unreadable_image", ERROR, error.problem.message))
    prints.append(_print(raw, image))
    if image is None or header is None or raw.annotation is None:
        return PageFindings(
            raw.split,
            findings + list(box_rules.number_findings(raw, good, None)) + list(box_rules.text_findings(raw, good)),
        )
    polygons = [polygon for index in good if (polygon := raw.boxes[index].polygon) is not None]
    image, tag = page_rules.exif(raw, image, header, polygons)
    looked = _judge_pixels(raw, good, image, polygons, strangers)
    return replace(looked, by_numbers=findings + ([tag] if tag else []) + looked.by_numbers)


def _judge_pixels(
    raw: Raw,
    good: list[int],
    image: page_image.Image,
    polygons: list[Polygon],
    strangers: list[page_rules.MisfitPage],
) -> PageFindings:
    """Return what the pixels say: about the page as a whole, or, where it is the right one, about its boxes."""
    size = (image.shape[1], image.shape[0])
    counted = [index for index in good if not raw.boxes[index].ignored]
    sheet = page_image.sheet(image, polygons)
    boxed = float((sheet.ink & (sheet.covered > 0)).sum() / max(sheet.ink.sum(), 1)) if counted else None
    places = {index: look(sheet, p) for index, p in zip(good, sheet.polygons, strict=True) if p is not None}
    well = sum((place := places[index]) is not None and lies_well(place) for index in counted)
    if len(counted) >= page_rules.FEWEST and well < page_rules.POOR * len(counted):
        chosen = [p for index in counted if (p := raw.boxes[index].polygon) is not None]
        stay = sum((place := places[index]) is not None and settled(place) for index in counted) / len(counted)
        explanation = page_rules.explain(image, chosen) if stay < page_rules.GOOD else None
        whole = [_whole(raw, explanation[0], ERROR, explanation[1])] if explanation else []
        if stay >= page_rules.GOOD:
            why = (
                f"{well} of its {len(counted)} boxes lie tightly on ink, {stay:.0%} at their best place: not by pixels"
            )
            whole.append(_whole(raw, "misplaced", NOTE, why))
        elif explanation is None and raw.image is not None:
            strangers.append(page_rules.MisfitPage(raw, raw.image, chosen, well / len(counted), size))
        whole += list(box_rules.number_findings(raw, good, None)) + list(box_rules.text_findings(raw, good))
        return PageFindings(raw.split, whole, boxed=boxed)
    findings = list(box_rules.number_findings(raw, good, size)) + list(box_rules.text_findings(raw, good))
    flipped = list(box_rules.mirrored_findings(raw, places, sheet))
    lines_flipped = {finding.box for finding in flipped}
    pairs = [(finding.box, finding.other or "") for finding in findings if finding.kind == "duplicate_box"]
    twice = {line for later, other in pairs for line in (later, int(other.rpartition(":")[2]))}
    lines = missing_boxes.lines(sheet)
    wrong = [f for f in box_rules.placement_findings(raw, places, sheet.text) if f.box not in twice | lines_flipped]
    reported = twice | lines_flipped | {finding.box for finding in wrong}
    wrong += [f for f in box_rules.displaced_findings(raw, places, lines, sheet) if f.box not in reported]
    at: dict[int | None, Place | None] = {raw.boxes[index].line: place for index, place in places.items()}
    beside = [(np.array(finding.polygon, np.float32), at.get(finding.box)) for finding in wrong][: missing_boxes.MOST]
    return PageFindings(
        raw.split,
        findings,
        flipped + wrong + list(box_rules.unboxed_findings(raw, lines, sheet, beside, box_rules.margin(places))),
        boxed,
    )


def _print(raw: Raw, image: page_image.Image | None) -> page_rules.PageFingerprint:
    texts = frozenset(box.text.strip() for box in raw.boxes if len(box.text.strip()) > 2 and not box.ignored)
    if raw.image is None or image is None:
        return page_rules.PageFingerprint(raw.name, raw.split, None, None, None, None, texts)
    digest = hashlib.sha256(raw.image.read_bytes()).hexdigest()
    bits, thumb = page_image.fingerprint(image)
    return page_rules.PageFingerprint(raw.name, raw.split, os.path.realpath(str(raw.image)), digest, bits, thumb, texts)


def _whole(raw: Raw, kind: str, severity: str, why: str, line: int | None = None) -> Finding:
    return Finding(kind, raw.name, raw.split, line, None, severity, why)
