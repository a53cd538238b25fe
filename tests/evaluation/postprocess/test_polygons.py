"""Polygons of many points: corners are kept, holes and pieces do not come back, curved text stays curved."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pyclipper
import pytest
import shapely
from numpy.typing import NDArray

from ocrlab.evaluation.postprocess import box_scores, decode, polygons

LOOPS = box_scores.kernels()


def arc(width: float) -> NDArray[np.float64]:
    """Return a band of this width along a quarter of a circle, (2 * 40, 2)."""
    turn = np.linspace(np.pi, 1.5 * np.pi, 40)
    ray = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    return np.concatenate([ray * (200 + width / 2), ray[::-1] * (200 - width / 2)]) + 260


def outline(points: NDArray[np.float64]) -> NDArray[np.int32]:
    return np.rint(points).astype(np.int32)[:, None]


def painted(*outlines: NDArray[np.int32]) -> NDArray[np.float32]:
    page = np.zeros((320, 320), np.float32)
    cv2.fillPoly(page, outlines, 1.0)
    return page


@pytest.mark.parametrize("ratio", [0.4, 0.5])
def test_curved_text_is_recovered(ratio: float) -> None:
    whole = shapely.Polygon(arc(40))
    inner = whole.buffer(-whole.area * (1 - ratio**2) / whole.length, join_style="mitre")
    page = painted(outline(np.array(inner.exterior.coords[:-1])))
    [curved] = decode(page, shrink_ratio=ratio, shape="polygon", min_size=1).polygons
    shape = shapely.Polygon(curved)
    assert shape.intersection(whole).area / shape.union(whole).area > 0.9
    assert len(decode(page, shrink_ratio=ratio, min_size=1)) == 0, "its rectangle is mostly not text"
    [box] = decode(page, shrink_ratio=ratio, min_size=1, box_threshold=0).polygons
    straight = shapely.Polygon(box)
    assert straight.intersection(whole).area > 0.9 * whole.area, "a curved line is not taken for a ragged one"
    assert straight.area > 1.5 * whole.area


def test_corners_stay_corners_in_the_exact_inverse() -> None:
    square = outline(np.array([[100, 100], [200.0, 100], [200, 130], [100, 130]]))
    [exact], _ = polygons.exact(painted(square), [square], 0.5, 1, 0.5, LOOPS)
    assert len(exact) == 4
    [published], _ = polygons.published(painted(square), [square], 2.0, 1, 0.5, LOOPS)
    assert len(published) > 4, "round joins"


def test_a_ring_comes_back_filled_or_not_at_all() -> None:
    nearly_closed = outline(np.array([[60, 60], [260.0, 60], [260, 260], [60, 260], [60, 64], [66, 64], [66, 254],
                                      [254, 254], [254, 66], [60, 66]]))  # fmt: skip
    page = painted(nearly_closed)
    shapes, scores = polygons.published(page, [nearly_closed], 4.0, 3, 0.0, LOOPS)
    assert list(shapes) == [] and scores == [], "the offset closes the gap and leaves a hole"
    shapes, _ = polygons.exact(page, [nearly_closed], 0.4, 3, 0.0, LOOPS)
    assert len(shapes) == 1 and cv2.contourArea(shapes[0].astype(np.float32)) > 200 * 200


def test_too_few_points_and_too_low_scores_are_passed_over() -> None:
    three = outline(np.array([[20, 20], [120.0, 20], [70, 90]]))
    page = painted(three)
    assert len(polygons.simplified(page, [three], 4, 0.5, LOOPS)[0]) == 0
    assert len(polygons.simplified(page, [three], 3, 0.5, LOOPS)[0]) == 1
    assert len(polygons.simplified(page * np.float32(0.4), [three], 3, 0.5, LOOPS)[0]) == 0
    assert len(polygons.published(page, [three], 2.0, 3, 0.5, LOOPS)[0]) == 0
    assert len(polygons.exact(page, [three], 0.5, 3, 0.5, LOOPS)[0]) == 1
    assert len(polygons.exact(page, [three], 0.5, 100, 0.5, LOOPS)[0]) == 0


@pytest.mark.parametrize("loops", [LOOPS, None], ids=["compiled", "numpy"])
def test_unclipped_polygons_are_those_of_clipper_or_none(loops: Any) -> None:
    rng = np.random.default_rng(5)
    blobs = [np.cumsum(rng.integers(-9, 10, (int(rng.integers(3, 40)), 2)), axis=0, dtype=np.int32) for _ in range(300)]
    shapes, distances = polygons.unclipped(blobs, 2.0, loops)
    done = 0
    for points, blob, distance in zip(shapes, blobs, distances.tolist(), strict=True):
        offset = pyclipper.PyclipperOffset()
        offset.AddPath(blob.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        pieces = offset.Execute(distance)
        assert points.tolist() == (pieces[0] if len(pieces) == 1 else []), blob.tolist()
        done += len(pieces) == 1
    assert done > 100
    assert polygons.unclipped([], 2.0, loops)[0] == []


@pytest.mark.parametrize("join", [pyclipper.JT_ROUND, pyclipper.JT_MITER], ids=["round", "mitre"])
def test_edges_move_as_clipper_moves_those_of_a_single_polygon_alone(join: int) -> None:
    """Also next to a polygon that falls into pieces, one that gets a hole, and one without an area."""
    rng = np.random.default_rng(3)
    many = [rng.integers(0, size, (int(rng.integers(1, 30)), 2), np.int32) for size in [3, 20, 300, 5000] * 25]
    distances = rng.uniform(0, 60, len(many))
    moved = polygons.move_edges(many, distances, join)
    for polygon, distance, pieces in zip(many, distances.tolist(), moved, strict=True):
        clipper = pyclipper.PyclipperOffset(2.0)
        clipper.AddPath(polygon.tolist(), join, pyclipper.ET_CLOSEDPOLYGON)
        assert [piece.tolist() for piece in pieces] == clipper.Execute(distance)
    assert {len(pieces) for pieces in moved} >= {0, 1, 2}
