"""JSON formats of pages: UFO, ocrlab's own page, LabelMe and CORD.

    UFO       {"images": {NAME: {"words": {ID: {"points": [[x, y], ...], "transcription": ""}}}}}
    one page  {"image": NAME, "boxes": [{"points": [[x, y], ...], "text": "", "ignore": false}]}
              or "polygons": [[[x, y], ...]], or "detections": [{"polygon": [[x, y], ...]}] as predictions have it
    LabelMe   {"shapes": [{"label": "", "points": [[x, y], ...], "shape_type": "polygon", "flags": {}}],
               "imagePath": "../images/page.jpg", "imageData": null, "imageHeight": 1280, "imageWidth": 900}
    CORD      {"valid_line": [{"words": [{"quad": {"x1", "y1", ..., "x4", "y4"}, "text": ""}], "group_id", "category"}],
               "repeating_symbol": [[{"quad", "text"}]], "dontcare": [[{"x1", ...}]], "meta": {...}, "roi": {...}}
              {"file_name": NAME, "ground_truth": the same as a string or an object, often with "gt_parse" in it}

NAME is a path relative to the JSON or to images/ or img/ beside it. Other keys are left alone. LabelMe's transcription
is `description` where there is one (LabelMe 5, X-AnyLabeling), else `label`; a flag `ignore` or `difficult` and the
label ### mean do not count; `imageData`, a copy of the image, is not looked at. A word of CORD (Park et al. 2019, a
consolidated receipt dataset) is a box; separator rows (`repeating_symbol`) and `dontcare` regions do not count.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ocrlab.data import field_parsing
from ocrlab.data.annotations import IGNORED, Boxes, Contents, Document, Entry, PageError
from ocrlab.geometry import Polygon
from ocrlab.records import SCHEMA

UFO = '{"images": {NAME: {"words": {ID: {"points": [[x, y], ...]}}}}}'
PAGE = '{"image": NAME, "boxes": [{"points": [[x, y], ...]}]}'
LISTS = ("boxes", "polygons", "detections")


def ufo(document: Document) -> Contents:
    """Return the pages of a UFO JSON."""
    pages = document.data["images"].items()
    return Contents([Entry(name, partial(_ufo_page, document, name, content)) for name, content in pages])


def page(data: dict[str, Any]) -> tuple[Any, Boxes]:
    """Return image name and boxes of a page as ocrlab writes it; raises PageError naming the bad box."""
    keys = [key for key in LISTS if key in data]
    if len(keys) != 1 or not isinstance(data[keys[0]], list) or "image" not in data:
        raise PageError("not a page", got=field_parsing.kind(data), need=PAGE)
    schema = data.get("schema", SCHEMA)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise PageError("written by a newer ocrlab", got=f"schema {schema}", need=f"schema {SCHEMA} or older")
    boxes = Boxes()
    for index, box in enumerate(data[keys[0]]):
        try:
            box = {"points": box} if keys[0] == "polygons" else box
            _add(boxes, box, ("points", "polygon"), ("text", "transcription"), ("ignore", "ignored"))
        except PageError as error:
            raise PageError(f"{keys[0]}[{index}]: {error}".rstrip(".")) from None
    return data["image"], boxes


def _ufo_page(document: Document, name: str, content: Any) -> Boxes:
    words = content.get("words") if isinstance(content, dict) else None
    if not isinstance(words, dict):
        got, line = field_parsing.kind(content if words is None else words), field_parsing.line_of(document.text, name)
        raise PageError("no words", line=line, got=got, need=UFO)
    boxes = Boxes()
    for key, word in words.items():
        try:
            _add(boxes, word, ("points",), ("transcription",), ("illegibility",))
        except PageError as error:
            what = f"word {key!r}: {error}".rstrip(".")
            raise PageError(what, line=field_parsing.line_of(document.text, name, key)) from None
    return boxes


def _add(boxes: Boxes, box: Any, points: tuple[str, ...], texts: tuple[str, ...], flags: tuple[str, ...]) -> None:
    """Check one box, a JSON object, and append it; the names of its keys differ between formats."""
    key = next((key for key in points if isinstance(box, dict) and key in box), None)
    if key is None:
        raise PageError(f"no {points[0]}", got=field_parsing.kind(box), need=f'{{"{points[0]}": [[x, y], ...]}}')
    text = field_parsing.string(field_parsing.first(box, texts), texts[0])
    ignored = field_parsing.flag(field_parsing.first(box, flags), flags[0])
    boxes.add(field_parsing.points(box[key], key), text, ignored)


LABELME = '{"shapes": [{"label": "", "points": [[x, y], ...], "shape_type": "polygon"}], "imagePath": NAME}'
OUTLINES = ("polygon", "rotation", "oriented_rectangle", "quadrilateral")  # the outline is written out
FLAGS = ("ignore", "ignored", "difficult")


def labelme(data: dict[str, Any]) -> tuple[Any, Boxes]:
    """Return image name and boxes of a LabelMe page; raises PageError naming the shape that is no area."""
    boxes = Boxes()
    if not isinstance(data["shapes"], list):
        raise PageError("shapes is not a list", got=field_parsing.kind(data["shapes"]), need=LABELME)
    for index, shape in enumerate(data["shapes"]):
        try:
            if not isinstance(shape, dict):
                raise PageError("not an object", got=field_parsing.kind(shape), need=LABELME)
            label = field_parsing.string(shape.get("label"), "label")
            text = field_parsing.string(shape.get("description"), "description") or label
            flags = shape.get("flags")
            marks = (shape, flags if isinstance(flags, dict) else {})
            ignored = any(field_parsing.flag(mark.get(key), key) for mark in marks for key in FLAGS)
            boxes.add(_outline(shape), text, ignored or label.strip() == IGNORED)
        except PageError as error:
            raise PageError(f"shapes[{index}]: {error}".rstrip(".")) from None
    return data.get("imagePath"), boxes


def _outline(shape: dict[str, Any]) -> Polygon | None:
    kind = shape.get("shape_type")
    points = field_parsing.points(shape.get("points"), "points")
    corners = points is not None and len(points) == 2
    if (kind == "rectangle" and corners) or (kind is None and corners):  # LabelMe before 3.0 wrote no shape_type
        return field_parsing.rectangle(*points.min(axis=0), *points.max(axis=0))  # type: ignore[union-attr]
    if kind in OUTLINES or kind is None or (kind == "rectangle" and points is not None and len(points) == 4):
        return points
    do = "Draw the text as a polygon, or remove the shape"
    raise PageError(f"a {kind} is no area of text", need="polygon, rectangle or rotation", do=do)


CORD = '{"valid_line": [{"words": [{"quad": {"x1": 0, "y1": 0, ..., "y4": 0}, "text": ""}]}]}'
CORNERS = [("x1", "y1"), ("x2", "y2"), ("x3", "y3"), ("x4", "y4")]
IMAGES = ("file_name", "image", "image_path")


def cord(data: dict[str, Any]) -> tuple[Any, Boxes]:
    """Return image name (None if only the file's own name tells) and boxes of a CORD page; raises PageError."""
    truth = data.get("ground_truth", data)
    truth = field_parsing.parse(truth) if isinstance(truth, str) else truth
    lines = truth.get("valid_line") if isinstance(truth, dict) else None
    if not isinstance(lines, list):
        do = "gt_parse alone holds what was read and not where" if "gt_parse" in (truth or {}) else None
        raise PageError("a CORD page without valid_line", got=field_parsing.kind(truth), need=CORD, do=do)
    boxes = Boxes()
    for index, line in enumerate(lines):
        words = line.get("words") if isinstance(line, dict) else None
        if not isinstance(words, list):
            raise PageError(f"valid_line[{index}] has no words", got=field_parsing.kind(line), need=CORD)
        for place, word in enumerate(words):
            try:
                boxes.add(_quad(word), field_parsing.string(word.get("text"), "text"))
            except PageError as error:
                raise PageError(f"valid_line[{index}], word {place}: {error}".rstrip(".")) from None
    for key in ("repeating_symbol", "dontcare"):
        for mark in _leaves(truth.get(key)):
            boxes.add(_quad(mark), field_parsing.string(mark.get("text"), "text"), ignored=True)
    return field_parsing.first(data, IMAGES), boxes


def _quad(word: Any) -> Polygon:
    quad = word.get("quad", word) if isinstance(word, dict) else None
    if not isinstance(quad, dict) or not field_parsing.are_positions([quad.get(k) for xy in CORNERS for k in xy]):
        raise PageError(
            "no quad", got=field_parsing.kind(word if quad is None else quad), need='{"x1": 0, "y1": 0, ...}'
        )
    return field_parsing.flat_points([quad[key] for xy in CORNERS for key in xy], "quad")


def _leaves(nested: Any) -> list[dict[str, Any]]:
    """Return the objects in lists of lists."""
    if isinstance(nested, dict):
        return [nested] if nested else []
    return [leaf for inner in nested for leaf in _leaves(inner)] if isinstance(nested, list) else []
