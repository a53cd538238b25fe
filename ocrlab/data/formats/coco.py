"""COCO and COCO-Text: one JSON for many pages, images and annotations as tables that meet by number.

    COCO       {"images": [{"id", "file_name"}], "annotations": [{"image_id", "bbox": [left, top, width, height],
               "segmentation": [[x1, y1, ...], ...] or {"size": [height, width], "counts"}, "iscrowd", "text"}]}
    COCO-Text  {"imgs": {ID: {"file_name", "set"}}, "anns": {ID: {"image_id", "mask": [x1, y1, ...], "bbox",
               "legibility", "utf8_string"}}, "imgToAnns": {ID: [ID, ...]}}     (Veit et al. 2016; TextOCR: "points")

`iscrowd`, `ignore`, illegible and TextOCR's "." do not count. Without a polygon of three points the bbox is the box. An
annotation in several parts is one text that something covers: it becomes their hull.

Run-length masks go down the columns, background first, as numbers or packed into a string: a packed count is written in
groups of 5 bits, lowest first, each in one character from '0' on whose sixth bit says that another follows; the highest
bit of the last group is the sign; from the fourth count on it is the difference to the count two before. Source: the
COCO API's mask code (Lin et al. 2014, Microsoft COCO)."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from ocrlab.data import field_parsing
from ocrlab.data.annotations import LIMIT, Boxes, Contents, Document, Entry, PageError
from ocrlab.geometry import Polygon

MOST_RUNS = 100_000  # a text of a 10,000 pixel page has some thousands; more is noise, whose outline takes minutes
SLACK = 0.75  # pixels by which the outline may cut the corners of the pixels: the steps of a slanted edge become a line
NEED = '{"size": [height, width], "counts": [background, text, background, ...] or the same packed into a string}'


def rle_polygons(mask: Any) -> list[Polygon]:
    """Return the outlines (P, 2) float32 of a run-length mask, one for each part that hangs together, without holes.

    The outline runs along the edges of the pixels. Raises PageError for counts that do not fill the size.
    """
    size, counts = mask.get("size"), mask.get("counts")
    good = isinstance(size, list) and len(size) == 2 and all(type(n) is int and 0 < n <= LIMIT for n in size)
    if not good:
        raise PageError("the size of a run-length mask is not usable", got=field_parsing.kind(size), need=NEED)
    runs = unpack(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(type(n) is int and n >= 0 for n in runs):
        raise PageError("the counts of a run-length mask are not usable", got=field_parsing.kind(counts), need=NEED)
    height, width = size
    if sum(runs) != height * width:
        got = f"{sum(runs)} pixels for {height} x {width}"
        raise PageError("a run-length mask does not fill its size", got=got, need=f"{height * width} pixels")
    if len(runs) > MOST_RUNS:
        do = "Draw the text as a polygon"
        raise PageError("a run-length mask is too ragged", got=f"{len(runs)} runs", need=f"at most {MOST_RUNS}", do=do)
    ends = np.cumsum(np.array(runs, np.int64))
    shape = shapely.union_all(_blocks(ends[:-1:2], ends[1::2], height))
    shape = shapely.normalize(shape)  # starts at a corner: before GEOS 3.12 the first point is never taken out
    parts = shapely.get_parts(shapely.simplify(shape, SLACK))
    rings = [shapely.get_coordinates(part.exterior)[:-1] for part in parts if part.geom_type == "Polygon"]
    return [np.asarray(ring, np.float32) for ring in rings]


def unpack(packed: str) -> list[int]:
    """Return the counts that COCO's string form holds; raises PageError for a character it does not use."""
    counts: list[int] = []
    value = shift = 0
    for letter in packed:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            raise PageError("a packed run-length mask is damaged", got=f"the character {letter!r}", need="'0' to 'o'")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (1 << shift) if bits & 16 else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise PageError("a packed run-length mask is cut off", got=f"{len(packed)} characters", need="all of them")
    return counts


def _blocks(starts: NDArray[np.int64], ends: NDArray[np.int64], height: int) -> NDArray[Any]:
    """Return runs start..end-1 down the columns of an image as rectangles: first column, whole columns, last column."""
    some = ends > starts
    starts, ends = starts[some], ends[some]
    first, last = starts // height, (ends - 1) // height
    top, bottom = starts % height, (ends - 1) % height + 1
    single_column = first == last
    whole = last > first + 1
    return np.concatenate(
        [
            shapely.box(first, top, first + 1, np.where(single_column, bottom, height)),
            shapely.box(first[whole] + 1, 0, last[whole], height),
            shapely.box(last[~single_column], 0, last[~single_column] + 1, bottom[~single_column]),
        ]
    )


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
