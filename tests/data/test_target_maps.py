"""Target maps: equal to the stored reference, to the NumPy path, and sane on whatever polygons there are."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import shapely
from numpy.typing import NDArray

from ocrlab.data import target_maps, target_maps_numba
from ocrlab.errors import ShapeError

PUBLISHED: dict[str, Any] = {"shrink_ratio": 0.4, "threshold_range": (0.3, 0.7), "min_text_size": 1}
PAGES = ("receipt", "receipt", "receipt", "rotated", "rotated", "tiny", "border", "curved")
NAMES = ("shrink_map", "shrink_mask", "threshold_map", "threshold_mask")
BOX = np.array([[10, 10], [70, 10], [70, 30], [10, 30]], np.float32)


@pytest.fixture(scope="module")
def golden(shared: Path) -> list[dict[str, Any]]:
    """Return the pages of the reference outputs, each with its maps."""
    folder = shared / "golden"
    if not (folder / "db_maps.json").exists():
        pytest.skip(f"no reference outputs at {folder}")
    pages: list[dict[str, Any]] = json.loads((folder / "db_maps.json").read_text(encoding="utf-8"))
    with np.load(folder / "db_maps.npz") as maps:
        for page in pages:
            page["maps"] = [maps[f"{page['name']}/{name}"] for name in NAMES]
    return pages


def flags(*values: bool) -> NDArray[np.bool_]:
    return np.array(values, bool)


def random_page(rng: np.random.Generator, size: tuple[int, int]) -> list[NDArray[np.float64]]:
    """Return boxes, quads, triangles and curved outlines in and over the page; some run the other way."""
    polygons = []
    for _ in range(int(rng.integers(1, 12))):
        h = rng.uniform(1, 30) * rng.choice([0.5, 1, 3])
        w, turn = h * rng.uniform(0.3, 8), rng.choice([0, rng.uniform(-0.1, 0.1), rng.uniform(-4, 4)])
        points = np.array([[-w, -h], [w, -h], [w, h], [-w, h]]) / 2
        kind = rng.random()
        if kind < 0.1:
            angle = np.linspace(0, 2 * np.pi, int(rng.integers(5, 14)), endpoint=False)
            points = np.stack([np.cos(angle) * w, np.sin(angle) * h], 1) / 2 * rng.uniform(0.6, 1, (len(angle), 1))
        elif kind < 0.3:
            points += rng.normal(0, 0.15 * h, (4, 2))
        elif kind < 0.35:
            points = points[:3]
        c, s = np.cos(turn), np.sin(turn)
        points = points @ np.array([[c, s], [-s, c]]) + rng.uniform((-20, -20), (size[1] + 20, size[0] + 20))
        polygons.append((points.round() if rng.random() < 0.3 else points)[:: rng.choice([-1, 1])])
    return polygons


@pytest.mark.parametrize("index", range(8), ids=PAGES)
def test_equal_to_the_published_method(golden: list[dict[str, Any]], index: int) -> None:
    page = golden[index]
    polygons = [np.array(p) for p in page["polygons"]]
    size = (page["size"], page["size"])
    maps = target_maps.make(polygons, np.array(page["ignored"]), size, **PUBLISHED)
    assert maps.ignored.tolist() == page["ignored_after"]
    for name, first, other in zip(NAMES, maps.maps, page["maps"], strict=True):
        assert first.dtype == np.float32 and first.shape == size
        if name == "threshold_map":
            np.testing.assert_allclose(first, other, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(first, other)


def test_the_compiled_loops_draw_what_pyclipper_and_opencv_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        size = (int(rng.integers(30, 200)), int(rng.integers(30, 200)))
        polygons = random_page(rng, size)
        ignored = rng.random(len(polygons)) < 0.2
        how = {**PUBLISHED, "shrink_ratio": rng.choice([0.4, 0.5, 0.6]), "min_text_size": rng.choice([0, 3])}
        fast = target_maps.make(polygons, ignored, size, **how)
        with monkeypatch.context() as patch:
            patch.setattr(target_maps_numba, "draw", lambda *_: None)  # every polygon is left over
            slow = target_maps.make(polygons, ignored, size, **how)
        np.testing.assert_array_equal(fast.ignored, slow.ignored)
        for name, first, other in zip(NAMES, fast.maps, slow.maps, strict=True):
            np.testing.assert_allclose(first, other, rtol=0, atol=1e-6 if name == "threshold_map" else 0)


def test_the_maps_of_a_single_box() -> None:
    maps = target_maps.make([BOX], flags(False), (40, 80), shrink_ratio=0.5, threshold_range=(0.2, 0.8))
    distance = 60 * 20 * 0.75 / 160  # 5.625
    rows, columns = np.nonzero(maps.shrink_map)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (16, 24, 16, 64)  # rounded to whole pixels
    assert maps.shrink_mask.all() and not maps.ignored.any()
    assert maps.threshold_map[10, 40] == np.float32(0.8)
    assert maps.threshold_map[12, 40] == pytest.approx(0.2 + 0.6 * (1 - 2 / distance))
    assert maps.threshold_map[20, 40] == maps.threshold_map[0, 0] == np.float32(0.2)
    rows, columns = np.nonzero(maps.threshold_mask)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (4, 36, 4, 76)
    assert set(np.unique(maps.shrink_map)) == set(np.unique(maps.threshold_mask)) == {0, 1}


def test_an_ignored_polygon_is_masked_and_not_learned() -> None:
    ignored = flags(True)
    maps = target_maps.make([BOX], ignored, (40, 80), **PUBLISHED)
    assert not maps.shrink_map.any() and not maps.threshold_mask.any()
    rows, columns = np.nonzero(maps.shrink_mask == 0)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (10, 30, 10, 70)
    small = target_maps.make([BOX], flags(False), (40, 80), **{**PUBLISHED, "min_text_size": 20.5})
    assert small.ignored[0] and (small.shrink_mask == maps.shrink_mask).all() and ignored[0]


@pytest.mark.parametrize(
    "odd",
    [
        np.zeros((0, 2)), [[5, 5]], [[5, 5], [60, 30]], [[5, 5]] * 4, [[5, 5], [50, 5], [50, 5], [5, 5]],
        [[5, 5], [20, 20], [30, 30], [10, 10]], [[5.2, 5.2], [5.4, 5.2], [5.4, 5.4], [5.2, 5.4]],
        [[5, 5], [60, 30], [60, 5], [5, 30]], [[np.nan, 5], [60, 5], [60, 30], [5, 30]],
        [[5, 5], [60, 5], [60, np.nan], [5, np.inf]], [[-90, -90], [-20, -90], [-20, -70], [-90, -70]],
        [[500, 500], [580, 500], [580, 520], [500, 520]],
        [[-1e300, -1e300], [1e300, -1e300], [1e300, 1e300], [-1e300, 1e300]],
    ],
    ids=lambda p: str(np.asarray(p).tolist())[:40],
)  # fmt: skip
def test_odd_polygons_harm_nothing(odd: Any) -> None:
    size = (100, 120)
    alone = target_maps.make([BOX + 40], flags(False), size, **PUBLISHED)
    for ignored in (False, True):
        flags_ = flags(ignored, False)
        maps = target_maps.make([np.array(odd, float), BOX + 40], flags_, size, **PUBLISHED)
        assert not maps.ignored[1]
        for first in maps.maps:
            assert np.isfinite(first).all() and first.min() >= 0 and first.max() <= 1
        assert (maps.shrink_map >= alone.shrink_map).all()
        assert (maps.threshold_map >= alone.threshold_map).all()


def round_polygon(number: int) -> NDArray[np.float64]:
    turn = np.linspace(0, 2 * np.pi, number, endpoint=False)
    return 100 + 60 * np.stack([np.cos(turn), np.sin(turn)], axis=1)


@pytest.mark.parametrize("number", [target_maps.MOST, 1000, 100_000])
def test_a_polygon_of_any_number_of_points_is_simplified(number: int) -> None:
    """Clipper takes minutes for 100,000."""
    fine = round_polygon(number)
    few = target_maps.thinned(fine)
    assert few is fine if number == target_maps.MOST else 30 < len(few) <= target_maps.MOST
    distances = np.abs(shapely.distance(shapely.Polygon(few).exterior, shapely.points(fine)))
    assert distances.max() <= target_maps.FINE[0]
    how: dict[str, Any] = {"shrink_ratio": 0.4, "threshold_range": (0.3, 0.7)}
    maps = target_maps.make([fine], np.zeros(1, bool), (200, 200), **how)
    like = target_maps.make([round_polygon(target_maps.MOST)], np.zeros(1, bool), (200, 200), **how)
    assert maps.ignored.tolist() == [False]
    assert (maps.shrink_map != like.shrink_map).mean() < 0.01
    assert (maps.threshold_mask != like.threshold_mask).mean() < 0.01


def test_five_thousand_boxes_are_five_thousand_boxes() -> None:
    places = np.stack(np.meshgrid(np.arange(100), np.arange(50)), axis=-1).reshape(-1, 1, 2) * (12.0, 20.0) + 8
    boxes = list(places + np.array([[0, 0], [8, 0], [8, 14], [0, 14]]))
    maps = target_maps.make(boxes, np.zeros(5000, bool), (1280, 1280), shrink_ratio=0.4, threshold_range=(0.3, 0.7))
    assert not maps.ignored.any()
    assert cv2.connectedComponents(maps.shrink_map.astype(np.uint8))[0] == 5001


def test_a_box_over_the_border_is_what_is_inside_of_it_on_a_larger_page() -> None:
    page = target_maps.make([BOX + 50], flags(False), (200, 200), **PUBLISHED)
    cut = target_maps.make([BOX - 20], flags(False), (60, 60), **PUBLISHED)
    for first, other in zip(cut.maps, page.maps, strict=True):
        np.testing.assert_array_equal(first, other[70:130, 70:130])


def test_wrong_input_is_refused_with_what_is_needed() -> None:
    with pytest.raises(ShapeError, match=r"flag.*\(2,\).*\(1,\)"):
        target_maps.make([BOX], flags(False, False), (40, 80), **PUBLISHED)
    with pytest.raises(ShapeError, match=r"\(P, 2\)"):
        target_maps.make([np.zeros((4, 3))], flags(False), (40, 80), **PUBLISHED)
    with pytest.raises(ShapeError, match=r"\(P, 2\)"):
        target_maps.make([BOX, np.zeros(8)], flags(False, False), (40, 80), **PUBLISHED)
    with pytest.raises(ShapeError, match="height"):
        target_maps.make([BOX], flags(False), (0, 80), **PUBLISHED)
