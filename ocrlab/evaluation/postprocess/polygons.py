"""Outlines of shrunk text into polygons of as many points as they need: as published, and by the exact inverse.

Shapes: N outlines, P points; coordinates as in `quads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import cv2
import numpy as np
import pyclipper
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.evaluation.postprocess.box_scores import Map, flat, kernels, polygon_scores
from ocrlab.evaluation.postprocess.contours import Outline
from ocrlab.evaluation.postprocess.quads import GROWN

TOLERANCE = 0.002  # of the perimeter that a simplified outline may leave the outline
FINE = 64  # steps a pixel in which an exact polygon is offset; Clipper counts in whole numbers
MITRE_LIMIT = 2.0  # Clipper's: corners of 60 degrees and more stay corners
ROUNDED = 2.0  # pixels that a polygon may grow too little, both sides together

Points = NDArray[np.int32]
Shapes = tuple[Sequence[NDArray[np.number]], list[float]]


def published(heat: Map, outlines: Sequence[Outline], ratio: float, min_size: float, box_threshold: float) -> Shapes:
    """Return simplified outlines (P, 2), moved outwards by area * ratio / perimeter with round joins, and their scores.

    What falls into several pieces, or gets a hole, is left out, as is what has fewer than 4 points.
    """
    shapes, sure = simplified(heat, outlines, 4, box_threshold)
    polygons, distances = unclipped(shapes, ratio)
    # What is convex is at least twice as wide as its area over its perimeter, what is not is wider still. So nearly all
    # polygons are wide enough for certain, and of the others the rectangle tells.
    wide = (2 * distances * (1 + 1 / ratio) - ROUNDED >= min_size + GROWN).tolist()
    chosen = []
    for i, points in enumerate(polygons):
        if len(points) and (wide[i] or min(cv2.minAreaRect(points)[1]) >= min_size + GROWN):
            chosen.append(i)
    return [polygons[i] for i in chosen], [sure[i] for i in chosen]


def exact(heat: Map, outlines: Sequence[Outline], ratio: float, min_size: float, box_threshold: float) -> Shapes:
    """Return simplified outlines (P, 2) moved outwards, corners kept, until shrinking them would give the outline."""
    outlines = [o for o in outlines if cv2.contourArea(o) > 0 and min(cv2.minAreaRect(o)[1]) >= min_size]
    shapes, sure = simplified(heat, outlines, 3, box_threshold)
    if not shapes:
        return [], []
    area = np.array([cv2.contourArea(points) for points in shapes])
    length = np.array([cv2.arcLength(points, True) for points in shapes])
    distances = np.asarray(geometry.unshrink_distance(area, length, ratio))
    every = move_edges([points * FINE for points in shapes], distances * FINE, pyclipper.JT_MITER)
    polygons, scores = [], []
    for pieces, score in zip(every, sure, strict=True):
        if pieces:
            polygons.append(max(pieces, key=cv2.contourArea) / FINE)  # the others are holes
            scores.append(score)
    return polygons, scores


def simplified(
    heat: Map, outlines: Sequence[Outline], fewest: int, box_threshold: float
) -> tuple[list[Points], list[float]]:
    """Return outlines with the points that they can do without left out (P, 2), and their scores.

    Outlines of fewer than `fewest` points after that, and those that score below `box_threshold`, are passed over.
    """
    fewer = [cv2.approxPolyDP(outline, TOLERANCE * cv2.arcLength(outline, True), True)[:, 0] for outline in outlines]
    shapes = [points for points in fewer if len(points) >= fewest]
    scores = polygon_scores(heat, shapes)
    sure = np.flatnonzero(scores >= box_threshold)
    return [shapes[i] for i in sure], scores[sure].tolist()


def unclipped(polygons: Sequence[Points], ratio: float) -> tuple[list[Points], NDArray[np.float64]]:
    """Return polygons (P, 2) moved outwards by area * ratio / perimeter with round joins, and these distances (N,).

    A polygon that would fall into several pieces, or get a hole, has no points.
    """
    if not polygons:
        return [], np.zeros(0)
    areas, lengths = np.empty(len(polygons)), np.empty(len(polygons))
    kernels().measure(*flat(polygons), areas, lengths)
    distances = np.divide(areas * ratio, lengths, out=np.zeros_like(areas), where=lengths > 0)
    every = move_edges(polygons, distances, pyclipper.JT_ROUND)
    return [pieces[0] if len(pieces) == 1 else np.zeros((0, 2), np.int32) for pieces in every], distances


def move_edges(polygons: Sequence[Points], distances: NDArray[np.float64], join: int) -> list[list[Points]]:
    """Return the pieces (P, 2) that Clipper makes of each polygon (P, 2) by moving its edges outwards by its distance.

    `join` is pyclipper's JT_ROUND or JT_MITER.
    """
    clipper = pyclipper.PyclipperOffset(MITRE_LIMIT)
    moved: list[list[Points]] = []
    for polygon, distance in zip(polygons, distances.tolist(), strict=True):
        clipper.Clear()
        clipper.AddPath(polygon.tolist(), join, pyclipper.ET_CLOSEDPOLYGON)
        pieces = clipper.Execute(distance)  # a list for each point; if all were kept, garbage collections would start
        moved.append([np.fromiter(chain.from_iterable(p), np.int32, 2 * len(p)).reshape(-1, 2) for p in pieces])
    return moved
