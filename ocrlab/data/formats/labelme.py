"""LabelMe: one JSON a page, beside its image.

    {"shapes": [{"label": "", "points": [[x, y], ...], "shape_type": "polygon", "flags": {}, "description": ""}],
     "imagePath": "../images/page.jpg", "imageData": null, "imageHeight": 1280, "imageWidth": 900}

The transcription is `description` where there is one (LabelMe 5, X-AnyLabeling), else `label`. A flag `ignore` or
`difficult`, and the label ###, mean do not count. `imageData`, a copy of the image, is not looked at.
"""

from __future__ import annotations

from typing import Any

from ocrlab.data import field_parsing
from ocrlab.data.annotations import IGNORED, Boxes, PageError
from ocrlab.geometry import Polygon

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
