"""Run-length masks: unpacked as COCO packs them, outlined along the edges of their pixels."""

from __future__ import annotations

import re

import numpy as np
import pytest
import shapely

from ocrlab.data.annotations import PageError
from ocrlab.data.formats.coco import rle_polygons, unpack


def runs(mask: np.ndarray) -> list[int]:
    """Return the counts of a mask (H, W), down the columns, background first."""
    flat = mask.astype(bool).ravel(order="F")
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat, [not flat[-1]]]).astype(np.int8)))
    return np.diff(np.concatenate([[0], edges])).tolist()


def pack(counts: list[int]) -> str:
    """Return counts as COCO's string: 5 bits a character, from the fourth count on the difference to two before."""
    letters = []
    for index, count in enumerate(counts):
        value = count - (counts[index - 2] if index > 2 else 0)
        while True:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            letters.append(chr((bits | 32 * more) + 48))
            if not more:
                break
    return "".join(letters)


def test_the_string_form() -> None:
    assert unpack("") == []
    assert unpack("52203") == [5, 2, 2, 2, 5]  # as COCO's own encoder packs a 4 x 4 mask with 2 x 2 pixels set
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts = rng.integers(0, 100_000, rng.integers(1, 40)).tolist()
        assert unpack(pack(counts)) == counts


@pytest.mark.parametrize("packed", [False, True])
def test_a_rectangle_is_exact(packed: bool) -> None:
    mask = np.zeros((60, 90), bool)
    mask[20:41, 30:71] = True
    counts = runs(mask)
    (outline,) = rle_polygons({"size": [60, 90], "counts": pack(counts) if packed else counts})
    assert outline.dtype == np.float32 and outline.shape == (4, 2)
    assert {tuple(point) for point in outline.tolist()} == {(30, 20), (71, 20), (71, 41), (30, 41)}


def test_any_shape_keeps_its_pixels() -> None:
    y, x = np.mgrid[:200, :300]
    bow = (np.hypot(x - 150, y - 260) < 230) & (np.hypot(x - 150, y - 260) > 190) & (np.abs(x - 150) < 120)
    (outline,) = rle_polygons({"size": [200, 300], "counts": runs(bow)})
    shape = shapely.Polygon(outline)
    assert shape.is_valid and len(outline) < 200
    inside = shapely.contains_xy(shape, x + 0.5, y + 0.5)
    assert (inside & bow).sum() / (inside | bow).sum() > 0.97


def test_parts_holes_and_full_masks() -> None:
    mask = np.zeros((40, 40), bool)
    mask[5:10, 5:30], mask[20:35, 5:30], mask[25:28, 10:20] = True, True, False
    assert len(rle_polygons({"size": [40, 40], "counts": runs(mask)})) == 2
    (full,) = rle_polygons({"size": [3, 2], "counts": [0, 6]})
    assert shapely.Polygon(full).area == 6
    assert rle_polygons({"size": [3, 2], "counts": [6]}) == []
    assert rle_polygons({"size": [3, 2], "counts": [3, 0, 3]}) == []


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ({"counts": [6]}, "size of a run-length mask is not usable"),
        ({"size": [3, 0], "counts": [0]}, "size of a run-length mask is not usable"),
        ({"size": [3, 10**9], "counts": [3 * 10**9]}, "size of a run-length mask is not usable"),
        ({"size": [3, 2], "counts": [7]}, "does not fill its size. Given: 7 pixels for 3 x 2"),
        ({"size": [3, 2], "counts": [3, -1, 4]}, "counts of a run-length mask are not usable"),
        ({"size": [3, 2], "counts": [3, 1.5, 1.5]}, "counts of a run-length mask are not usable"),
        ({"size": [3, 2]}, "counts of a run-length mask are not usable"),
        ({"size": [3, 2], "counts": "6 "}, "packed run-length mask is damaged. Given: the character ' '"),
        ({"size": [3, 2], "counts": "6P"}, "packed run-length mask is cut off"),
        ({"size": [1000, 1000], "counts": [0, *[1] * 10**6]}, "too ragged"),
    ],
)
def test_what_is_no_mask(mask: dict[str, object], says: str) -> None:
    with pytest.raises(PageError, match=re.escape(says)):
        rle_polygons(mask)
