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
label ### mean do not count; `imageData`, a copy of the image, is not read. A word of CORD (Park et al. 2019, a
consolidated receipt dataset) is a box; separator rows (`repeating_symbol`) and `dontcare` regions do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ocrlab.data.annotations import IGNORED, Boxes, BoxReader, Entry, PageError
from ocrlab.data.field_parsing import Lines, are_positions, first, flag, flat_points, kind, parse, rectangle, string
from ocrlab.data.field_parsing import points as parse_points
from ocrlab.geometry import Polygon
from ocrlab.records import SCHEMA

UFO = '{"images": {NAME: {"words": {ID: {"points": [[x, y], ...]}}}}}'
PAGE = '{"image": NAME, "boxes": [{"points": [[x, y], ...]}]}'
LISTS = ("boxes", "polygons", "detections")


def ufo(data: dict[str, Any], lines: Lines) -> tuple[list[Entry], list[str]]:
    """Return the pages of a UFO JSON."""
    return [Entry(name, partial(_ufo_page, lines, name, page)) for name, page in data["images"].items()], []


def _ufo_page(lines: Lines, name: str, content: Any) -> Boxes:
    words = content.get("words") if isinstance(content, dict) else None
    if not isinstance(words, dict):
        got = kind(content if words is None else words)
        raise PageError("no words", line=lines.of(name), got=got, need=UFO)
    read = _box_reader(("points",), ("transcription",), ("illegibility",))
    return Boxes().read("word {!r}", words.items(), read, line=lambda key: lines.of(name, key))


def page(data: dict[str, Any]) -> tuple[Any, Boxes]:
    """Return image name and boxes of a page as ocrlab writes it; raises PageError naming the bad box."""
    keys = [key for key in LISTS if key in data]
    if len(keys) != 1 or not isinstance(data[keys[0]], list) or "image" not in data:
        raise PageError("not a page", got=kind(data), need=PAGE)
    schema = data.get("schema", SCHEMA)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise PageError("written by a newer ocrlab", got=f"schema {schema}", need=f"schema {SCHEMA} or older")
    boxes = data[keys[0]] if keys[0] != "polygons" else [{"points": outline} for outline in data["polygons"]]
    read = _box_reader(("points", "polygon"), ("text", "transcription"), ("ignore", "ignored"))
    return data["image"], Boxes().read(keys[0] + "[{}]", enumerate(boxes), read)


def _box_reader(points: tuple[str, ...], texts: tuple[str, ...], flags: tuple[str, ...]) -> BoxReader:
    """Return what reads a box, a JSON object, by the names that a format has for its keys."""

    def read(box: Any) -> tuple[Polygon | None, str, bool]:
        key = next((key for key in points if isinstance(box, dict) and key in box), None)
        if key is None:
            raise PageError(f"no {points[0]}", got=kind(box), need=f'{{"{points[0]}": [[x, y], ...]}}')
        text, ignored = string(first(box, texts), texts[0]), flag(first(box, flags), flags[0])
        return parse_points(box[key], key), text, ignored

    return read


LABELME = '{"shapes": [{"label": "", "points": [[x, y], ...], "shape_type": "polygon"}], "imagePath": NAME}'
OUTLINES = ("polygon", "rotation", "oriented_rectangle", "quadrilateral", None)  # the outline is written out
FLAGS = ("ignore", "ignored", "difficult")


def labelme(data: dict[str, Any]) -> tuple[Any, Boxes]:
    """Return image name and boxes of a LabelMe page; raises PageError naming the shape that is not an area."""
    if not isinstance(data["shapes"], list):
        raise PageError("shapes is not a list", got=kind(data["shapes"]), need=LABELME)
    return data.get("imagePath"), Boxes().read("shapes[{}]", enumerate(data["shapes"]), _labelme_shape)


def _labelme_shape(shape: Any) -> tuple[Polygon | None, str, bool]:
    if not isinstance(shape, dict):
        raise PageError("not an object", got=kind(shape), need=LABELME)
    label = string(shape.get("label"), "label")
    text = string(shape.get("description"), "description") or label
    flags = shape["flags"] if isinstance(shape.get("flags"), dict) else {}
    ignored = any(flag(place.get(key), key) for place in (shape, flags) for key in FLAGS)
    form, points = shape.get("shape_type"), parse_points(shape.get("points"), "points")
    count = 0 if points is None else len(points)
    if points is not None and count == 2 and form in ("rectangle", None):  # LabelMe before 3.0 wrote no shape_type
        points = rectangle(*points.min(axis=0), *points.max(axis=0))
    elif form not in OUTLINES and not (form == "rectangle" and count == 4):
        do = "Draw the text as a polygon, or remove the shape"
        raise PageError(f"a {form} does not enclose text", need="polygon, rectangle or rotation", do=do)
    return points, text, ignored or label.strip() == IGNORED


CORD = '{"valid_line": [{"words": [{"quad": {"x1": 0, "y1": 0, ..., "y4": 0}, "text": ""}]}]}'
CORNERS = ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")
IMAGES = ("file_name", "image", "image_path")


def cord(data: dict[str, Any]) -> tuple[Any, Boxes]:
    """Return image name (None if only the file's own name tells) and boxes of a CORD page; raises PageError."""
    truth = data.get("ground_truth", data)
    truth = parse(truth) if isinstance(truth, str) else truth
    lines = truth.get("valid_line") if isinstance(truth, dict) else None
    if not isinstance(lines, list):
        do = "gt_parse alone holds what was read and not where" if "gt_parse" in (truth or {}) else None
        raise PageError("a CORD page without valid_line", got=kind(truth), need=CORD, do=do)
    boxes = Boxes()
    for index, line in enumerate(lines):
        words = line.get("words") if isinstance(line, dict) else None
        if not isinstance(words, list):
            raise PageError(f"valid_line[{index}] has no words", got=kind(line), need=CORD)
        boxes.read(f"valid_line[{index}], word {{}}", enumerate(words), _cord_word)
    for key in ("repeating_symbol", "dontcare"):
        for leaf in _leaves(truth.get(key)):
            polygon, text, _ = _cord_word(leaf)
            boxes.add(polygon, text, ignored=True)
    return first(data, IMAGES), boxes


def _cord_word(word: Any) -> tuple[Polygon | None, str, bool]:
    quad = word.get("quad", word) if isinstance(word, dict) else None
    if not isinstance(quad, dict) or not are_positions([quad.get(key) for key in CORNERS]):
        raise PageError("no quad", got=kind(word if quad is None else quad), need='{"x1": 0, "y1": 0, ...}')
    return flat_points([quad[key] for key in CORNERS], "quad"), string(word.get("text"), "text"), False


def _leaves(nested: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in lists of lists."""
    if isinstance(nested, dict) and nested:
        yield nested
    elif isinstance(nested, list):
        for inner in nested:
            yield from _leaves(inner)
