"""Where the characters of a text box are taken to be, how many there are, and which lie inside a detection.

N polygons, M detections, K characters of all polygons together, L pairs. The pseudo character centres of CLEval
(Baek et al. 2020): equal steps along the middle line of a box. Coordinates are pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrlab.errors import ShapeError
from ocrlab.evaluation.metrics.polygon_overlap import NEXT, Floats, Indices, Mask, Shapes

Counts = npt.NDArray[np.int64]
MOST = 10  # characters that a shape alone can stand for
UPRIGHT = 0.5  # width over height, below which a quad is read from bottom to top


@dataclass(frozen=True)
class Taken:
    """Which characters lie inside which detections: entry i is character `char[i]` of pair `pair[i]`."""

    pair: Indices
    char: Indices
    count: Counts  # (L,) of each pair
    owner: Indices  # (K,) the polygon of each character


def ratios(boxes: Shapes) -> Floats:
    """Return width over height (N,): of a quad the mean lengths of its sides, of others that of the bounding box."""
    steps = boxes.corners[:, NEXT] - boxes.corners
    sides = np.sqrt(steps[..., 0] * steps[..., 0] + steps[..., 1] * steps[..., 1])
    wide, high = (sides[:, 0] + sides[:, 2]) / 2, (sides[:, 1] + sides[:, 3]) / 2
    if not boxes.four.all():
        left, top, right, bottom = np.nan_to_num(boxes.bounds).T  # NaN if not valid: then a square
        wide, high = np.where(boxes.four, wide, right - left), np.where(boxes.four, high, bottom - top)
    quotients: Floats = (wide + 1e-5) / (high + 1e-5)
    return quotients


def lengths(boxes: Shapes, ratio: Floats, skip: Mask, texts: Sequence[str] | None) -> Counts:
    """Return the number of characters (N,): those of the text, or those of the shape without texts or where `skip`.

    Raises ShapeError if there is not one text a polygon.
    """
    if texts is not None and len(texts) != len(boxes):
        what = "The texts do not fit the ground truth"
        raise ShapeError(what, got=f"{len(texts)} texts", need=f"{len(boxes)}, one a polygon")
    shape: Counts = np.minimum(np.rint(0.5 + np.maximum(ratio, 1 / ratio)), MOST).astype(np.int64)
    if texts is None:
        return shape
    text_lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return np.where(skip, shape, text_lengths)


def centres(boxes: Shapes, ratio: Floats, count: Counts) -> tuple[Floats, Indices]:
    """Return the character centres (K, 2) of all polygons, one polygon after the other, and their owners (K,)."""
    owner = np.repeat(np.arange(len(boxes)), count)
    place = np.arange(len(owner)) - (np.cumsum(count) - count)[owner]
    top_left, top_right, bottom_right, bottom_left = boxes.corners.transpose(1, 0, 2)
    across = (ratio >= UPRIGHT)[:, None]
    start = (np.where(across, top_left, bottom_left) + np.where(across, bottom_left, bottom_right)) / 2
    stop = (np.where(across, top_right, top_left) + np.where(across, bottom_right, top_right)) / 2
    step = (stop - start) / np.maximum(count, 1)[:, None]
    points: Floats = start[owner] + step[owner] / 2 + step[owner] * place[:, None]
    for i in np.flatnonzero(~boxes.four & (count > 0)).tolist():
        points[owner == i] = middle_line(boxes.points[i], (np.arange(count[i]) + 0.5) / count[i])
    return points, owner


def middle_line(points: Floats, at: Floats) -> Floats:
    """Return the places (A, 2) at the shares `at` (A,) of a polygon's middle line.

    Its first half of the points is the upper edge from left to right, the rest the lower edge back, as curved text is
    annotated (Total-Text, SCUT-CTW1500).
    """
    half = (len(points) + 1) // 2
    edges = []
    for edge in (points[:half], points[half:][::-1]):
        steps = np.diff(edge, axis=0)
        along = np.concatenate([[0.0], np.cumsum(np.hypot(steps[:, 0], steps[:, 1]))])
        edges.append(np.stack([np.interp(at * along[-1], along, edge[:, axis]) for axis in (0, 1)], axis=1))
    line: Floats = (edges[0] + edges[1]) / 2
    return line


def taken(boxes: Shapes, ratio: Floats, count: Counts, detections: Shapes, pairs: tuple[Indices, Indices]) -> Taken:
    """Return which of the `count` (N,) characters lie inside the detections of `pairs`, two times (L,).

    A point on an edge is inside if the edge is to the left or above: crossings are counted to its right (even-odd).
    """
    centre, owner = centres(boxes, ratio, count)
    rows, columns = pairs
    size = count[rows]
    pair = np.repeat(np.arange(len(rows)), size)
    char = np.arange(len(pair)) + np.repeat((np.cumsum(count) - count)[rows] - (np.cumsum(size) - size), size)
    (x, y), corner = centre[char].T, padded(detections)[:, :, columns[pair]]
    (x1, y1), (x2, y2) = corner, np.concatenate([corner[:, -1:], corner[:, :-1]], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossed = ((y1 <= y) != (y2 <= y)) & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    inside = np.logical_xor.reduce(crossed, axis=0)
    counted = np.bincount(pair[inside], minlength=len(rows))
    return Taken(pair[inside], char[inside], counted, owner)


def padded(boxes: Shapes) -> Floats:
    """Return the corners of all polygons (2, P, N); shorter ones repeat their last, which adds edges of no length."""
    if boxes.four.all():
        return boxes.corners.transpose(2, 1, 0)
    longest = max(len(p) for p in boxes.points)
    every = [np.pad(p, ((0, longest - len(p)), (0, 0)), "edge" if len(p) else "constant") for p in boxes.points]
    return np.array(every).transpose(2, 1, 0)
