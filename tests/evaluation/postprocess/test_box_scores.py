"""Masks, scores, outlines and rectangles: the pixels that the published method reads, Clipper's offsets."""

import cv2
import numpy as np
import pyclipper
import pytest
import shapely
from numpy.typing import ArrayLike, NDArray

from ocrlab.errors import ShapeError
from ocrlab.evaluation.postprocess import box_scores, contours, quads

Boxes = NDArray[np.float32]


def rectangles(count: int, width: int, height: int, margin: float) -> Boxes:
    rng = np.random.default_rng(3)
    centre = rng.uniform(-margin, 1 + margin, (count, 2)) * (width, height)
    size = rng.uniform(0, 0.4, (count, 2)) * (width, height)
    turn = np.where(rng.random(count) < 0.5, 0, rng.uniform(0, 90, count))
    quads = [cv2.boxPoints((c.tolist(), s.tolist(), float(t))) for c, s, t in zip(centre, size, turn, strict=True)]
    return np.array(quads, np.float32)


def published(probability: NDArray[np.float32], box: Boxes) -> float:
    """Return the score of one box as the published method finds it: its corners cut to whole pixels of a window."""
    last = np.array(probability.shape[::-1]) - 1
    x0, y0 = np.clip(np.floor(box.min(axis=0)), 0, last).astype(int)
    x1, y1 = np.clip(np.ceil(box.max(axis=0)), 0, last).astype(int)
    mask = np.zeros((y1 - y0 + 1, x1 - x0 + 1), np.uint8)
    cv2.fillPoly(mask, [(box - np.array((x0, y0), np.float32)).astype(np.int32)], 1)
    return float(cv2.mean(probability[y0 : y1 + 1, x0 : x1 + 1], mask)[0])


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_box_scores_are_the_published_ones(margin: float) -> None:
    probability = np.random.default_rng(0).random((90, 130), dtype=np.float32)
    boxes = rectangles(2000, 130, 90, margin)
    wanted = [published(probability, box) for box in boxes]
    np.testing.assert_allclose(box_scores.box_scores(probability, boxes), wanted, atol=1e-6)


def test_a_polygon_score_is_the_mean_of_its_pixels_and_its_border() -> None:
    probability = np.arange(100, dtype=np.float32).reshape(10, 10) / np.float32(100)
    points = np.array([[2, 3], [5, 3], [5, 6], [2, 6]], np.int32)
    score, line = box_scores.polygon_scores(probability, [points, points[:2]])
    assert score == pytest.approx(probability[3:7, 2:6].mean()) and line == pytest.approx(probability[3, 2:6].mean())


@pytest.mark.parametrize(
    "value", [np.nan, -np.nan, np.inf, -np.inf, -1e-30, np.nextafter(np.float32(1), np.float32(2))]
)
def test_a_single_value_that_is_not_finite_is_detected(value: float) -> None:
    probability = np.zeros((30, 40), np.float32)
    probability[29, 39] = value
    with pytest.raises(ShapeError, match="Given: .*1 (NaN|below|above).*Needed: float32 in"):
        box_scores.text_mask(probability, 0.5)


Mask = NDArray[np.uint8]


def noise(share: float, size: tuple[int, int] = (600, 900)) -> Mask:
    return (np.random.default_rng(2).random(size) < share).astype(np.uint8)


def blobs(size: tuple[int, int] = (600, 900)) -> Mask:
    """Return a mask of blobs with holes, some of them as high as the page."""
    rough = cv2.GaussianBlur(np.random.default_rng(3).random(size, np.float32), (0, 0), 2.0)
    mask = (rough > 0.5).astype(np.uint8)
    mask[:, ::150] = 1
    return mask


def checkerboard(size: tuple[int, int] = (1024, 900)) -> Mask:
    return (np.indices(size).sum(axis=0) % 2).astype(np.uint8)


@pytest.mark.parametrize("mask", [noise(0.7), noise(0.3), noise(0.1), blobs(), checkerboard()])
@pytest.mark.parametrize("count", [1, 100, 1000, 10**7])
def test_the_lowest_outlines_are_those_of_the_whole_mask(mask, count, monkeypatch):
    monkeypatch.setattr(contours, "BUSY", 0)
    whole = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0][:count]
    outlines = contours.last(mask, count)
    assert len(outlines) == len(whole)
    assert all(np.array_equal(a, b) for a, b in zip(outlines, whole, strict=True))


def test_the_largest_outlines_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.zeros((60, 60), np.uint8)
    for place, side in ((0, 3), (10, 9), (25, 5), (40, 7)):
        mask[place : place + side, place : place + side] = 1
    in_order = [len(cv2.boundingRect(o)) and cv2.boundingRect(o)[2] for o in contours.largest(mask, 9)]
    assert sorted(in_order) == [3, 5, 7, 9]
    wanted = [side for side in in_order if side in (9, 7)]
    for busy in (contours.BUSY, 0):
        monkeypatch.setattr(contours, "BUSY", busy)
        assert [cv2.boundingRect(o)[2] for o in contours.largest(mask, 2)] == wanted


def boxes(count: int) -> NDArray[np.float32]:
    """Return rectangles (N, 4, 2), a third of them upright."""
    rng = np.random.default_rng(1)
    place, size, turn = rng.uniform(-50, 600, (count, 2)), rng.uniform(1, 300, (count, 2)), rng.uniform(0, 90, count)
    turn[::3] = 0
    rectangles = zip(place.tolist(), size.tolist(), turn.tolist(), strict=True)
    return quads.corners_of([((x, y), (w, h), degrees) for (x, y), (w, h), degrees in rectangles])


def clipper(quad: NDArray[np.float32], ratio: float) -> list[list[int]]:
    """Return the points that Clipper makes of a quad, as the published method calls it."""
    whole = shapely.Polygon(quad)
    distance = whole.area * ratio / whole.length if whole.length else 0
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(quad.astype(int).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return [point for path in offset.Execute(distance) for point in path]


def hull(points: ArrayLike) -> set[tuple[int, ...]]:
    """Return the corners of the hull of some points."""
    return {tuple(point) for point in cv2.convexHull(np.array(points, np.int32))[:, 0].tolist()}


@pytest.mark.parametrize("ratio", [0.5, 1.5, 3.0])
def test_unclipped_boxes_span_what_clipper_spans(ratio: float) -> None:
    ordered = quads.ordered(boxes(400))
    for quad, points in zip(ordered, quads.unclipped(ordered, ratio), strict=True):
        wanted = clipper(quad, ratio)
        assert not wanted or hull(points) == hull(wanted), quad


@pytest.mark.parametrize("ratio", [0.4, 0.5, 0.6])
def test_an_outline_grows_to_the_rectangle_that_shrinks_to_it(ratio: float) -> None:
    distance = 12.0
    width, height = 300.0, 2 * distance * 300 / ((1 - ratio**2) * 300 - 2 * distance)  # shrunk by the distance, by rule
    assert width * height * (1 - ratio**2) / (2 * (width + height)) == pytest.approx(distance)
    inner = np.array([[distance, distance], [width - distance, distance]], np.float64)
    inner = np.concatenate([inner, (inner + np.array([0, height - 2 * distance]))[::-1]]) + 20
    outline = np.rint(inner * 16).astype(np.int32)[:, None]  # sixteen steps a pixel
    probability = np.ones((int(height * 16) + 640, int(width * 16) + 640), np.float32)
    quads_, scores = quads.exact(probability, [outline], ratio, 0, 0.5)
    wanted = np.array([[0, 0], [width, 0], [width, height], [0, height]]) + 20
    np.testing.assert_allclose(quads_[0] / 16, wanted, atol=0.5)
    assert scores.tolist() == [1]
