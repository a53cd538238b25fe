"""A cleaned copy of a data set: what is certain is fixed, what is not stays and is listed."""

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
from ocrlab.data.audit.raw_annotations import Raw, pages
from ocrlab.data.formats.convert import write_whole
from ocrlab.data.formats.icdar import write_icdar
from ocrlab.data.image_io import read_file, read_header

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

    def note(self, what: str, raw: Raw, line: int | None, why: str) -> None:
        """Record a change to a page, or to the box at a line of its annotation."""
        self.counts[what] += 1
        self.changes.append(f"{raw.split}/{raw.name}{f':{line}' if line else ''}: {what}: {why}")


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
    by_page: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_page.setdefault((finding.split, finding.page), []).append(finding)
    with write_whole(done.folder) as place:
        for read in pages(path, splits):
            raw = read()
            _write_page(raw, by_page.get((raw.split, raw.name), []), place, done)
        (place / "CHANGES.txt").write_text("".join(f"{line}\n" for line in done.changes), encoding="utf-8")
    return done


def _write_page(raw: Raw, findings: list[Finding], folder: Path, done: CleanedCopy) -> None:
    """Write one page, unless something is wrong with all of it."""
    certain = [f for f in findings if f.severity == ERROR]
    whole = [f for f in certain if f.box is None and f.kind in GONE]
    whole += [f for f in certain if f.kind == "unreadable_annotation"]
    if whole or raw.image is None or raw.annotation is None:
        lacks = "it has no image" if raw.image is None else "it has no annotation"
        done.note("pages left out", raw, None, f"{whole[0].kind}, {whole[0].why}" if whole else lacks)
        return
    try:
        size = read_header(raw.image).size(exif=False)
    except PageError as error:
        done.note("pages left out", raw, None, error.problem.message)
        return
    dropped = {f.box: f for f in reversed(certain) if f.kind in DROPPED}
    reordered = {f.box for f in findings if f.kind in ("reversed", "self_crossing")}
    polygons, texts = [], []
    for box in raw.boxes:
        polygon, reason = geometry.judge(box.polygon, *size)
        if box.line in dropped or not len(box.polygon) or polygon is None:
            finding = dropped.get(box.line)
            why = f"{finding.kind}, {finding.why}" if finding else reason if len(box.polygon) else "no points"
            done.note("boxes dropped", raw, box.line, why)
            continue
        clipped = bool(box.polygon.min() < 0 or (box.polygon.max(axis=0) > size).any())
        if box.line in reordered:
            done.note("boxes reordered", raw, box.line, "clockwise from the top left")
        if clipped:
            done.note("boxes clipped", raw, box.line, f"to {size[0]} x {size[1]}")
        polygons.append(polygon if clipped or box.line in reordered else box.polygon)
        texts.append(IGNORED if box.ignored else box.text)
    place = folder / (raw.split or "all")
    image = place / "images" / f"{raw.name}{raw.image.suffix}"
    text = place / "gts" / Path(raw.name).parent / f"gt_{Path(raw.name).name}.txt"
    for file in (image, text):
        file.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(read_file(raw.image))
    os.chmod(image, 0o644)
    exact = any((polygon != np.round(polygon)).any() for polygon in polygons)
    write_icdar(text, polygons, texts, decimals=2 if exact else 0)
    done.pages += 1
    done.boxes += len(polygons)
