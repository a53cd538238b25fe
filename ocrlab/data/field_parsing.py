"""Values out of somebody's JSON or text, checked: each function returns what was meant, or raises PageError."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocrlab.data.annotations import LIMIT, PageError
from ocrlab.geometry import Polygon


def parse(text: str) -> Any:
    """Parse JSON; raises PageError, whose line counts inside `text`, also for a key that an object has twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) < len(pairs):  # the second would silently take the place of the first
            keys = [key for key, _ in pairs]
            twice = next(key for at, key in enumerate(keys) if key in keys[:at])
            raise PageError(f"the key {twice!r} occurs twice in one object", need="each name once")
        return names

    try:
        return json.loads(text, object_pairs_hook=unique)
    except PageError:
        raise
    except (ValueError, RecursionError) as error:
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
    except (TypeError, ValueError):  # not a point
        flat = [None]
    if not are_positions(flat):
        for index, point in enumerate(value):
            if not (isinstance(point, list) and len(point) == 2 and are_positions(point)):
                raise PageError(f"{key}[{index}] is not a point", got=json.dumps(point)[:80], need="[x, y] in pixels")
    return np.array(flat, np.float32).reshape(-1, 2)


def flat_points(value: Any, key: str) -> Polygon:
    """Return a list x1, y1, ..., xP, yP as (P, 2) float32."""
    if not (isinstance(value, list) and len(value) % 2 == 0 and are_positions(value)):
        raise PageError(f"{key} is not a polygon", got=json.dumps(value)[:80], need="[x1, y1, ..., xN, yN] in pixels")
    return np.array(value, np.float32).reshape(-1, 2)


def box(value: Any, key: str) -> Polygon:
    """Return [left, top, width, height] as a quad (4, 2) float32, clockwise from the top left."""
    if not (isinstance(value, list) and len(value) == 4 and are_positions(value) and min(value[2:]) >= 0):
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
    """Return the value of the first of `keys` that an object has, or None."""
    return next((value[key] for key in keys if key in value), None)


def are_positions(values: Sequence[Any]) -> bool:
    """Return whether all values are numbers that can be positions in pixels; a large data set has millions."""
    if not values:
        return True
    if not {int, float}.issuperset(map(type, values)) or min(values) < -LIMIT or max(values) > LIMIT:  # bool is neither
        return False
    total = sum(values)
    return bool(total == total)  # or one of them is NaN, which no comparison above has noticed


def kind(value: Any) -> str:
    """Describe a JSON value in a few words."""
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    return f"a list of {len(value)}" if isinstance(value, list) else json.dumps(value)[:80]


class Lines:
    """The lines of keys in a JSON text, of which the parser reports no positions.

    A search begins where the last one ended: thousands of pages of one file may be reported, in its order.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at, self.line = 0, 1

    def of(self, *keys: str) -> int | None:
        """Return the line of the last of nested `keys`, None if they are not in the text."""
        place = self._find(keys, self.at)
        place = self._find(keys, 0) if place < 0 else place
        if place < 0:
            return None
        self.line += self.text.count("\n", self.at, place) - self.text.count("\n", place, self.at)
        self.at = place
        return self.line

    def _find(self, keys: Sequence[str], place: int) -> int:
        for key in keys:
            forms = {json.dumps(key), json.dumps(key, ensure_ascii=False)}
            place = max(self.text.find(form, place) for form in forms)
            if place < 0:
                break
        return place
