"""Values out of somebody's JSON or text, checked: each function returns what was meant, or raises PageError."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocrlab.data.annotations import LIMIT, PageError
from ocrlab.geometry import Polygon

NUMBERS = frozenset({int, float})  # and not bool


def parse(text: str) -> Any:
    """Parse JSON; raises PageError, whose line counts inside `text`, also for a key that an object has twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, PageError):
            raise
        got = str(error) if text.strip() else "nothing at all"
        raise PageError("not JSON", line=getattr(error, "lineno", None), got=got, need="JSON") from error


def points(value: Any, key: str) -> Polygon | None:
    """Return a list of [x, y] as (P, 2) float32; None stays None; how many are enough is judged later."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise PageError(f"{key} is not a list", got=kind(value), need="[[x, y], ...]")
    try:
        flat = [number for x, y in value for number in (x, y)]
    except (TypeError, ValueError):  # a point that is none
        flat = [None]
    if not are_positions(flat):
        for index, point in enumerate(value):
            if not (isinstance(point, list) and len(point) == 2 and are_positions(point)):
                raise PageError(f"{key}[{index}] is not a point", got=json.dumps(point)[:80], need="[x, y] in pixels")
    return np.array(flat, np.float32).reshape(-1, 2)


def flat_points(value: Any, key: str) -> Polygon:
    """Return a list x1, y1, ..., xP, yP as (P, 2) float32."""
    good = isinstance(value, list) and len(value) % 2 == 0 and are_positions(value)
    if not good:
        raise PageError(f"{key} is not a polygon", got=json.dumps(value)[:80], need="[x1, y1, ..., xN, yN] in pixels")
    return np.array(value, np.float32).reshape(-1, 2)


def box(value: Any, key: str) -> Polygon:
    """Return [left, top, width, height] as a quad (4, 2) float32, clockwise from the top left."""
    good = isinstance(value, list) and len(value) == 4 and are_positions(value) and min(value[2:]) >= 0
    if not good:
        raise PageError(f"{key} is not a box", got=json.dumps(value)[:80], need="[left, top, width, height] in pixels")
    left, top, width, height = value
    return rectangle(left, top, left + width, top + height)


def rectangle(left: float, top: float, right: float, bottom: float) -> Polygon:
    """Return an upright rectangle as a quad (4, 2) float32, clockwise from the top left."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def string(value: Any, key: str) -> str:
    """Return a transcription; null is the empty one."""
    if value is not None and not isinstance(value, str):
        raise PageError(f"{key} is not a string", got=kind(value), need="a string or null")
    return value or ""


def flag(value: Any, key: str) -> bool:
    """Return true, false, 1 or 0 as bool; null is False."""
    if value not in (None, False, True):
        raise PageError(f"{key} is not a flag", got=kind(value), need="true or false")
    return bool(value)


def first(value: dict[str, Any], keys: Sequence[str]) -> Any:
    """Return what stands under the first of `keys` that an object has, or None."""
    return next((value[key] for key in keys if key in value), None)


def are_positions(values: Sequence[Any]) -> bool:
    """Tell whether all values are numbers that can be positions in pixels; a large data set has millions."""
    if not values:
        return True
    if not NUMBERS.issuperset(map(type, values)) or min(values) < -LIMIT or max(values) > LIMIT:
        return False
    total = sum(values)
    return bool(total == total)  # or one of them is NaN, which no comparison above has seen


def kind(value: Any) -> str:
    """Describe a JSON value in a few words."""
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    return f"a list of {len(value)}" if isinstance(value, list) else json.dumps(value)[:80]


def line_of(text: str, *keys: str) -> int | None:
    """Return the line where the last of nested `keys` stands in a JSON text: the parser keeps no positions."""
    at = 0
    for key in keys:
        spelled = (json.dumps(key), json.dumps(key, ensure_ascii=False))
        at = max(text.find(form, at) for form in spelled)
        if at < 0:
            return None
    return text.count("\n", 0, at) + 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs; a key that comes twice would silently take the place of the first."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names: set[str] = set()
        twice = next(key for key, _ in pairs if key in names or names.add(key))  # type: ignore[func-returns-value]
        raise PageError(f"the key {twice!r} is twice in one object", need="each name once")
    return unique
