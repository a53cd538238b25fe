"""COCO and COCO-Text: one JSON for many pages, images and annotations as tables that meet by number.

    COCO       {"images": [{"id", "file_name"}], "annotations": [{"image_id", "bbox": [left, top, width, height],
               "segmentation": [[x1, y1, ...], ...] or {"size": [height, width], "counts"}, "iscrowd", "text"}]}
    COCO-Text  {"imgs": {ID: {"file_name", "set"}}, "anns": {ID: {"image_id", "mask": [x1, y1, ...], "bbox",
               "legibility", "utf8_string"}}, "imgToAnns": {ID: [ID, ...]}}     (Veit et al. 2016; TextOCR: "points")

`iscrowd`, `ignore`, illegible and TextOCR's "." do not count. Without a polygon of three points the bbox is the box. An
annotation in several parts is one text that something covers: it becomes their hull.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import Any

import numpy as np
import shapely

from ocrlab.data import field_parsing
from ocrlab.data.annotations import Boxes, Contents, Document, Entry, PageError
from ocrlab.data.formats.coco_rle import rle_polygons
from ocrlab.geometry import Polygon

COCO = '{"images": [{"id": 1, "file_name": NAME}], "annotations": [{"image_id": 1, "segmentation": [[x, y, ...]]}]}'
COCO_TEXT = '{"imgs": {"1": {"file_name": NAME}}, "anns": {"7": {"image_id": 1, "mask": [x, y, ...]}}}'
TEXTS = ("text", "utf8_string", "transcription")
POLYGONS = ("mask", "polygon", "points")  # of COCO-Text 2, COCO-Text 1, TextOCR


def coco(document: Document) -> Contents:
    """Return the pages of a COCO JSON; every category is taken as text."""
    images, annotations = document.data["images"], document.data.get("annotations")
    if not isinstance(annotations, list):
        raise PageError("COCO without a list of annotations", got=field_parsing.kind(annotations), need=COCO)
    of_image: dict[str, list[Any]] = defaultdict(list)
    for annotation in annotations:
        of_image[_id(annotation, "image_id")].append(annotation)
    entries, ids = [], Counter(_id(image, "id") for image in images)
    for image in images:
        key = _id(image, "id")
        read = partial(_coco_page, image, of_image.get(key, []))
        read = read if ids[key] == 1 else partial(_twice, key, ids[key])
        entries.append(Entry(image.get("file_name") if isinstance(image, dict) else None, read))
    notes = _orphans([key for key in of_image if key not in ids], sum(map(len, of_image.values())))
    categories = document.data.get("categories")
    if isinstance(categories, list) and len(categories) > 1:
        names = ", ".join(str(category.get("name")) for category in categories[:5] if isinstance(category, dict))
        notes.append(f"all {len(categories)} categories ({names}{', ...' * (len(categories) > 5)}) are taken as text")
    return Contents(entries, notes + _silent([key for key in ids if key not in of_image], len(ids)))


def coco_text(document: Document) -> Contents:
    """Return the pages of a COCO-Text or TextOCR JSON, each with the split of its `set`."""
    images, annotations, index = (document.data.get(key) for key in ("imgs", "anns", "imgToAnns"))
    if not isinstance(images, dict) or not isinstance(annotations, dict) or not isinstance(index, dict | None):
        raise PageError(
            "imgs, anns or imgToAnns is not an object", got=field_parsing.kind(document.data), need=COCO_TEXT
        )
    of_image: dict[str, list[str]] = defaultdict(list)
    for key, annotation in annotations.items():
        of_image[_id(annotation, "image_id")].append(key)
    listed = {str(key) for keys in (index or {}).values() for key in (keys if isinstance(keys, list) else [])}
    entries = []
    for key, image in images.items():
        own = (index or {}).get(key)
        keys = [str(name) for name in own] if isinstance(own, list) else of_image.get(key, [])
        part = image.get("set") if isinstance(image, dict) else None
        name = image.get("file_name") if isinstance(image, dict) else None
        read = partial(_coco_text_page, image, annotations, keys)
        entries.append(Entry(name, read, part if isinstance(part, str) else None))
    lost = [key for key, keys in of_image.items() if key not in images and not listed.issuperset(keys)]
    empty = [key for key in images if not (index or {}).get(key) and key not in of_image]
    return Contents(entries, _orphans(lost, len(annotations)) + _silent(empty, len(images)))


def _coco_page(image: Any, annotations: list[Any]) -> Boxes:
    boxes = Boxes(size=_size(image))
    for annotation in annotations:
        try:
            ignored = any(field_parsing.flag(annotation.get(key), key) for key in ("iscrowd", "ignore"))
            boxes.add(
                _outline(annotation), field_parsing.string(field_parsing.first(annotation, TEXTS), "text"), ignored
            )
        except PageError as error:
            raise PageError(f"annotation {annotation.get('id')}: {error}".rstrip(".")) from None
    return boxes


def _coco_text_page(image: Any, annotations: dict[str, Any], keys: list[str]) -> Boxes:
    boxes = Boxes(size=_size(image))
    for key in keys:
        annotation = annotations.get(key)
        try:
            if not isinstance(annotation, dict):
                raise PageError("is in imgToAnns and not in anns", got=field_parsing.kind(annotation), need="an object")
            text = field_parsing.string(annotation.get("utf8_string"), "utf8_string")
            polygon = field_parsing.first(annotation, POLYGONS)
            if isinstance(polygon, list) and len(polygon) >= 6 and len(polygon) % 2 == 0:
                outline = field_parsing.flat_points(polygon, "mask")
            else:  # some annotations of the published files have half a polygon; their bbox is whole
                outline = field_parsing.box(annotation.get("bbox"), "bbox")
            legible = annotation.get("legibility")
            boxes.add(outline, text, legible == "illegible" if legible is not None else text == ".")
        except PageError as error:
            raise PageError(f"annotation {key}: {error}".rstrip(".")) from None
    return boxes


def _outline(annotation: dict[str, Any]) -> Polygon:
    """Return the outline of a COCO annotation as (P, 2)."""
    segmentation = annotation.get("segmentation")
    if isinstance(segmentation, dict):
        parts = rle_polygons(segmentation)
    else:
        listed = segmentation if isinstance(segmentation, list) else []
        listed = [listed] if listed and not isinstance(listed[0], list) else listed
        parts = [field_parsing.flat_points(part, "segmentation") for part in listed]
    parts = [part for part in parts if len(part) >= 3]
    if not parts:
        return field_parsing.box(annotation.get("bbox"), "bbox")
    if len(parts) == 1:
        return parts[0]
    hull = shapely.convex_hull(shapely.multipoints(np.concatenate(parts).astype(np.float64)))
    return np.asarray(shapely.get_coordinates(hull)[:-1], np.float32)


def _size(image: Any) -> tuple[int, int] | None:
    """Return width and height of an image as its row has them; some files have none, or zeros."""
    width, height = (image.get(key) if isinstance(image, dict) else None for key in ("width", "height"))
    return (width, height) if isinstance(width, int) and isinstance(height, int) and min(width, height) > 0 else None


def _id(row: Any, key: str) -> str:
    """Return a number that joins the tables, as text: some files write it as a string on one side only."""
    value = row.get(key) if isinstance(row, dict) else None
    if not isinstance(value, int | str):
        raise PageError(f"a row of the tables has no {key}", got=field_parsing.kind(row), need=f'{{"{key}": a number}}')
    return str(value)


def _twice(key: str, count: int) -> Boxes:
    raise PageError(f"image id {key} is here {count} times", need="each id once: annotations name their image by it")


def _orphans(keys: list[str], total: int) -> list[str]:
    if not keys:
        return []
    shown = ", ".join(keys[:5]) + ", ..." * (len(keys) > 5)
    return [f"annotations of images that are not listed are left out: image_id {shown} ({total} annotations in all)"]


def _silent(keys: list[str], total: int) -> list[str]:
    if not keys:
        return []
    shown = ", ".join(keys[:5]) + ", ..." * (len(keys) > 5)
    return [
        f"{len(keys)} of {total} images have no annotation (id {shown}): taken as pages without text, not forgotten"
    ]
