"""The compiled loops: the pixels of OpenCV, the points of Clipper, with and without a cache."""

from __future__ import annotations

import subprocess
import sys

import cv2
import numpy as np
import pyclipper
import pytest
from numpy.typing import NDArray

from ocrlab.postprocess import scores

kernels = pytest.importorskip("ocrlab.postprocess.kernels", reason="numba is not installed", exc_type=ImportError)

Points = NDArray[np.int32]


def painted_mean(values: NDArray[np.float32], polygon: Points) -> float:
    mask = np.zeros(values.shape, np.uint8)
    cv2.fillPoly(mask, [polygon], 1)
    return float(cv2.mean(values, mask)[0])


def test_the_means_of_boxes_are_those_of_opencv() -> None:
    rng = np.random.default_rng(0)
    values = rng.random((60, 80), dtype=np.float32)
    turned = [cv2.boxPoints(((40, 30), rng.uniform(0, 40, 2).tolist(), rng.uniform(0, 90))) for _ in range(100)]
    boxes = np.array(turned).astype(np.int32)
    found = np.empty(len(boxes))
    kernels.box_means(values, boxes, found)
    np.testing.assert_allclose(found, [painted_mean(values, box) for box in boxes], atol=1e-9)


def test_the_means_of_polygons_are_those_of_opencv() -> None:
    """Also of outlines that cross and touch themselves, and of lines and points."""
    rng = np.random.default_rng(1)
    values = rng.random((60, 80), dtype=np.float32)
    polygons = [rng.integers(0, (80, 60), (int(rng.integers(1, 14)), 2), np.int32) for _ in range(3000)]
    polygons += [rng.integers(20, 26, (int(rng.integers(3, 8)), 2), np.int32) for _ in range(1000)]
    found = np.empty(len(polygons))
    kernels.polygon_means(values, *scores.flat(polygons), found)
    np.testing.assert_allclose(found, [painted_mean(values, polygon) for polygon in polygons], atol=1e-9)


@pytest.mark.parametrize("shift", [(-60, 0), (60, 0), (0, -60), (0, 60)])
def test_what_leaves_the_map_is_not_read(shift: tuple[int, int]) -> None:
    boxes = np.array([[[20, 20], [40, 20], [40, 40], [20, 40]]], np.int32) + np.array(shift, np.int32)
    values, found = np.ones((60, 60), np.float32), np.zeros((2, 1))
    kernels.box_means(values, boxes, found[0])
    kernels.polygon_means(values, boxes[0], np.array([0, 4]), found[1])
    assert np.isnan(found).all()


def clipper(polygon: Points, distance: float) -> list[list[list[int]]]:
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(polygon.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return offset.Execute(distance)  # type: ignore[no-any-return]


def grown(polygons: list[Points], ratio: float, room: int = 200) -> tuple[list[list[list[int]]], NDArray[np.float64]]:
    out, counts = np.zeros((len(polygons), room, 2), np.int32), np.zeros(len(polygons), np.int64)
    distances = np.zeros(len(polygons))
    kernels.grow(*scores.flat(polygons), ratio, out, counts, distances)
    return [points[:count].tolist() for points, count in zip(out, counts, strict=True)], distances


def shapes(rng: np.random.Generator, number: int) -> list[Points]:
    """Return hulls, bent outlines of text and random polygons, of few and of many pixels, either way round."""
    found: list[Points] = []
    for index in range(number):
        size = float(rng.choice([6, 20, 60, 300]))
        if index % 3 == 0:
            points = cv2.convexHull(rng.integers(0, int(size), (12, 2)).astype(np.int32))[:, 0]
        elif index % 3 == 1:
            x = np.linspace(0, 6 * size, int(rng.integers(3, 9)))
            bent = np.sin(x / size * rng.uniform(0, 0.6)) * size / 2
            points = np.concatenate([np.stack([x, bent], 1), np.stack([x, bent + size / 2], 1)[::-1]]).astype(np.int32)
        else:
            points = rng.integers(0, int(size), (int(rng.integers(3, 7)), 2)).astype(np.int32)
        found.append(np.ascontiguousarray(points[:: rng.choice([-1, 1])] + rng.integers(-50, 500, 2), np.int32))
    return found


@pytest.mark.parametrize("ratio", [0.3, 1.5, 2.0, 4.0])
def test_grown_polygons_are_those_of_clipper_to_the_point(ratio: float) -> None:
    polygons = shapes(np.random.default_rng(int(ratio * 10)), 1500)
    found, distances = grown(polygons, ratio)
    done = 0
    for points, polygon, distance in zip(found, polygons, distances.tolist(), strict=True):
        if points:
            done += 1
            assert [points] == clipper(polygon, distance), polygon.tolist()
    assert done > 400, "hulls at least need no Clipper"


def test_what_touches_itself_or_has_no_room_is_left_to_clipper() -> None:
    def points(*corners: tuple[int, int]) -> Points:
        return np.array(corners, np.int32)

    square = points((0, 0), (100, 0), (100, 100), (0, 100))
    dent = points((0, 0), (50, 40), (100, 0), (100, 100), (0, 100))
    spike = points((0, 0), (100, 0), (150, 0), (100, 0), (100, 100), (0, 100))
    line = points((0, 0), (100, 0), (200, 0))
    tie = points((0, 0), (100, 100), (100, 0), (0, 100))
    found, distances = grown([square, dent, spike, line, tie, square[:1]], 1.5)
    assert [len(p) > 0 for p in found] == [True, False, False, False, False, False]
    assert distances[0] == 100 * 100 * 1.5 / 400 and distances[3] == distances[5] == 0
    assert grown([square], 1.5, room=8)[0] == [[]]


def test_a_cache_that_cannot_be_written_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def njit(signature: str, cache: bool = False, **_: object) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return lambda function: function

    monkeypatch.setattr(kernels, "njit", njit)
    assert kernels.compiled("void()")(len) is len
    assert asked == [True, False]


def test_numba_is_imported_only_when_there_is_a_map() -> None:
    code = (
        "import sys, numpy as np; from ocrlab.postprocess import decode; early = 'numba' in sys.modules; "
        "decode(np.ones((8, 8), np.float32), compiled=False); plain = 'numba' in sys.modules; "
        "decode(np.ones((8, 8), np.float32)); print(early, plain, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
