"""Writers: pages -> annotation files that recognition.py reads back, one function a format.

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

from ocrlab import geometry
from ocrlab.data.annotations import IGNORED, Page
from ocrlab.data.formats import curved_text
from ocrlab.data.formats.icdar import as_quad, icdar
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError
from ocrlab.geometry import Polygon

Lost = Counter[str]


@dataclass(frozen=True, slots=True)
class Record:
    """One page to be written; `boxes` are outlines of three or more points, transcriptions, and what does not count."""

    name: str
    file: str  # of the image, below the folder of images
    size: tuple[int, int]  # width and height as stored
    image: Path | Member  # where it is now
    boxes: list[tuple[Polygon, str, bool]]

    def content(self) -> dict[str, Any]:
        """Return the page as ocrlab's own JSON."""
        boxes = [{"points": pairs_of(polygon), "text": text, "ignore": flag} for polygon, text, flag in self.boxes]
        return {"image": self.file, "width": self.size[0], "height": self.size[1], "boxes": boxes}


def record(page: Page, file: str, size: tuple[int, int], quads: bool, lost: Lost) -> Record:
    """Return a page as a record; what has fewer than three points is left out and counted in `lost`."""
    boxes: list[tuple[Polygon, str, bool]] = []
    for polygon, text, ignored in zip(page.boxes.polygons, page.boxes.texts, page.boxes.ignored, strict=True):
        if polygon is None or len(polygon) < 3:
            lost["boxes of fewer than 3 points, left out"] += 1
            continue
        if quads and len(polygon) != 4:
            lost["polygons of other than 4 points, now their smallest rectangle"] += 1
            polygon = as_quad(polygon)
        boxes.append((polygon, text, ignored))
    return Record(page.name, file, size, page.image, boxes)


def to_icdar(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write one text file a page; raises DataError for a page that would be read back as something else."""
    for page in records:
        content = ""
        for polygon, text, ignored in page.boxes:
            if ignored:
                lost["transcriptions of boxes that do not count, now ###"] += text not in ("", IGNORED)
                text = IGNORED
            line = " ".join(text.splitlines())
            lost["line breaks in transcriptions, now blanks"] += line != text
            line = line if len(polygon) == 4 else curved_text.MARK + line
            content += ",".join(map(str, numbers(polygon))) + ("," + line if line else "") + "\n"
        written = icdar(content, Path(f"{page.name}.txt")).polygons
        pairs = zip(written, page.boxes, strict=False)
        same = all(polygon is not None and np.array_equal(polygon, box[0]) for polygon, box in pairs)
        if not same or len(written) != len(page.boxes):
            got, do = "numbers as transcription", "Write jsonl, ufo, coco or labelme, or give --quads"
            raise DataError(f"Page {page.name} cannot be written as ICDAR text", got=got, do=do)
        path = PurePosixPath(page.name)
        _put(folder / split / "gts" / path.with_name(f"gt_{path.name}.txt"), content)


def to_labelme(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write one LabelMe JSON a page, beside its image."""
    empty = {"group_id": None, "description": "", "shape_type": "polygon"}
    for page in records:
        shapes = [
            {"label": text, "points": pairs_of(polygon), **empty, "flags": {"ignore": True} if ignored else {}}
            for polygon, text, ignored in page.boxes
        ]
        about = {"imagePath": PurePosixPath(page.file).name, "imageData": None}
        size = {"imageHeight": page.size[1], "imageWidth": page.size[0]}
        content: dict[str, Any] = {"version": "5.0.0", "flags": {}, "shapes": shapes, **about, **size}
        _put(folder / split / f"{page.name}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def to_jsonl(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write JSON lines, a page a line."""
    _put(folder / f"{split}.jsonl", "".join(_dump(page.content()) + "\n" for page in records))


def to_ufo(records: Iterable[Record], folder: Path, split: str, lost: Lost) -> None:
    """Write one UFO JSON, a page a line."""
    lines = []
    for page in records:
        words = {
            f"{index:04}": {"points": pairs_of(polygon), "transcription": text, "illegibility": ignored}
            for index, (polygon, text, ignored) in enumerate(page.boxes, 1)
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
        for polygon, text, ignored in page.boxes:
            exact = polygon.astype(np.float64)
            row = {
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": 1,
                "segmentation": [numbers(polygon)],
                "bbox": [*numbers(exact.min(axis=0)), *numbers(np.ptp(exact, axis=0))],
                "area": round(abs(geometry.area(polygon)), 2),
                "iscrowd": int(ignored),
                "text": text,
            }
            annotations.append(_dump(row))
    head = '{"categories": [{"id": 1, "name": "text", "supercategory": "text"}],\n"images": [\n'
    middle = '\n],\n"annotations": [\n'
    _put(folder / f"{split}.json", head + ",\n".join(images) + middle + ",\n".join(annotations) + "\n]}\n")


Writer = Callable[[Iterable[Record], Path, str, Lost], None]
FORMATS: dict[str, Writer]
FORMATS = {"icdar": to_icdar, "jsonl": to_jsonl, "ufo": to_ufo, "coco": to_coco, "labelme": to_labelme}
PLACES = {"icdar": "{split}/images", "labelme": "{split}"} | dict.fromkeys(("jsonl", "ufo", "coco"), "images/{split}")


def numbers(points: Any) -> list[int | float]:
    """Return coordinates as x1, y1, ..., xP, yP: whole where all are, else in the fewest digits that float32 needs."""
    flat = np.asarray(points, np.float32).ravel()
    if (flat == np.rint(flat)).all():
        return [int(value) for value in flat]
    return [float(str(value)) for value in flat]


def pairs_of(polygon: Polygon) -> list[list[int | float]]:
    """Return points (P, 2) as [[x1, y1], ...], written as `numbers` does."""
    flat = numbers(polygon)
    return [[x, y] for x, y in zip(flat[::2], flat[1::2], strict=True)]


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _put(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # Half of a surrogate pair, which is not a character, becomes its JSON escape.
    file.write_text(content, encoding="utf-8", errors="backslashreplace", newline="\n")
