"""Polygons that are moved without Clipper: what comes out is what Clipper makes, to the point, or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pyclipper
import pytest
from numpy.typing import NDArray

from ocrlab.postprocess import scores

offset = pytest.importorskip("ocrlab.postprocess.offset", reason="numba is not installed", exc_type=ImportError)

Points = NDArray[np.int32]
Generator = np.random.Generator


def blobs(rng: Generator) -> list[Points]:
    """Outlines of noisy text, with all of their points and with fewer, as a decoder simplifies them."""
    width, height = rng.integers((8, 4), (200, 40)).tolist()
    page = np.zeros((height + 20, width + 20), np.float32)
    box = cv2.boxPoints(((10 + width / 2, 10 + height / 2), (width, height), float(rng.choice([0, 0, 3, 30]))))
    cv2.fillPoly(page, [box.astype(np.int32)], 0.85)
    page = cv2.GaussianBlur(page, (0, 0), float(rng.choice([1, 1.6, 3]))) + rng.normal(
        0, rng.uniform(0, 0.2), page.shape
    )
    found = cv2.findContours((page > 0.3).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0]
    share = float(rng.choice([0, 0.002, 0.01]))
    return [cv2.approxPolyDP(o, share * cv2.arcLength(o, True), True)[:, 0] for o in found if len(o) > 3]


def scattered(rng: Generator) -> list[Points]:
    size = int(rng.choice([3, 5, 8, 20, 60, 300, 5000]))
    return [rng.integers(0, size, (int(rng.integers(3, 30)), 2), np.int32)]


def walks(rng: Generator) -> list[Points]:
    """Ways of small steps, which cross and touch themselves and turn back, and such of level and upright steps."""
    far, count = int(rng.choice([1, 2, 3, 9])), int(rng.integers(3, 60))
    steps = rng.integers(-far, far + 1, (count, 2), np.int32)
    if rng.random() < 0.5:
        steps[np.arange(count), rng.integers(0, 2, count)] = 0
    return [np.cumsum(steps, axis=0, dtype=np.int32)]


def stars(rng: Generator) -> list[Points]:
    angle = np.sort(rng.uniform(0, 2 * np.pi, int(rng.integers(3, 40))))
    ray = rng.uniform(2, rng.choice([5, 20, 100, 1000]), len(angle))
    points = np.rint(np.stack([np.cos(angle), np.sin(angle)], axis=1) * ray[:, None]).astype(np.int32)
    return [points if rng.random() < 0.7 else rng.permutation(points)]


def spirals(rng: Generator) -> list[Points]:
    turn = np.linspace(0, rng.uniform(3, 20), int(rng.integers(8, 60)))
    ray, there = turn * rng.uniform(1, 6) + 3, np.stack([np.cos(turn), np.sin(turn)], axis=1)
    back = there[::-1] * (ray[::-1, None] + rng.uniform(1, 10))
    return [np.rint(np.concatenate([there * ray[:, None], back])).astype(np.int32)]


def combs(rng: Generator) -> list[Points]:
    """Teeth of one height or of many, upright or lying, some of them twice as one way."""
    teeth = int(rng.integers(2, 20))
    x, y = np.repeat(np.arange(2 * teeth), 2)[1:], np.repeat(rng.integers(1, 30, 2 * teeth), 2)[1:]
    if rng.random() < 0.5:
        y = np.where(np.arange(len(y)) % 4 < 2, y[0], 0)
    points = np.concatenate([np.stack([x * rng.integers(1, 8), y], axis=1), [[x[-1], -10], [0, -10]]])
    points = points[:, :: rng.choice([-1, 1])]
    return [(np.concatenate([points, points[::-1] + 3]) if rng.random() < 0.2 else points).astype(np.int32)]


def grids(rng: Generator) -> list[Points]:
    """Few places, so that edges lie on each other."""
    return [rng.integers(0, rng.integers(2, 5), (int(rng.integers(4, 24)), 2), np.int32) * rng.integers(1, 12)]


def repeated(rng: Generator) -> list[Points]:
    [points] = scattered(rng)
    return [np.repeat(points, rng.integers(1, 4, len(points)), axis=0)]


def elsewhere(rng: Generator) -> list[Points]:
    """Far from the page, and large."""
    [points] = stars(rng)
    return [points * rng.integers(1, 300) + rng.integers(-300_000, 300_000, 2)]


def clipper(polygon: Points, distance: float, mitre: bool) -> list[list[list[int]]]:
    made = pyclipper.PyclipperOffset(2.0)
    made.AddPath(polygon.tolist(), pyclipper.JT_MITER if mitre else pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return made.Execute(distance)  # type: ignore[no-any-return]


def moved(polygons: list[Points], distances: list[float], mitre: bool, room: int = 1 << 18) -> list[list[list[int]]]:
    out, counts = np.zeros((room, 2), np.int32), np.zeros(len(polygons), np.int64)
    points, starts = scores.flat([np.ascontiguousarray(polygon, np.int32) for polygon in polygons])
    offset.offset(points, starts, np.array(distances, np.float64), mitre, out, counts, np.zeros(1, offset.WORK))
    return [part.tolist() for part in np.split(out[: counts.sum()], np.cumsum(counts)[:-1])]


FAMILIES = {
    blobs: 0.99, scattered: 0.85, walks: 0.85, stars: 0.95, spirals: 0.95, combs: 0.85, grids: 0.6, repeated: 0.9,
    elsewhere: 0.5,
}  # fmt: skip


def compared(family: Callable[[Generator], list[Points]], mitre: bool, seed: int) -> tuple[int, int]:
    """Return of how many of 2,000 polygons Clipper makes one piece, and how many come out without it, all like its own.

    Mitres are made in 64ths of a pixel. Every second distance is one of the published method.
    """
    rng = np.random.default_rng(seed)
    scale = 64 if mitre else 1
    polygons: list[Points] = []
    while len(polygons) < 2000:
        polygons += [np.ascontiguousarray(points[:: rng.choice([-1, 1])], np.int32) * scale for points in family(rng)]
    area = np.array([cv2.contourArea(polygon) for polygon in polygons])
    length = np.array([max(cv2.arcLength(polygon, True), 1) for polygon in polygons])
    chosen = rng.random(len(polygons)) < 0.5
    distances = np.where(
        chosen, rng.uniform(0.05, 60, len(area)) * scale, area / length * rng.choice([0.5, 1.5, 2], len(area))
    )
    one = done = 0
    found = moved(polygons, distances.tolist(), mitre)
    for polygon, distance, points in zip(polygons, distances.tolist(), found, strict=True):
        pieces = clipper(polygon, distance, mitre)
        one, done = one + (len(pieces) == 1), done + (len(points) > 0)
        assert not points or [points] == pieces, (polygon.tolist(), distance)
    return one, done


@pytest.mark.parametrize("mitre", [False, True], ids=["round", "mitre"])
@pytest.mark.parametrize(("family", "least"), FAMILIES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_what_comes_out_is_what_clipper_makes(
    family: Callable[[Generator], list[Points]], least: float, mitre: bool
) -> None:
    """At least so many of those that become one piece come out."""
    one, done = compared(family, mitre, len(family.__name__))
    assert done >= least * one > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_what_comes_out_is_what_clipper_makes_of_many(family: Callable[[Generator], list[Points]]) -> None:
    for seed in range(100, 115):
        assert min(compared(family, seed % 2 == 0, seed)) > 0


def test_what_is_left_to_clipper() -> None:
    square = np.array([[0, 0], [100, 0], [100, 100], [0, 100]], np.int32)
    point = square[:1]
    frame = np.array([[0, 0], [100, 0], [100, 100], [0, 100], [0, 4], [6, 4], [6, 94], [94, 94], [94, 6], [0, 6]])
    circle = np.linspace(0, 2 * np.pi, 2 * offset.ROOM)
    many = np.rint(np.stack([np.cos(circle), np.sin(circle)], axis=1) * 1e5)
    far = square + 2 * offset.LARGEST
    assert [len(found) > 0 for found in moved([square, point, frame, many, far], [9.0] * 5, False)] == [
        True, False, False, False, False,
    ]  # fmt: skip
    assert len(clipper(frame, 9.0, False)) == 2, "it gets a hole"
    assert moved([square] * 4, [0.0, -1.0, float("nan"), float("inf")], False) == [[], [], [], []]
    assert moved([square, square], [9.0, 9.0], False, room=len(clipper(square, 9.0, False)[0]))[1] == []
    assert moved([square], [1e6], False) == [[]], "an arc of too many points"


def test_what_one_polygon_leaves_behind_does_not_matter_to_the_next() -> None:
    rng = np.random.default_rng(3)
    polygons = [points for _ in range(40) for points in (*blobs(rng), *walks(rng), *stars(rng))]
    distances = rng.uniform(1, 20, len(polygons)).tolist()
    together = moved(polygons, distances, False)
    assert together == [moved([p], [d], False)[0] for p, d in zip(polygons, distances, strict=True)]


def test_every_file_that_is_compiled_in_is_known_to_the_cache() -> None:
    """numba's cache looks at one file only; of the others it learns by what `SOURCES` holds."""
    folder = Path(offset.__file__).parent
    names, wanted = set(), {"offset"}
    while wanted - names:
        names |= wanted
        text = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in names)
        wanted = set(re.findall(r"^from ocrlab\.postprocess\.(\w+) import", text, re.MULTILINE))
    assert {(folder / f"{name}.py").read_bytes() for name in names - {"offset"}} == set(offset.SOURCES)
