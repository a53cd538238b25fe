"""JSON annotations: UFO (one file a data set) and JSON lines (one page a line).

    UFO       {"images": {NAME: {"words": {ID: {"points": [[x, y], ...], "transcription": "", "illegibility": false}}}}}
    one line  {"image": NAME, "boxes": [{"points": [[x, y], ...], "text": "", "ignore": false}]}
              or "polygons": [[[x, y], ...]], or "detections": [{"polygon": [[x, y], ...]}] as predictions have it

NAME is a path relative to the JSON or to images/ or img/ beside it. Other keys are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from ocrlab.data.folder import Source, locate
from ocrlab.data.page import LIMIT, Boxes, Page, PageError, read_text
from ocrlab.geometry import Polygon
from ocrlab.records import SCHEMA

UFO = '{"images": {NAME: {"words": {ID: {"points": [[x, y], ...]}}}}}'
LINE = '{"image": NAME, "boxes": [{"points": [[x, y], ...]}]}'
LISTS = ("boxes", "polygons", "detections")


def ufo_pages(source: Source) -> list[Callable[[], Page]]:
    """Return one function a page of a UFO JSON, that reads it or raises PageError; raises PageError if it is no UFO."""
    file = source.annotations
    text = read_text(file)
    try:
        found = _parse(text)
        pages = found.get("images") if isinstance(found, dict) else None
        if not isinstance(pages, dict):
            what = "images are a list, as COCO has it," if isinstance(pages, list) else _kind(found)
            raise PageError(f"{what} instead of UFO", need=UFO, do="If this is JSON lines, name it .jsonl")
    except PageError as error:
        raise PageError(str(error).rstrip("."), file=file, line=error.line) from None
    return [partial(_ufo_page, source, text, name, content) for name, content in pages.items()]


def line_pages(source: Source) -> list[Callable[[], Page]]:
    """Return one function a line of a JSON lines file, that reads its page or raises PageError."""
    lines = enumerate(read_text(source.annotations).split("\n"), 1)
    return [partial(_line_page, source, number, line) for number, line in lines if line.strip()]


def _ufo_page(source: Source, text: str, name: str, content: Any) -> Page:
    file = source.annotations
    image = locate(name, source, _line_of(text, name))
    words = content.get("words") if isinstance(content, dict) else None
    if not isinstance(words, dict):
        got = _kind(content if words is None else words)
        raise PageError(f"page {name!r} has no words", file=file, line=_line_of(text, name), got=got, need=UFO)
    boxes = Boxes()
    for key, word in words.items():
        try:
            _add(boxes, word, ("points",), ("transcription",), ("illegibility",))
        except PageError as error:
            what = f"word {key!r} of page {name!r}: {error}".rstrip(".")
            raise PageError(what, file=file, line=_line_of(text, name, key)) from None
    return Page(_stem(name), image, file, None, boxes)


def _line_page(source: Source, number: int, line: str) -> Page:
    file = source.annotations
    boxes = Boxes()
    try:
        found = _parse(line)
        keys = [key for key in LISTS if key in found] if isinstance(found, dict) else []
        if len(keys) != 1 or not isinstance(found[keys[0]], list) or "image" not in found:
            raise PageError("not a page", got=_kind(found), need=LINE)
        schema = found.get("schema", SCHEMA)
        if not isinstance(schema, int) or schema > SCHEMA:
            raise PageError("written by a newer ocrlab", got=f"schema {schema}", need=f"schema {SCHEMA} or older")
        for index, box in enumerate(found[keys[0]]):
            try:
                box = {"points": box} if keys[0] == "polygons" else box
                _add(boxes, box, ("points", "polygon"), ("text", "transcription"), ("ignore", "ignored"))
            except PageError as error:
                raise PageError(f"{keys[0]}[{index}]: {error}".rstrip(".")) from None
    except PageError as error:
        raise PageError(str(error).rstrip("."), file=file, line=number) from None
    image = locate(found["image"], source, number)
    return Page(_stem(found["image"]), image, file, number, boxes)


def _add(boxes: Boxes, box: Any, points: tuple[str, ...], texts: tuple[str, ...], flags: tuple[str, ...]) -> None:
    """Check one box, a JSON object, and append it; the names of its keys differ between formats."""
    key = next((key for key in points if isinstance(box, dict) and key in box), None)
    if key is None:
        raise PageError(f"no {points[0]}", got=_kind(box), need=f'{{"{points[0]}": [[x, y], ...]}}')
    text = next((box[key] for key in texts if key in box), None)
    if text is not None and not isinstance(text, str):
        raise PageError(f"{texts[0]} is not a string", got=_kind(text), need="a string or null")
    flag = next((box[key] for key in flags if key in box), None)
    if flag not in (None, False, True):
        raise PageError(f"{flags[0]} is not a flag", got=_kind(flag), need="true or false")
    boxes.add(_polygon(box[key], key), text or "", bool(flag))


def _polygon(points: Any, key: str) -> Polygon | None:
    """Return a JSON list of [x, y] as (P, 2) float32; None stays None; how many are enough is judged later."""
    if points is None:
        return None
    if not isinstance(points, list):
        raise PageError(f"{key} is not a list", got=_kind(points), need="[[x, y], ...]")
    for index, point in enumerate(points):
        pair = isinstance(point, list) and len(point) == 2
        if not pair or not all(type(value) in (int, float) and abs(value) <= LIMIT for value in point):
            raise PageError(f"{key}[{index}] is not a point", got=json.dumps(point)[:80], need="[x, y] in pixels")
    return np.array(points, np.float32).reshape(-1, 2)


def _parse(text: str) -> Any:
    """Parse JSON; raises PageError, whose line counts inside `text`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise PageError(
            "not JSON", line=line, got=str(error) if text.strip() else "nothing at all", need="JSON"
        ) from error


def _line_of(text: str, *keys: str) -> int | None:
    """Return the line where the last of nested `keys` stands in a JSON text: the parser keeps no positions."""
    at = 0
    for key in keys:
        spelled = (json.dumps(key), json.dumps(key, ensure_ascii=False))
        at = max(text.find(f"{form}", at) for form in spelled)
        if at < 0:
            return None
    return text.count("\n", 0, at) + 1


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _kind(value: Any) -> str:
    """Describe a JSON value in a few words."""
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    return f"a list of {len(value)}" if isinstance(value, list) else json.dumps(value)[:80]
