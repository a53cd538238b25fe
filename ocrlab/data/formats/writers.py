"""Writers: pages -> annotation files that known_formats.py reads back, one function a format.

icdar    SPLIT/images/NAME.jpg + SPLIT/gts/gt_NAME.txt; outlines of other than 4 points as x1,y1,...,xN,yN,####text
labelme  SPLIT/NAME.jpg + SPLIT/NAME.json
shards   SPLIT/000000.tar ... of NAME.jpg + NAME.json: shards/writer.py, for sets of more pages than a folder bears
jsonl    SPLIT.jsonl + images/SPLIT/NAME.jpg; ufo and coco the same with SPLIT.json
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ocrlab.data.annotations import IGNORED, Page
from ocrlab.data.formats import curved_text
from ocrlab.data.formats.icdar import as_quad, icdar
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError
from ocrlab.geometry import Polygon

Lost = Counter[str]


@dataclass(frozen=True, slots=True)
class Record:
    """One page to be written: N outlines of three or more points, transcriptions, and which do not count."""

    name: str
    file: str  # of the image, below the folder of images
    size: tuple[int, int]  # width and height as stored
    image: Path | Member  # where it is now
    polygons: list[Polygon]
    texts: list[str]
    ignored: list[bool]


def record(page: Page, file: str, size: tuple[int, int], quads: bool, lost: Lost) -> Record:
    """Return a page as a record; what is no outline is left out and counted in `lost`."""
    boxes_left: list[tuple[Polygon, str, bool]] = []
    for polygon, text, ignored in zip(page.boxes.polygons, page.boxes.texts, page.boxes.ignored, strict=True):
        if polygon is None or len(polygon) < 3:
            lost["boxes of fewer than 3 points, left out"] += 1
            continue
        if quads and len(polygon) != 4:
            lost["polygons of other than 4 points, now their smallest rectangle"] += 1
            polygon = as_quad(polygon)
        boxes_left.append((polygon, text, ignored))
    polygons, texts, flags = (list(column) for column in zip(*boxes_left, strict=True)) if boxes_left else ([], [], [])
    return Record(page.name, file, size, page.image, polygons, texts, flags)


def to_icdar(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write one text file a page; raises DataError for a page that would be read back as something else."""
    for page in records:
        lines = []
        for polygon, text, ignored in zip(page.polygons, page.texts, page.ignored, strict=True):
            if ignored:
                lost["transcriptions of boxes that do not count, now ###"] += text not in ("", IGNORED)
                text = IGNORED
            line = " ".join(text.splitlines())
            lost["line breaks in transcriptions, now blanks"] += line != text
            line = line if len(polygon) == 4 else curved_text.MARK + line
            lines.append(",".join(map(str, numbers(polygon))) + ("," + line if line else "") + "\n")
        content = "".join(lines)
        _same(page, content)
        _put(folder / split / "gts" / _gt(page.name), content)


def to_labelme(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write one LabelMe JSON a page, beside its image."""
    for page in records:
        shapes = [
            {
                "label": text,
                "points": pairs_of(polygon),
                "group_id": None,
                "description": "",
                "shape_type": "polygon",
                "flags": {"ignore": True} if ignored else {},
            }
            for polygon, text, ignored in zip(page.polygons, page.texts, page.ignored, strict=True)
        ]
        about = {"imagePath": PurePosixPath(page.file).name, "imageData": None}
        size = {"imageHeight": page.size[1], "imageWidth": page.size[0]}
        content: dict[str, Any] = {"version": "5.0.0", "flags": {}, "shapes": shapes, **about, **size}
        _put(folder / split / f"{page.name}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def to_jsonl(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write JSON lines, a page a line."""
    lines = []
    for page in records:
        boxes = [
            {"points": pairs_of(polygon), "text": text, "ignore": ignored}
            for polygon, text, ignored in zip(page.polygons, page.texts, page.ignored, strict=True)
        ]
        lines.append(_dump({"image": page.file, "width": page.size[0], "height": page.size[1], "boxes": boxes}) + "\n")
    _put(folder / f"{split}.jsonl", "".join(lines))


def to_ufo(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write one UFO JSON, a page a line."""
    lines = []
    for page in records:
        words = {
            f"{index:04}": {"points": pairs_of(polygon), "transcription": text, "illegibility": ignored}
            for index, (polygon, text, ignored) in enumerate(
                zip(page.polygons, page.texts, page.ignored, strict=True), 1
            )
        }
        content = {"img_h": page.size[1], "img_w": page.size[0], "words": words}
        lines.append(f"{_dump(page.file)}: {_dump(content)}")
    _put(folder / f"{split}.json", '{"images": {\n' + ",\n".join(lines) + "\n}}\n")


def to_coco(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write one COCO JSON, an image and an annotation a line; what does not count is `iscrowd`."""
    images: list[str] = []
    annotations: list[str] = []
    for number, page in enumerate(records, 1):
        width, height = page.size
        images.append(_dump({"id": number, "file_name": page.file, "width": width, "height": height}))
        for polygon, text, ignored in zip(page.polygons, page.texts, page.ignored, strict=True):
            low, span = polygon.min(axis=0), np.ptp(polygon.astype(np.float64), axis=0)
            row = {
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": 1,
                "segmentation": [numbers(polygon)],
                "bbox": [*numbers(low[None]), *numbers(span[None])],
                "area": _area(polygon),
                "iscrowd": int(ignored),
                "text": text,
            }
            annotations.append(_dump(row))
    head = '{"categories": [{"id": 1, "name": "text", "supercategory": "text"}],\n"images": [\n'
    middle = '\n],\n"annotations": [\n'
    _put(folder / f"{split}.json", head + ",\n".join(images) + middle + ",\n".join(annotations) + "\n]}\n")


Writer = Callable[[Iterable[Record], Path, str, Lost], None]
FORMATS: dict[str, Writer] = {
    "icdar": to_icdar,
    "jsonl": to_jsonl,
    "ufo": to_ufo,
    "coco": to_coco,
    "labelme": to_labelme,
}
PLACES = {"icdar": "{split}/images", "labelme": "{split}"} | dict.fromkeys(("jsonl", "ufo", "coco"), "images/{split}")


def numbers(polygon: Any) -> list[int | float]:
    """Return points (P, 2) as x1, y1, ..., xP, yP: whole where they are, else with as few digits as say the same."""
    exact = np.asarray(polygon, np.float64).ravel()
    if (exact == np.rint(exact)).all():
        return [int(value) for value in exact]
    short = exact
    for digits in (5, 4, 3, 2, 1, 0):
        rounded = exact.round(digits)
        short = np.where(rounded.astype(np.float32) == exact.astype(np.float32), rounded, short)
    return list(short.tolist())


def pairs_of(polygon: Polygon) -> list[list[int | float]]:
    """Return points (P, 2) as [[x1, y1], ...], written as `numbers` does."""
    flat = numbers(polygon)
    return [[x, y] for x, y in zip(flat[::2], flat[1::2], strict=True)]


def _area(polygon: Polygon) -> float:
    x, y = polygon.astype(np.float64).T
    return round(abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2, 2)


def _gt(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_name(f"gt_{path.name}.txt"))


def _same(page: Record, content: str) -> None:
    """Raise DataError if ICDAR text would be read back otherwise: a transcription can look like more points."""
    boxes = icdar(content, Path(f"{page.name}.txt"))
    same = len(boxes.polygons) == len(page.polygons)
    for box, polygon in zip(boxes.polygons, page.polygons, strict=False):
        same = same and box is not None and np.array_equal(box, polygon)
    if not same:
        do = "Write jsonl, ufo, coco or labelme, or give --quads"
        raise DataError(f"Page {page.name} cannot be written as ICDAR text", got="numbers as transcription", do=do)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _put(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # Half of a surrogate pair, which is no character, becomes its JSON escape.
    file.write_text(content, encoding="utf-8", errors="backslashreplace", newline="\n")
