"""COCO and COCO-Text: tables that meet by number, outlines in four spellings, and what does not fit together."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from PIL import Image

from ocrlab.data.annotations import PageError
from ocrlab.data.formats.coco import rle_polygons, unpack
from ocrlab.data.formats.reader import Index, load
from ocrlab.errors import DataError

QUAD = [10, 20, 60.5, 20, 60.5, 40, 10, 40]
CORNERS = np.array(QUAD, np.float32).reshape(4, 2)
BOX = [10, 20, 50.5, 20]


def coco(annotations: list[Any], **more: Any) -> dict[str, Any]:
    images = [{"id": number, "file_name": f"{name}.png"} for number, name in ((1, "a"), (2, "b"))]
    return {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "text"}], **more}


def loaded(folder: Path, data: Any, split: str = "train", **how: Any) -> Index:
    for name in ("a", "b"):
        Image.new("L", (100, 90)).save(folder / f"{name}.png")
    (folder / "labels.json").write_text(json.dumps(data), encoding="utf-8")
    return load(folder / "labels.json", split, **how)


@pytest.mark.parametrize(
    "outline",
    [
        {"segmentation": [QUAD]}, {"segmentation": QUAD}, {"bbox": BOX},
        {"segmentation": [], "bbox": BOX}, {"segmentation": [[10, 20]], "bbox": BOX},
        {"segmentation": None, "bbox": BOX},
    ],
)  # fmt: skip
def test_outlines(tmp_path: Path, outline: dict[str, Any]) -> None:
    index = loaded(tmp_path, coco([{"id": 7, "image_id": 1, "category_id": 1, **outline, "text": "a, b"}]))
    first, second = index.samples
    assert (first.name, first.texts, first.ignored.tolist()) == ("a", ("a, b",), [False])
    np.testing.assert_array_equal(first.polygons[0], CORNERS)
    assert second.polygons == ()
    (note,) = index.problems
    assert "1 of 2 images have no annotation (id 2): taken as pages without text" in str(note)


def test_masks_and_parts(tmp_path: Path) -> None:
    mask = {"size": [90, 100], "counts": [90 * 10 + 20, 20, *[70, 20] * 49, 90 * 41 - 20 + 0]}
    mask["counts"][-1] = 9000 - sum(mask["counts"][:-1])
    parts = [[10, 20, 30, 20, 30, 40, 10, 40], [40, 20, 60, 20, 60, 40, 40, 40]]
    rows = [{"image_id": 1, "segmentation": mask, "iscrowd": 1}, {"image_id": 2, "segmentation": parts, "ignore": 0}]
    first, second = loaded(tmp_path, coco(rows)).samples
    np.testing.assert_array_equal(first.polygons[0], [[10, 20], [60, 20], [60, 40], [10, 40]])
    assert first.ignored.tolist() == [True] and second.ignored.tolist() == [False]
    np.testing.assert_array_equal(second.polygons[0], [[10, 20], [60, 20], [60, 40], [10, 40]])


@pytest.mark.parametrize(("row", "says"), [
    ({"segmentation": [[1, 2, 3, 4, 5]]}, "annotation 7: segmentation is not a polygon"),
    ({"segmentation": [[1, 2, 3, 4, 5, "6"]]}, "annotation 7: segmentation is not a polygon"),
    ({"segmentation": {"size": [2, 2], "counts": [5]}}, "annotation 7: a run-length mask does not fill its size"),
    ({"bbox": [1, 2, -3, 4]}, "annotation 7: bbox is not a box"),
    ({"bbox": [1, 2, 3]}, "annotation 7: bbox is not a box"),
    ({}, "annotation 7: bbox is not a box"),
    ({"bbox": BOX, "text": 5}, "annotation 7: text is not a string"),
    ({"bbox": BOX, "iscrowd": 2}, "annotation 7: iscrowd is not a flag"),
])  # fmt: skip
def test_a_bad_annotation_is_named(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    index = loaded(tmp_path, coco([{"id": 7, "image_id": 1, **row}, {"image_id": 2, "bbox": BOX}]))
    assert [sample.name for sample in index.samples] == ["b"]
    (problem,) = index.problems
    assert f"labels.json: page 'a.png': {says}" in str(problem)


def test_tables_that_do_not_join(tmp_path: Path) -> None:
    twice = coco([{"image_id": 1, "bbox": BOX}, {"image_id": 2, "bbox": BOX}])
    twice["images"].append({"id": 1, "file_name": "c.png"})
    Image.new("L", (100, 90)).save(tmp_path / "c.png")
    index = loaded(tmp_path, twice)
    assert [sample.name for sample in index.samples] == ["b"]
    assert len(index.problems) == 2 and all("image id 1 occurs 2 times" in str(problem) for problem in index.problems)
    with pytest.raises(DataError, match="has no image_id"):
        loaded(tmp_path, coco([{"id": 7, "bbox": BOX}]))
    with pytest.raises(DataError, match="COCO without a list of annotations"):
        loaded(tmp_path, {"images": [], "annotations": None})


def coco_text(rows: dict[str, Any], sets: tuple[str, str] = ("train", "val")) -> dict[str, Any]:
    images = {"11": {"id": 11, "file_name": "a.png", "set": sets[0]}, "12": {"id": 12, "file_name": "b.png"}}
    images["12"]["set"] = sets[1]
    of_image: dict[str, list[int]] = {"11": [], "12": []}
    for key, row in rows.items():
        of_image[str(row["image_id"])].append(int(key))
    return {"cats": {}, "anns": rows, "imgs": images, "imgToAnns": of_image, "info": {}}


def test_coco_text(tmp_path: Path) -> None:
    rows: dict[str, Any] = {
        "1": {"image_id": 11, "mask": QUAD, "bbox": BOX, "legibility": "legible", "utf8_string": "the"},
        "2": {"image_id": 11, "mask": QUAD[:5], "bbox": BOX, "legibility": "illegible"},
        "3": {"image_id": 12, "polygon": QUAD, "legibility": "legible", "utf8_string": "."},
        "4": {"image_id": 12, "points": QUAD, "utf8_string": "."},
    }
    (train,) = loaded(tmp_path, coco_text(rows)).samples
    assert (train.name, train.texts, train.ignored.tolist()) == ("a", ("the", ""), [False, True])
    np.testing.assert_array_equal(np.array(train.polygons), [CORNERS, CORNERS])
    index = loaded(tmp_path, coco_text(rows), "val")
    (val,) = index.samples
    assert (val.name, val.ignored.tolist(), index.problems) == ("b", [False, True], [])


def test_the_sets_of_coco_text_are_splits(tmp_path: Path) -> None:
    rows = {"1": {"image_id": 11, "bbox": BOX}, "2": {"image_id": 12, "bbox": BOX}}
    with pytest.raises(DataError, match="no split 'test'.*splits train, val"):
        loaded(tmp_path, coco_text(rows), "test")
    index = loaded(tmp_path, coco_text(rows, ("train", "train")), "val")
    assert len(index.samples) == 2 and "no generalisation" in str(index.problems[0])


def test_what_coco_text_lists_and_does_not_have(tmp_path: Path) -> None:
    data = coco_text({"1": {"image_id": 11, "bbox": BOX}}, ("train", "train"))
    data["imgToAnns"]["12"] = [99]
    data["anns"]["5"] = {"image_id": 77, "bbox": BOX}
    index = loaded(tmp_path, data)
    assert [sample.name for sample in index.samples] == ["a"]
    text = "\n".join(map(str, index.problems))
    assert "annotation 99: is in imgToAnns and not in anns" in text and "image_id 77" in text
    del data["imgToAnns"]
    del data["anns"]["5"]
    index = loaded(tmp_path, data)
    assert [len(sample.polygons) for sample in index.samples] == [1, 0]
    assert "1 of 2 images have no annotation (id 12)" in str(index.problems[0])


@pytest.mark.parametrize(
    ("size", "good"), [((100, 90), 2), ((90, 100), 2), ((0, 0), 2), ((None, 5), 2), ((50, 45), 1), ((9, 9), 1)]
)
def test_boxes_rendered_at_another_resolution_are_a_problem(tmp_path: Path, size: tuple[Any, Any], good: int) -> None:
    data = coco([{"id": 7, "image_id": 1, "bbox": BOX}])
    data["images"][0] |= {"width": size[0], "height": size[1]}
    index = loaded(tmp_path, data)
    assert len(index.samples) == good, "turned by a quarter is right, and none is none"
    assert any("another resolution" in problem.message for problem in index.problems) == (good == 1)


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


def test_parts_holes_and_full_masks() -> None:
    mask = np.zeros((40, 40), bool)
    mask[5:10, 5:30], mask[20:35, 5:30], mask[25:28, 10:20] = True, True, False
    assert len(rle_polygons({"size": [40, 40], "counts": runs(mask)})) == 2
    (full,) = rle_polygons({"size": [3, 2], "counts": [0, 6]})
    assert shapely.Polygon(full).area == 6
    assert rle_polygons({"size": [3, 2], "counts": [6]}) == []
    assert rle_polygons({"size": [3, 2], "counts": [3, 0, 3]}) == []


@pytest.mark.parametrize(("mask", "says"), [
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
])  # fmt: skip
def test_what_is_no_mask(mask: dict[str, object], says: str) -> None:
    with pytest.raises(PageError, match=re.escape(says)):
        rle_polygons(mask)
