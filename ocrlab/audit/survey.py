"""The data doctor: every page of a data set is read, looked at box by box, and compared with the others.

One page is in memory at a time; of the others a fingerprint is kept. A page that cannot be used is a finding.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ocrlab.audit import alike, boxes, frame, ink, missing, picture
from ocrlab.audit.finding import ERROR, NOTE, Finding
from ocrlab.audit.place import lies_well, look
from ocrlab.audit.source import Raw, pages
from ocrlab.data.page import PageError
from ocrlab.geometry import Polygon

Progress = Callable[[int, int], None]


def check(path: Path | str, splits: Sequence[str] | None = None, progress: Progress | None = None) -> list[Finding]:
    """Return what is wrong with a data folder or JSON, page by page in their order; without `splits` with all of it.

    Raises DataError if there is no such data; a bad page is a finding. `progress(done, pages)` is called after each.
    """
    readers = pages(path, splits)
    findings: list[Finding] = []
    prints: list[alike.Print] = []
    strangers: list[frame.Stranger] = []
    for number, read in enumerate(readers, 1):
        raw = read()
        findings += page(raw, prints, strangers)
        if progress:
            progress(number, len(readers))
    return findings + frame.exchanged(strangers) + list(alike.pairs(prints))


def page(raw: Raw, prints: list[alike.Print], strangers: list[frame.Stranger]) -> list[Finding]:
    """Return the findings of one page; adds its fingerprint, and the page itself if its boxes seem another page's."""
    found = [_whole(raw, "unreadable_annotation", ERROR, why, line) for line, why in raw.faults]
    found += [_whole(raw, "unreadable_annotation", NOTE, why) for why in raw.notes]
    broken, good = boxes.usable(raw)
    found += broken
    image = header = None
    if raw.image is None:
        why = raw.lost or ("" if raw.faults else "there is no image of that name")
        found += [_whole(raw, "unreadable_image", ERROR if raw.lost else NOTE, why)] if why else []
    else:
        try:
            image, header, said = picture.decode(raw.image)
            found += [_whole(raw, "broken_image", ERROR, f"the decoder says: {'; '.join(said)}")] if said else []
        except PageError as error:
            found.append(_whole(raw, "unreadable_image", ERROR, error.problem.message))
    prints.append(_print(raw, image))
    if image is None or header is None or raw.annotation is None:
        return found + list(boxes.numbers(raw, good, None)) + list(boxes.texts(raw, good))
    polygons = [polygon for index in good if (polygon := raw.boxes[index].polygon) is not None]
    image, tag = frame.exif(raw, image, header, polygons)
    return found + ([tag] if tag else []) + _seen(raw, good, image, polygons, strangers)


def _seen(
    raw: Raw, good: list[int], image: picture.Image, polygons: list[Polygon], strangers: list[frame.Stranger]
) -> list[Finding]:
    """Return what the pixels say: about the page as a whole, or, where it is the right one, about its boxes."""
    size = (image.shape[1], image.shape[0])
    counted = [index for index in good if not raw.boxes[index].ignored]
    sheet = ink.sheet(image, polygons)
    places = {index: look(sheet, p) for index, p in zip(good, sheet.polygons, strict=True) if p is not None}
    well = sum((place := places[index]) is not None and lies_well(place) for index in counted)
    if len(counted) >= frame.FEWEST and well < frame.POOR * len(counted):
        chosen = [p for index in counted if (p := raw.boxes[index].polygon) is not None]
        said = frame.explain(image, chosen)
        if said is None and raw.image is not None:
            strangers.append(frame.Stranger(raw, raw.image, chosen, well / len(counted), size))
        whole = [_whole(raw, said[0], ERROR, said[1])] if said else []
        return whole + list(boxes.numbers(raw, good, None)) + list(boxes.texts(raw, good))
    found = list(boxes.numbers(raw, good, size)) + list(boxes.texts(raw, good))
    flipped = list(boxes.mirrored(raw, places, sheet))
    lines_flipped = {finding.box for finding in flipped}
    found = [finding for finding in found if finding.box not in lines_flipped] + flipped
    pairs = [(finding.box, finding.other or "") for finding in found if finding.kind == "duplicate_box"]
    twice = {line for later, other in pairs for line in (later, int(other.rpartition(":")[2]))}
    lines = missing.lines(sheet)
    wrong = [f for f in boxes.placed(raw, places, sheet.text) if f.box not in twice | lines_flipped]
    seen = twice | lines_flipped | {finding.box for finding in wrong}
    wrong += [f for f in boxes.strays(raw, places, lines, sheet) if f.box not in seen]
    beside = [np.array(finding.polygon, np.float32) for finding in wrong]
    return found + wrong + list(boxes.unboxed(raw, lines, sheet, beside))


def _print(raw: Raw, image: picture.Image | None) -> alike.Print:
    texts = frozenset(box.text.strip() for box in raw.boxes if len(box.text.strip()) > 2 and not box.ignored)
    if raw.image is None or image is None:
        return alike.Print(raw.name, raw.split, None, None, None, None, texts)
    digest = hashlib.sha256(raw.image.read_bytes()).hexdigest()
    bits, thumb = picture.fingerprint(image)
    return alike.Print(raw.name, raw.split, os.path.realpath(raw.image), digest, bits, thumb, texts)


def _whole(raw: Raw, kind: str, severity: str, why: str, line: int | None = None) -> Finding:
    return Finding(kind, raw.name, raw.split, line, None, severity, why)
