"""Outlines of shrunk text into quads: as published, and by the exact inverse of the shrink.

Shapes: N outlines, P points; all coordinates are map pixels with the pixel centre at whole numbers. `cv2.fillPoly`
paints the border pixels of a polygon and `cv2.findContours` walks through their centres, so the outline of a painted
polygon is the polygon itself: nothing has to be added for the half pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.evaluation.postprocess.box_scores import Map, box_scores, kernels
from ocrlab.evaluation.postprocess.contours import Outline

Boxes = NDArray[np.float32]  # (N, 4, 2), clockwise from the top left
Scores = NDArray[np.float64]  # (N,)
Shapes = tuple[Boxes, Scores]
Rectangle = tuple[tuple[float, float], tuple[float, float], float]  # middle, sides, degrees, as OpenCV gives it

RAGGED = 2.0  # pixels between a straight line and its outline, both sides together
GROWN = 2  # pixels that the short side must have gained when it was unclipped by a ratio
ROOM = 64  # points for an unclipped quad, which is enough up to about 300 pixels


def published(heat: Map, outlines: Sequence[Outline], ratio: float, min_size: float, box_threshold: float) -> Shapes:
    """Return the smallest rectangles, moved outwards by area * ratio / perimeter, as the published method does.

    Corners are cut to whole pixels, offset by Clipper's rules with round joins, and boxed once more; they are not yet
    rounded. Scores are means over the rectangles before that.
    """
    boxes = corners_of(smallest(outlines, min_size)[0])
    scores = box_scores(heat, boxes)
    sure = scores >= box_threshold
    boxes, scores = boxes[sure], scores[sure]
    grown, indices = smallest(unclipped(boxes, ratio), min_size + GROWN)
    return ordered(corners_of(grown)), scores[indices]


def exact(heat: Map, outlines: Sequence[Outline], ratio: float, min_size: float, box_threshold: float) -> Shapes:
    """Return the rectangles that shrink to these outlines, and their scores: means over the smallest rectangles."""
    outlines = [outline for outline in outlines if cv2.contourArea(outline) > 0]
    rectangles, indices = smallest(outlines, min_size)
    scores = box_scores(heat, corners_of(rectangles))
    sure = np.flatnonzero(scores >= box_threshold)
    return regrown([rectangles[i] for i in sure], [outlines[indices[i]] for i in sure], ratio), scores[sure]


def regrown(rectangles: Sequence[Rectangle], outlines: Sequence[Outline], shrink_ratio: float) -> Boxes:
    """Return the boxes (N, 4, 2) that shrink to these outlines, which lie in these smallest rectangles.

    Direction and length are those of the rectangle, but the thickness is area over length and the middle is that of the
    mass: a shrunk line is a sixth to a quarter as thick as its text, so a pixel that sticks out would be paid four to
    six times. The rectangle loses no more than `RAGGED` pixels by that, because a curved line is not ragged.
    """
    table = np.array([(*middle, *sides, degrees) for middle, sides, degrees in rectangles]).reshape(-1, 5)
    mass = np.array([[m["m00"], m["m10"], m["m01"]] for m in map(cv2.moments, outlines)]).reshape(-1, 3)
    middle, area = table[:, :2], mass[:, 0]
    length, short = table[:, 2:4].max(axis=1), table[:, 2:4].min(axis=1)
    thickness = np.maximum(area / length, short - RAGGED)
    turn = np.deg2rad(table[:, 4] + np.where(table[:, 2] < table[:, 3], 90, 0))
    along = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    across = np.stack([-along[:, 1], along[:, 0]], axis=1)
    room = np.maximum(short - thickness, 0) / 2
    shift = np.clip(((mass[:, 1:] / area[:, None] - middle) * across).sum(axis=1), -room, room)
    distance = geometry.unshrink_distance(area, 2 * (length + thickness), shrink_ratio)
    middle = middle + across * shift[:, None]
    reach, spread = along * (length / 2 + distance)[:, None], across * (thickness / 2 + distance)[:, None]
    grown = [middle - reach - spread, middle + reach - spread, middle + reach + spread, middle - reach + spread]
    return ordered(np.stack(grown, axis=1).astype(np.float32))


def smallest(outlines: Sequence[NDArray[np.int32]], min_size: float) -> tuple[list[Rectangle], list[int]]:
    """Return the rectangles of least area whose short side reaches `min_size`, and the positions of their outlines."""
    rectangles = [cv2.minAreaRect(outline) for outline in outlines]
    indices = [i for i, (_, sides, _) in enumerate(rectangles) if min(sides) >= min_size]
    return [rectangles[i] for i in indices], indices


def corners_of(rectangles: Sequence[Rectangle]) -> Boxes:
    """Return the corners (N, 4, 2) of rectangles, clockwise.

    OpenCV finds them one by one, since the last bit of a corner decides to which pixel it is cut.
    """
    return np.array([cv2.boxPoints(rectangle) for rectangle in rectangles], np.float32).reshape(-1, 4, 2)


def ordered(boxes: Boxes) -> Boxes:
    """Return quads (N, 4, 2) clockwise from the top left: the upper of the two leftmost points comes first."""
    places = np.arange(len(boxes))[:, None]
    by_x = boxes[places, np.argsort(boxes[..., 0], axis=1, kind="stable")]
    left = np.where(by_x[:, 1, 1] > by_x[:, 0, 1], 0, 1)
    right = np.where(by_x[:, 3, 1] > by_x[:, 2, 1], 2, 3)
    return by_x[places, np.stack([left, right, 5 - right, 1 - left], axis=1)]


def unclipped(boxes: Boxes, ratio: float) -> list[NDArray[np.int32]]:
    """Return the points of quads (N, 4, 2), cut to whole pixels, moved outwards by area * ratio / perimeter.

    The points are those of Clipper, but for some that lie between two others.
    """
    fine = boxes.astype(np.float64)
    sides, diagonals = np.roll(fine, -1, axis=1) - fine, fine[:, 2:] - fine[:, :2]
    area = np.abs(diagonals[:, 0, 0] * diagonals[:, 1, 1] - diagonals[:, 0, 1] * diagonals[:, 1, 0]) / 2
    perimeter = np.hypot(sides[..., 0], sides[..., 1]).sum(axis=1)
    distance = np.divide(area * ratio, perimeter, out=np.zeros_like(perimeter), where=perimeter > 0)
    whole = boxes.astype(np.int32)
    points, counts = np.empty((len(boxes), ROOM, 2), np.int32), np.zeros(len(boxes), np.int64)
    kernels().unclip(whole, distance, points, counts)
    return [
        polygon[:count] if count else np.concatenate(geometry.offset(box, reach) or [box]).astype(np.int32)
        for polygon, count, box, reach in zip(points, counts.tolist(), whole, distance.tolist(), strict=True)
    ]
