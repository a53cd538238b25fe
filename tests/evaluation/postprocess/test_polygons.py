"""Polygons of many points: corners are kept, holes and pieces do not come back, curved text stays curved."""

import cv2
import numpy as np
import pyclipper
import pytest
import shapely
from numpy.typing import NDArray

from ocrlab.evaluation.postprocess import decode, polygons


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


def test_a_ring_comes_back_filled_or_not_at_all() -> None:
    nearly_closed = outline(np.array([[60, 60], [260.0, 60], [260, 260], [60, 260], [60, 64], [66, 64], [66, 254],
                                      [254, 254], [254, 66], [60, 66]]))  # fmt: skip
    page = painted(nearly_closed)
    shapes, scores = polygons.published(page, [nearly_closed], 4.0, 3, 0.0)
    assert list(shapes) == [] and scores == [], "the offset closes the gap and leaves a hole"
    shapes, _ = polygons.exact(page, [nearly_closed], 0.4, 3, 0.0)
    assert len(shapes) == 1 and cv2.contourArea(shapes[0].astype(np.float32)) > 200 * 200


def test_too_few_points_and_too_low_scores_are_passed_over() -> None:
    three = outline(np.array([[20, 20], [120.0, 20], [70, 90]]))
    page = painted(three)
    assert len(polygons.simplified(page, [three], 4, 0.5)[0]) == 0
    assert len(polygons.simplified(page, [three], 3, 0.5)[0]) == 1
    assert len(polygons.simplified(page * np.float32(0.4), [three], 3, 0.5)[0]) == 0
    assert len(polygons.published(page, [three], 2.0, 3, 0.5)[0]) == 0
    assert len(polygons.exact(page, [three], 0.5, 3, 0.5)[0]) == 1
    assert len(polygons.exact(page, [three], 0.5, 100, 0.5)[0]) == 0


def test_unclipped_polygons_are_those_of_clipper_or_none() -> None:
    rng = np.random.default_rng(5)
    blobs = [np.cumsum(rng.integers(-9, 10, (int(rng.integers(3, 40)), 2)), axis=0, dtype=np.int32) for _ in range(300)]
    shapes, distances = polygons.unclipped(blobs, 2.0)
    done = 0
    for points, blob, distance in zip(shapes, blobs, distances.tolist(), strict=True):
        offset = pyclipper.PyclipperOffset()
        offset.AddPath(blob.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        pieces = offset.Execute(distance)
        assert points.tolist() == (pieces[0] if len(pieces) == 1 else []), blob.tolist()
        done += len(pieces) == 1
    assert done > 100
    assert polygons.unclipped([], 2.0)[0] == []
