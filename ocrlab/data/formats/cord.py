"""CORD: one JSON a page, or a line of a metadata.jsonl (Park et al. 2019, a consolidated receipt dataset).

    {"valid_line": [{"words": [{"quad": {"x1", "y1", ..., "x4", "y4"}, "text": ""}], "group_id", "category"}],
     "repeating_symbol": [[{"quad", "text"}]], "dontcare": [[{"x1", ...}]], "meta": {...}, "roi": {...}}
    {"file_name": NAME, "ground_truth": the same as a string or an object, often with "gt_parse" beside "valid_line"}

A word is a box. Separator rows (`repeating_symbol`) and `dontcare` regions do not count.
"""

from __future__ import annotations

from typing import Any

from ocrlab.data import field_parsing
from ocrlab.data.annotations import Boxes, PageError
from ocrlab.geometry import Polygon

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
