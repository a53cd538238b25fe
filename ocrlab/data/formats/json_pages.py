"""UFO (one JSON for many pages), and the page as ocrlab writes it (a line of JSON lines, or one JSON a page).

    UFO       {"images": {NAME: {"words": {ID: {"points": [[x, y], ...], "transcription": "", "illegibility": false}}}}}
    one page  {"image": NAME, "boxes": [{"points": [[x, y], ...], "text": "", "ignore": false}]}
              or "polygons": [[[x, y], ...]], or "detections": [{"polygon": [[x, y], ...]}] as predictions have it

NAME is a path relative to the JSON or to images/ or img/ beside it. Other keys are left alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ocrlab.data import field_parsing
from ocrlab.data.annotations import Boxes, Contents, Document, Entry, PageError
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
