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

from ocrlab.data.annotations import LIMIT, Boxes, BoxReader, Entry, PageError
from ocrlab.data.field_parsing import box, first, flag, flat_points, kind, string
from ocrlab.geometry import Polygon

MOST_RUNS = 100_000  # a text of a 10,000 pixel page has some thousands; more is noise, whose outline takes minutes
SLACK = 0.75  # pixels that the outline may cut off corners: the steps of a slanted edge become a line
NEED = '{"size": [height, width], "counts": [background, text, background, ...] or the same packed into a string}'


def rle_polygons(mask: Any) -> list[Polygon]:
    """Return the outlines (P, 2) float32 of a run-length mask, one for each connected part, without holes.

    The outline runs along the edges of the pixels. Raises PageError for counts that do not fill the size.
    """
    size, counts = mask.get("size"), mask.get("counts")
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int and 0 < n <= LIMIT for n in size)):
        raise PageError("the size of a run-length mask is not usable", got=kind(size), need=NEED)
    runs = unpack(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(type(n) is int and n >= 0 for n in runs):
        raise PageError("the counts of a run-length mask are not usable", got=kind(counts), need=NEED)
    height, width = size
    if sum(runs) != height * width:
        got = f"{sum(runs)} pixels for {height} x {width}"
        raise PageError("a run-length mask does not fill its size", got=got, need=f"{height * width} pixels")
    if len(runs) > MOST_RUNS:
        do = "Draw the text as a polygon"
        raise PageError("a run-length mask is too ragged", got=f"{len(runs)} runs", need=f"at most {MOST_RUNS}", do=do)
    ends = np.cumsum(np.array(runs, np.int64))
    starts, ends = ends[:-1:2], ends[1::2]
    starts, ends = starts[ends > starts], ends[ends > starts]
    # A run goes down the columns: a rectangle in its first column, one of whole columns, one in its last.
    first, top, last, bottom = starts // height, starts % height, (ends - 1) // height, (ends - 1) % height + 1
    single, whole = first == last, last > first + 1
    blocks = [
        shapely.box(first, top, first + 1, np.where(single, bottom, height)),
        shapely.box(first[whole] + 1, 0, last[whole], height),
        shapely.box(last[~single], 0, last[~single] + 1, bottom[~single]),
    ]
    shape = shapely.union_all(np.concatenate(blocks))
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


COCO = '{"images": [{"id": 1, "file_name": NAME}], "annotations": [{"image_id": 1, "segmentation": [[x, y, ...]]}]}'
COCO_TEXT = '{"imgs": {"1": {"file_name": NAME}}, "anns": {"7": {"image_id": 1, "mask": [x, y, ...]}}}'
TEXTS = ("text", "utf8_string", "transcription")
POLYGONS = ("mask", "polygon", "points")  # of COCO-Text 2, COCO-Text 1, TextOCR


def coco(data: dict[str, Any], _lines: object) -> tuple[list[Entry], list[str]]:
    """Return the pages of a COCO JSON; every category is taken as text."""
    images, annotations, categories = data["images"], data.get("annotations"), data.get("categories")
    if not isinstance(annotations, list):
        raise PageError("COCO without a list of annotations", got=kind(annotations), need=COCO)
    by_image: dict[str, list[Any]] = defaultdict(list)
    for annotation in annotations:
        by_image[_id(annotation, "image_id")].append(annotation)
    ids = Counter(_id(image, "id") for image in images)
    entries = []
    for image in images:
        key = _id(image, "id")
        items = [(annotation.get("id"), annotation) for annotation in by_image.get(key, [])]
        entries.append(Entry(image.get("file_name"), partial(_read_page, image, items, _coco_box, ids[key])))
    notes = _orphans([key for key in by_image if key not in ids], len(annotations))
    if isinstance(categories, list) and len(categories) > 1:
        names = ", ".join(str(category.get("name")) for category in categories[:5] if isinstance(category, dict))
        notes.append(f"all {len(categories)} categories ({names}{', ...' * (len(categories) > 5)}) are taken as text")
    return entries, notes + _silent([key for key in ids if key not in by_image], len(ids))


def _read_page(image: dict[str, Any], items: list[tuple[Any, Any]], read: BoxReader, times: int = 1) -> Boxes:
    if times > 1:
        need = "each id once: annotations name their image by it"
        raise PageError(f"image id {image['id']} occurs {times} times", need=need)
    return Boxes(size=_size(image)).read("annotation {}", items, read)


def _coco_box(annotation: dict[str, Any]) -> tuple[Polygon, str, bool]:
    """Return outline, text and flag of a COCO annotation."""
    ignored = any(flag(annotation.get(key), key) for key in ("iscrowd", "ignore"))
    text = string(first(annotation, TEXTS), "text")
    segmentation = annotation.get("segmentation")
    if isinstance(segmentation, dict):
        parts = rle_polygons(segmentation)
    else:
        listed = segmentation if isinstance(segmentation, list) else []
        listed = [listed] if listed and not isinstance(listed[0], list) else listed
        parts = [flat_points(part, "segmentation") for part in listed]
    parts = [part for part in parts if len(part) >= 3]
    if not parts:
        return box(annotation.get("bbox"), "bbox"), text, ignored
    if len(parts) == 1:
        return parts[0], text, ignored
    hull = shapely.convex_hull(shapely.multipoints(np.concatenate(parts).astype(np.float64)))
    return np.asarray(shapely.get_coordinates(hull)[:-1], np.float32), text, ignored


def coco_text(data: dict[str, Any], _lines: object) -> tuple[list[Entry], list[str]]:
    """Return the pages of a COCO-Text or TextOCR JSON, each with the split of its `set`."""
    images, annotations, index = (data.get(key) for key in ("imgs", "anns", "imgToAnns"))
    if not isinstance(images, dict) or not isinstance(annotations, dict) or not isinstance(index, dict | None):
        raise PageError("imgs, anns or imgToAnns is not an object", got=kind(data), need=COCO_TEXT)
    index = index or {}
    by_image: dict[str, list[str]] = defaultdict(list)
    for key, annotation in annotations.items():
        by_image[_id(annotation, "image_id")].append(key)
    entries = []
    for key, image in images.items():
        keys = [str(name) for name in index[key]] if isinstance(index.get(key), list) else by_image.get(key, [])
        row = image if isinstance(image, dict) else {}
        read = partial(_read_page, row, [(name, annotations.get(name)) for name in keys], _coco_text_box)
        entries.append(Entry(row.get("file_name"), read, row["set"] if isinstance(row.get("set"), str) else None))
    listed = {str(key) for keys in index.values() if isinstance(keys, list) for key in keys}
    lost = [key for key, keys in by_image.items() if key not in images and not listed.issuperset(keys)]
    empty = [key for key in images if not index.get(key) and key not in by_image]
    return entries, _orphans(lost, len(annotations)) + _silent(empty, len(images))


def _coco_text_box(annotation: Any) -> tuple[Polygon, str, bool]:
    if not isinstance(annotation, dict):
        raise PageError("is in imgToAnns and not in anns", got=kind(annotation), need="an object")
    text, polygon = string(annotation.get("utf8_string"), "utf8_string"), first(annotation, POLYGONS)
    if isinstance(polygon, list) and len(polygon) >= 6 and len(polygon) % 2 == 0:
        outline = flat_points(polygon, "mask")
    else:  # some annotations of the published files have half a polygon; their bbox is whole
        outline = box(annotation.get("bbox"), "bbox")
    legible = annotation.get("legibility")
    return outline, text, legible == "illegible" if legible is not None else text == "."


def _size(image: dict[str, Any]) -> tuple[int, int] | None:
    """Return width and height of an image as its row has them; some files have none, or zeros."""
    width, height = image.get("width"), image.get("height")
    return (width, height) if isinstance(width, int) and isinstance(height, int) and min(width, height) > 0 else None


def _id(row: Any, key: str) -> str:
    """Return a number that joins the tables, as text: some files write it as a string on one side only."""
    value = row.get(key) if isinstance(row, dict) else None
    if not isinstance(value, int | str):
        raise PageError(f"a row of the tables has no {key}", got=kind(row), need=f'{{"{key}": a number}}')
    return str(value)


def _orphans(keys: list[str], total: int) -> list[str]:
    what = f"annotations of images that are not listed are left out: image_id {_few(keys)} ({total} annotations in all)"
    return [what] if keys else []


def _silent(keys: list[str], total: int) -> list[str]:
    what = f"{len(keys)} of {total} images have no annotation (id {_few(keys)}): taken as pages without text"
    return [f"{what}, not forgotten"] if keys else []


def _few(keys: list[str]) -> str:
    return ", ".join(keys[:5]) + ", ..." * (len(keys) > 5)
