"""Outlines of shrunk text into polygons of as many points as they need: as published, and by the exact inverse.

Shapes: N outlines, P points; coordinates as in `quads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import ModuleType

import cv2
import numpy as np
import pyclipper
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.postprocess.outlines import Outline
from ocrlab.postprocess.quads import GROWN
from ocrlab.postprocess.scores import Map, flat, polygon_scores

TOLERANCE = 0.002  # of the perimeter that a simplified outline may leave the outline
FINE = 64  # steps a pixel in which an exact polygon is offset; Clipper counts in whole numbers
SHARP = 2.0  # Clipper's mitre limit: corners of 60 degrees and more stay corners
ROOM = 96  # points for an outline that grows without Clipper
ROUNDED = 2.0  # pixels by which a polygon may grow less than it should, both sides together

Points = NDArray[np.int32]
Found = tuple[Sequence[NDArray[np.number]], list[float]]


def published(
    probability: Map,
    outlines: Sequence[Outline],
    ratio: float,
    min_size: float,
    box_threshold: float,
    loops: ModuleType | None,
) -> Found:
    """Return simplified outlines (P, 2), moved outwards by area * ratio / perimeter with round joins, and their scores.

    What falls into several pieces, or gets a hole, is left out, as is what has fewer than 4 points.
    """
    polygons, scores = [], []
    found, sure = simplified(probability, outlines, 4, box_threshold, loops)
    for grown, distance, score in zip(*unclipped(found, ratio, loops), sure, strict=True):
        wide = 2 * distance - ROUNDED >= min_size + GROWN  # as nearly all are; the rectangle says it exactly
        if len(grown) and (wide or min(cv2.minAreaRect(grown)[1]) >= min_size + GROWN):
            polygons.append(grown)
            scores.append(score)
    return polygons, scores


def exact(
    probability: Map,
    outlines: Sequence[Outline],
    shrink_ratio: float,
    min_size: float,
    box_threshold: float,
    loops: ModuleType | None,
) -> Found:
    """Return simplified outlines (P, 2) moved outwards, corners kept, until shrinking them would give the outline."""
    polygons, scores = [], []
    outlines = [o for o in outlines if cv2.contourArea(o) > 0 and min(cv2.minAreaRect(o)[1]) >= min_size]
    for points, score in zip(*simplified(probability, outlines, 3, box_threshold, loops), strict=True):
        distance = float(geometry.unshrink_distance(cv2.contourArea(points), cv2.arcLength(points, True), shrink_ratio))
        pieces = moved((points * FINE).tolist(), distance * FINE, pyclipper.JT_MITER)
        if pieces:
            polygons.append(max(pieces, key=cv2.contourArea) / FINE)  # the others are holes
            scores.append(score)
    return polygons, scores


def simplified(
    probability: Map, outlines: Sequence[Outline], fewest: int, box_threshold: float, loops: ModuleType | None
) -> tuple[list[Points], list[float]]:
    """Return outlines with the points that they can do without left out (P, 2), and their scores.

    Outlines of fewer than `fewest` points after that, and those that score below `box_threshold`, are passed over.
    """
    fewer = [cv2.approxPolyDP(outline, TOLERANCE * cv2.arcLength(outline, True), True)[:, 0] for outline in outlines]
    found = [points for points in fewer if len(points) >= fewest]
    scores = polygon_scores(probability, found, loops)
    sure = np.flatnonzero(scores >= box_threshold)
    return [found[i] for i in sure], scores[sure].tolist()


def unclipped(
    polygons: Sequence[Points], ratio: float, loops: ModuleType | None
) -> tuple[list[Points], NDArray[np.float64]]:
    """Return polygons (P, 2) moved outwards by area * ratio / perimeter with round joins, and these distances (N,).

    The points are those of Clipper; a polygon that would fall into several pieces, or get a hole, has none. Polygons
    whose new outline does not touch itself need no Clipper, and the compiled loops do without it.
    """
    if not polygons:
        return [], np.zeros(0)
    (points, starts), number = flat(polygons), len(polygons)
    grown, counts, distances = np.empty((number, ROOM, 2), np.int32), np.zeros(number, np.int64), np.empty(number)
    if loops:
        loops.grow(points, starts, ratio, grown, counts, distances)
    else:
        distances[:] = [abs(geometry.area(p)) * ratio / (geometry.perimeter(p) or np.inf) for p in polygons]
    all_of_it, ends, found = points.tolist(), starts.tolist(), []
    for i, (count, distance) in enumerate(zip(counts.tolist(), distances.tolist(), strict=True)):
        if count:
            found.append(grown[i, :count])
            continue
        pieces = moved(all_of_it[ends[i] : ends[i + 1]], distance, pyclipper.JT_ROUND)
        found.append(pieces[0] if len(pieces) == 1 else np.zeros((0, 2), np.int32))
    return found, distances


def moved(points: list[list[int]], distance: float, join: int) -> list[Points]:
    """Return the polygons that Clipper makes of P points by moving the edges between them outwards by `distance`."""
    clipper = pyclipper.PyclipperOffset(SHARP)
    clipper.AddPath(points, join, pyclipper.ET_CLOSEDPOLYGON)
    pieces = clipper.Execute(distance)
    return [np.fromiter(chain.from_iterable(piece), np.int32, 2 * len(piece)).reshape(-1, 2) for piece in pieces]
