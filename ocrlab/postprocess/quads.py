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
from ocrlab.postprocess.scores import Map, box_scores

Outline = NDArray[np.int32]  # (P, 1, 2), as OpenCV gives it
Boxes = NDArray[np.float32]  # (N, 4, 2), clockwise from the top left
Scores = NDArray[np.float64]  # (N,)
Rectangle = tuple[tuple[float, float], tuple[float, float], float]  # middle, sides, degrees, as OpenCV gives it

RAGGED = 2.0  # pixels by which the outline of a straight line may leave it, both sides together
GROWN = 2  # pixels that the short side must have gained when it was unclipped by a ratio
ARC_TOLERANCE = 0.25  # pixels, Clipper's default


def published(
    probability: Map, outlines: Sequence[Outline], ratio: float, min_size: float, box_threshold: float
) -> tuple[Boxes, Scores]:
    """Return the smallest rectangles, moved outwards by area * ratio / perimeter, as the published method does.

    Corners are cut to whole pixels, offset by Clipper's rules with round joins, and boxed once more; they are not yet
    rounded. Scores are means over the rectangles before that.
    """
    boxes, _ = smallest_boxes(outlines, min_size)
    scores = box_scores(probability, boxes)
    sure = scores >= box_threshold
    boxes, scores = boxes[sure], scores[sure]
    sides = boxes.astype(np.float64) - np.roll(boxes, -1, axis=1)
    perimeter = np.hypot(sides[..., 0], sides[..., 1]).sum(axis=1)
    distance = np.divide(area(boxes) * ratio, perimeter, out=np.zeros_like(perimeter), where=perimeter > 0)
    grown, kept = smallest_boxes(offset(boxes.astype(np.int64), distance), min_size + GROWN)
    return ordered(grown), scores[kept]


def exact(
    probability: Map, outlines: Sequence[Outline], shrink_ratio: float, min_size: float, box_threshold: float
) -> tuple[Boxes, Scores]:
    """Return the rectangles that shrink to these outlines, and their scores: means over the smallest rectangles."""
    outlines = [outline for outline in outlines if cv2.contourArea(outline) > 0]
    rectangles = [cv2.minAreaRect(outline) for outline in outlines]
    kept = [i for i, (_, sides, _) in enumerate(rectangles) if min(sides) >= min_size]
    scores = box_scores(probability, corners_of([rectangles[i] for i in kept]))
    sure = [kept[i] for i in np.flatnonzero(scores >= box_threshold)]
    grown = regrown([rectangles[i] for i in sure], [outlines[i] for i in sure], shrink_ratio)
    return grown, scores[scores >= box_threshold]


def regrown(rectangles: Sequence[Rectangle], outlines: Sequence[Outline], shrink_ratio: float) -> Boxes:
    """Return the boxes (N, 4, 2) that shrink to these outlines, which lie in these smallest rectangles.

    Direction and length are those of the rectangle, but the thickness is area over length and the middle is that of the
    mass: a shrunk line is a sixth to a quarter as thick as its text, so a pixel that sticks out would be paid four to
    six times. The rectangle loses no more than `RAGGED` pixels by that, because a curved line is not ragged.
    """
    table = np.array([(*middle, *sides, turn) for middle, sides, turn in rectangles]).reshape(-1, 5)
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


def smallest_boxes(outlines: Sequence[NDArray[np.int32]], min_size: float) -> tuple[Boxes, NDArray[np.intp]]:
    """Return the rectangles of least area whose short side reaches `min_size`, and the positions of their outlines."""
    rectangles = [cv2.minAreaRect(outline) for outline in outlines]
    kept = [i for i, (_, sides, _) in enumerate(rectangles) if min(sides) >= min_size]
    return corners_of([rectangles[i] for i in kept]), np.array(kept, dtype=np.intp)


def corners_of(rectangles: Sequence[Rectangle]) -> Boxes:
    """Return the corners (N, 4, 2) of OpenCV's rotated rectangles, clockwise."""
    return np.array([cv2.boxPoints(r) for r in rectangles], dtype=np.float32).reshape(-1, 4, 2)


def ordered(boxes: Boxes) -> Boxes:
    """Return quads (N, 4, 2) clockwise from the top left: the upper of the two leftmost points comes first."""
    by_x = np.take_along_axis(boxes, np.argsort(boxes[..., 0], axis=1, kind="stable")[..., None], axis=1)
    upper_left = np.where(by_x[:, 1, 1] > by_x[:, 0, 1], 0, 1)
    upper_right = np.where(by_x[:, 3, 1] > by_x[:, 2, 1], 2, 3)
    order = np.stack([upper_left, upper_right, 5 - upper_right, 1 - upper_left], axis=1)
    return np.take_along_axis(by_x, order[..., None], axis=1)


def area(boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the areas (N,) of quads (N, 4, 2)."""
    first, second = (boxes[:, 2:].astype(np.float64) - boxes[:, :2]).transpose(1, 0, 2)  # the two diagonals
    return np.abs(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]) / 2


def offset(quads: NDArray[np.int64], distance: NDArray[np.float64]) -> list[NDArray[np.int32]]:
    """Return the points of convex clockwise quads (N, 4, 2) moved outwards by `distance` (N,), with round joins.

    The points are those that Clipper 6 makes, rounding included; that one may lie between two others does not matter to
    the rectangle round them. Other quads, and distances of about a pixel, go to Clipper itself.
    """
    sides = (np.roll(quads, -1, axis=1) - quads).astype(np.float64)
    length = np.hypot(sides[..., 0], sides[..., 1])
    unit = sides / np.where(length > 0, length, 1)[..., None]
    after = np.stack([unit[..., 1], -unit[..., 0]], axis=-1)  # (N, 4, 2) outward normals of the side after a corner
    before = np.roll(after, 1, axis=1)
    sine = before[..., 0] * after[..., 1] - after[..., 0] * before[..., 1]
    plain = (sine * distance[:, None] >= 1).all(axis=1)  # below that Clipper drops corners
    reach = np.where(plain, distance, 1.0)
    per_turn = np.minimum(np.pi / np.arccos(1 - np.minimum(ARC_TOLERANCE / reach, ARC_TOLERANCE)), reach * np.pi)
    angle = np.arctan2(sine, (before * after).sum(axis=-1))
    steps = np.maximum(np.floor(per_turn[:, None] / (2 * np.pi) * angle + 0.5), 1)  # of the arc round a corner
    turn_x, turn_y = np.cos(2 * np.pi / per_turn)[:, None], np.sin(2 * np.pi / per_turn)[:, None]
    arms, x, y = [before], before[..., 0], before[..., 1]
    for step in range(1, int(steps.max(initial=1))):
        x, y = x * turn_x - turn_y * y, x * turn_y + y * turn_x
        arms.append(np.where((step < steps)[..., None], np.stack([x, y], axis=-1), after))
    arms.append(after)
    moved = quads[:, :, None] + np.stack(arms, axis=2) * reach[:, None, None, None]  # (N, 4, steps + 1, 2)
    rounded = np.trunc(moved + np.copysign(0.5, moved)).astype(np.int32).reshape(len(quads), 4 * len(arms), 2)
    grown = list(rounded)
    for i in np.flatnonzero(~plain):
        pieces = geometry.offset(quads[i], distance[i]) or [quads[i]]
        grown[i] = np.concatenate(pieces).astype(np.int32)
    return grown
