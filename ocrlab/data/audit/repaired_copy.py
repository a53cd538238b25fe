"""A cleaned copy of a data set: what is certain is mended, what is not is kept and told."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ocrlab import geometry
from ocrlab.data.annotations import IGNORED, PageError
from ocrlab.data.audit.finding import ERROR, Finding
from ocrlab.data.audit.raw_annotations import Box, Raw, pages
from ocrlab.data.formats.convert import write_whole
from ocrlab.data.formats.icdar import write_icdar
from ocrlab.data.image_io import read_header
from ocrlab.errors import DataError

GONE = ("unreadable_image", "unreadable_annotation", "wrong_size", "duplicate_page", "leak", "swapped", "exif")
DROPPED = ("invalid", "zero_area", "duplicate_box", "no_ink", "narrow")  # with severity error


@dataclass(slots=True)
class CleanedCopy:
    """What a cleaned copy holds, and every change as `split/page:line: what`."""

    folder: Path
    pages: int = 0
    boxes: int = 0
    changes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def copy(
    path: Path | str, folder: Path | str, findings: Iterable[Finding], splits: Sequence[str] | None = None
) -> CleanedCopy:
    """Write the data set that was checked, without its certain mistakes, to a new `folder`; raises DataError if it is.

    All of it is written or nothing. Images are copied byte for byte, annotations are written as ICDAR text (quads;
    SPLIT/images, SPLIT/gts), CHANGES.txt lists what was changed. Only errors change something: pages that cannot be
    used and copies of pages are left out, boxes without area, twice, or on nothing are dropped, those outside the image
    are clipped, the others put in order.
    """
    done = CleanedCopy(Path(folder).expanduser())
    if done.folder.exists() and (not done.folder.is_dir() or any(done.folder.iterdir())):
        raise DataError(f"{done.folder} is there already", need="a new or empty folder", do="Name another one")
    by_page: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_page.setdefault((finding.split, finding.page), []).append(finding)
    with write_whole(done.folder) as place:
        for read in pages(path, splits):
            raw = read()
            _page(raw, by_page.get((raw.split, raw.name), []), place, done)
        (place / "CHANGES.txt").write_text("".join(f"{line}\n" for line in done.changes), encoding="utf-8")
    return done


def _page(raw: Raw, findings: list[Finding], folder: Path, done: CleanedCopy) -> None:
    """Write one page, unless something is wrong with all of it."""
    whole = [f for f in findings if f.box is None and f.severity == ERROR and f.kind in GONE]
    whole += [f for f in findings if f.kind == "unreadable_annotation" and f.severity == ERROR]
    if whole or raw.image is None or raw.annotation is None:
        lacks = "it has no image" if raw.image is None else "it has no annotation"
        why = f"{whole[0].kind}, {whole[0].why}" if whole else lacks
        _note(done, "pages left out", raw, None, why)
        return
    try:
        size = read_header(raw.image).size(exif=False)
    except PageError as error:
        _note(done, "pages left out", raw, None, error.problem.message)
        return
    boxes = [box for box in (_box(raw, box, findings, size, done) for box in raw.boxes) if box is not None]
    place = folder / (raw.split or "all")
    image = place / "images" / f"{raw.name}{raw.image.suffix}"
    text = place / "gts" / Path(raw.name).parent / f"gt_{Path(raw.name).name}.txt"
    for file in (image, text):
        file.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(raw.image.read_bytes())
    os.chmod(image, 0o644)
    texts = [IGNORED if box.ignored else box.text for box in boxes]
    exact = any((box.polygon != np.round(box.polygon)).any() for box in boxes if box.polygon is not None)
    write_icdar(text, [box.polygon for box in boxes if box.polygon is not None], texts, decimals=2 if exact else 0)
    done.pages += 1
    done.boxes += len(boxes)


def _box(raw: Raw, box: Box, findings: list[Finding], size: tuple[int, int], done: CleanedCopy) -> Box | None:
    """Return a box as it should be, or None if it is dropped."""
    mine = [f for f in findings if f.box == box.line and f.severity == ERROR and f.kind in DROPPED]
    if mine or box.polygon is None:
        _note(done, "boxes dropped", raw, box.line, f"{mine[0].kind}, {mine[0].why}" if mine else "no points")
        return None
    mended, reason = geometry.judge(box.polygon, *size)
    if mended is None:
        _note(done, "boxes dropped", raw, box.line, reason)
        return None
    reordered = any(f.box == box.line and f.kind in ("reversed", "self_crossing") for f in findings)
    clipped = bool(box.polygon.min() < 0 or (box.polygon.max(axis=0) > size).any())
    if not (reordered or clipped):
        return box
    if reordered:
        _note(done, "boxes reordered", raw, box.line, "clockwise from the top left")
    if clipped:
        _note(done, "boxes clipped", raw, box.line, f"to {size[0]} x {size[1]}")
    return Box(box.line, mended, box.text, box.ignored)


def _note(done: CleanedCopy, what: str, raw: Raw, line: int | None, why: str) -> None:
    done.counts[what] += 1
    done.changes.append(f"{raw.split}/{raw.name}{f':{line}' if line else ''}: {what}: {why}")
