"""Outlines of shrunk text into polygons of as many points as they need: as published, and by the exact inverse.

Shapes: N outlines, P points; coordinates as in `quads`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import cv2
import numpy as np
import pyclipper
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.postprocess.quads import GROWN, Outline
from ocrlab.postprocess.scores import Map, polygon_score

TOLERANCE = 0.002  # of the perimeter that a simplified outline may leave the outline
FINE = 64  # steps a pixel in which an exact polygon is offset; Clipper counts in whole numbers
SHARP = 2.0  # Clipper's mitre limit: corners of 60 degrees and more stay corners

Found = tuple[Sequence[NDArray[np.number]], list[float]]


def published(
    probability: Map, outlines: Sequence[Outline], ratio: float, min_size: float, box_threshold: float
) -> Found:
    """Return simplified outlines (P, 2), moved outwards by area * ratio / perimeter with round joins, and their scores.

    What falls into several pieces, or gets a hole, is left out, as is what has fewer than 4 points.
    """
    polygons, scores = [], []
    for points, score in simplified(probability, outlines, 4, box_threshold):
        area, perimeter = cv2.contourArea(points), cv2.arcLength(points, True)
        pieces = moved(points, area * ratio / perimeter, pyclipper.JT_ROUND)
        if len(pieces) == 1 and min(cv2.minAreaRect(pieces[0])[1]) >= min_size + GROWN:
            polygons.append(pieces[0])
            scores.append(score)
    return polygons, scores


def exact(
    probability: Map, outlines: Sequence[Outline], shrink_ratio: float, min_size: float, box_threshold: float
) -> Found:
    """Return simplified outlines (P, 2) moved outwards, corners kept, until shrinking them would give the outline."""
    polygons, scores = [], []
    outlines = [o for o in outlines if cv2.contourArea(o) > 0 and min(cv2.minAreaRect(o)[1]) >= min_size]
    for points, score in simplified(probability, outlines, 3, box_threshold):
        distance = float(geometry.unshrink_distance(cv2.contourArea(points), cv2.arcLength(points, True), shrink_ratio))
        pieces = moved(points * FINE, distance * FINE, pyclipper.JT_MITER)
        if pieces:
            polygons.append(max(pieces, key=cv2.contourArea) / FINE)  # the others are holes
            scores.append(score)
    return polygons, scores


def simplified(
    probability: Map, outlines: Sequence[Outline], fewest: int, box_threshold: float
) -> Iterator[tuple[NDArray[np.int32], float]]:
    """Yield each outline with the points that it can do without left out (P, 2), and its score.

    Outlines of fewer than `fewest` points after that, and those that score below `box_threshold`, are passed over.
    """
    for outline in outlines:
        points = cv2.approxPolyDP(outline, TOLERANCE * cv2.arcLength(outline, True), True)[:, 0]
        if len(points) >= fewest:
            score = polygon_score(probability, points)
            if score >= box_threshold:
                yield points, score


def moved(points: NDArray[np.int32], distance: float, join: int) -> list[NDArray[np.int32]]:
    """Return the polygons that Clipper makes of a polygon (P, 2) by moving its edges outwards by `distance`."""
    clipper = pyclipper.PyclipperOffset(SHARP)
    clipper.AddPath(points.tolist(), join, pyclipper.ET_CLOSEDPOLYGON)
    pieces = clipper.Execute(distance)
    return [np.fromiter(chain.from_iterable(piece), np.int32, 2 * len(piece)).reshape(-1, 2) for piece in pieces]
