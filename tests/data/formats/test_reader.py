"""Loading a split: boxes are judged once, a bad page is a problem and not the end, real data comes out whole."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocrlab.data.annotations import PageError
from ocrlab.data.formats.reader import load, read_image
from ocrlab.errors import DataError

BOX = np.array([[10, 20], [60, 20], [60, 40], [10, 40]], np.float32)
WIDTH, HEIGHT = 80, 120


def page(
    folder,
    name="a",
    lines="10,20,60,20,60,40,10,40,one\n",
    *,
    size=(WIDTH, HEIGHT),
    orientation=None,
):
    """Write an image and its ICDAR text into FOLDER/train."""
    for sub in ("images", "gts"):
        (folder / "train" / sub).mkdir(parents=True, exist_ok=True)
    tags = Image.Exif()
    if orientation:
        tags[274] = orientation
    Image.new("RGB", size, "white").save(folder / "train" / "images" / f"{name}.jpg", exif=tags)
    if lines is not None:
        (folder / "train" / "gts" / f"gt_{name}.txt").write_text(lines, encoding="utf-8")


def test_a_sample(tmp_path: Path) -> None:
    page(tmp_path, "a b.ü", "\ufeff10,20,60,20,60,40,10,40,one, two\r\n10,60,60,60,60,80,10,80,###\r\n")
    index = load(tmp_path, "train")
    (sample,) = index.samples
    assert (index.source, index.split, index.problems, dict(index.dropped)) == (tmp_path, "train", [], {})
    assert (sample.name, sample.width, sample.height) == ("a b.ü", WIDTH, HEIGHT)
    assert sample.image == tmp_path / "train" / "images" / "a b.ü.jpg"
    assert sample.annotation == tmp_path / "train" / "gts" / "gt_a b.ü.txt"
    assert sample.texts == ("one, two", "###")
    assert sample.ignored.dtype == bool and sample.ignored.tolist() == [False, True]
    np.testing.assert_allclose(sample.polygons[0], BOX)
    assert read_image(sample.image).shape == (HEIGHT, WIDTH, 3)
    copy = pickle.loads(pickle.dumps(sample))
    np.testing.assert_array_equal(copy.polygons[1], sample.polygons[1])


def test_degenerate_boxes_are_dropped_and_counted_once(tmp_path: Path) -> None:
    boxes = [
        {"points": None, "text": "none"},
        {"points": [], "text": "empty"},
        {"points": [[1, 2], [3, 4]], "text": "two points"},
        {"points": BOX.tolist(), "text": "kept", "ignore": True},
        {"points": [[10, 20], [60, 20], [60, 20], [10, 20]], "text": "no height"},
        {"points": (BOX + 500).tolist(), "text": "elsewhere"},
        {"points": [[-30, 20], [60, 20], [60, 40], [-30, 40]], "text": "sticks out"},
    ]
    Image.new("L", (WIDTH, HEIGHT)).save(tmp_path / "a.png")
    (tmp_path / "train.jsonl").write_text(json.dumps({"image": "a.png", "boxes": boxes}))
    index = load(tmp_path, "train")
    (sample,) = index.samples
    assert sample.texts == ("kept", "sticks out")
    assert sample.ignored.tolist() == [True, False]
    assert sum(index.dropped.values()) == 5
    assert set(index.dropped) <= {"none", "empty", "too_few_points", "too_small", "zero_span"}
    assert index.dropped["none"] == 1 and index.dropped["too_few_points"] >= 1
    for polygon in sample.polygons:
        assert polygon.dtype == np.float32
        assert (polygon >= 0).all() and (polygon <= [WIDTH, HEIGHT]).all()
    assert not index.problems


def test_an_empty_page_is_a_page(tmp_path: Path) -> None:
    page(tmp_path, "empty", "")
    page(tmp_path, "all_dropped", "1,1,1,1,1,1,1,1,x")
    index = load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["all_dropped", "empty"]
    for sample in index.samples:
        assert (sample.polygons, sample.texts, sample.ignored.shape) == ((), (), (0,))
        assert sample.ignored.dtype == bool


def bad_folder(folder: Path) -> int:
    """Write two good pages among bad ones; return the number of the bad."""
    page(folder, "good")
    page(folder, "bad_line", "10,20,60,20,60,40,10,40,one\n10,20,sixty,20,60,40,10,40,two\n")
    page(folder, "no_text", None)
    page(folder, "empty_image")
    page(folder, "not_image")
    page(folder, "z_good")
    images, gts = folder / "train" / "images", folder / "train" / "gts"
    (images / "empty_image.jpg").write_bytes(b"")
    (images / "not_image.jpg").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    (gts / "gt_lost.txt").write_text("")
    return 5


def test_a_bad_page_is_left_out_and_named(tmp_path: Path) -> None:
    bad = bad_folder(tmp_path)
    index = load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["good", "z_good"]
    assert len(index.problems) == bad
    problems = {problem.file.name: problem for problem in index.problems if problem.file}
    assert set(problems) == {"gt_bad_line.txt", "no_text.jpg", "empty_image.jpg", "not_image.jpg", "gt_lost.txt"}
    assert problems["gt_bad_line.txt"].line == 2
    assert "'10,20,sixty,20" in problems["gt_bad_line.txt"].message
    assert all("Needed: " in problem.message for problem in index.problems)
    assert str(problems["gt_bad_line.txt"]).startswith(
        f"{tmp_path}/train/gts/gt_bad_line.txt:2: field 3 is not a number."
    )


def test_strict_ends_at_the_first_bad_page(tmp_path: Path) -> None:
    page(tmp_path, "good")
    assert len(load(tmp_path, "train", strict=True).samples) == 1
    page(tmp_path, "worse", "1,2,3")
    with pytest.raises(PageError, match="gt_worse.txt:1: 3 fields are too few"):
        load(tmp_path, "train", strict=True)
    (tmp_path / "train" / "gts" / "gt_worse.txt").unlink()
    with pytest.raises(PageError, match="worse.jpg: has no annotation"):
        load(tmp_path, "train", strict=True)


def test_no_page_left_is_an_error_with_the_first_reason(tmp_path: Path) -> None:
    page(tmp_path, "a", "oops")
    page(tmp_path, "b", "oops")
    with pytest.raises(DataError, match=r"No page of split 'train'.*2 bad pages, the first being .*gt_a.txt:1: "):
        load(tmp_path, "train")
    (tmp_path / "none.json").write_text('{"images": {}}')
    with pytest.raises(DataError, match="No page.*empty list"):
        load(tmp_path / "none.json", "train")


def test_a_page_named_twice(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        Image.new("L", (WIDTH, HEIGHT)).save(tmp_path / name)
    names = ("a.png", "b.png", "./a.png")
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps({"image": name, "boxes": []}) for name in names))
    index = load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["a", "b"]
    (problem,) = index.problems
    assert (problem.line, problem.message) == (3, "page 'a' occurs twice. Needed: one entry.")


TURNED = "20,10,40,10,40,110,20,110,fits only 80 x 120"


@pytest.mark.parametrize(("size", "orientation", "exif", "do"), [
    ((WIDTH, HEIGHT), None, False, None),
    ((WIDTH, HEIGHT), 6, False, None),  # MSRA-TD500: tagged, but labelled in unrotated pixels
    ((WIDTH, HEIGHT), 6, True, "Set exif=false"),
    ((HEIGHT, WIDTH), 6, False, "Set exif=true"),
    ((HEIGHT, WIDTH), 8, False, "Set exif=true"),
    ((HEIGHT, WIDTH), 6, True, None),
    ((HEIGHT, WIDTH), None, False, "Turn the image"),
    ((HEIGHT, WIDTH), 3, True, "Turn the image"),
])  # fmt: skip
def test_annotation_that_fits_only_the_turned_image(tmp_path, size, orientation, exif, do):
    page(tmp_path, "good", "1,1,30,1,30,30,1,30,x", size=(WIDTH, WIDTH))
    page(tmp_path, "phone", TURNED, size=size, orientation=orientation)
    index = load(tmp_path, "train", exif=exif)
    if do is None:
        sample = index.samples[1]
        assert not index.problems
        assert (sample.width, sample.height) == (WIDTH, HEIGHT) == read_image(sample.image, exif=exif).shape[1::-1]
    else:
        assert [sample.name for sample in index.samples] == ["good"]
        (problem,) = index.problems
        assert problem.file is not None and problem.file.name == "phone.jpg"
        assert "turned by 90 degrees" in problem.message and do in problem.message
        with pytest.raises(PageError, match="phone.jpg.*turned"):
            load(tmp_path, "train", exif=exif, strict=True)


@pytest.mark.parametrize(
    ("name", "split", "pages", "boxes", "ignored"),
    [("sroie", "val", 63, 3759, 0), ("icdar2015", "dev", 300, 3989, 2513), ("ufo_sample", "train", 2, 146, 0)],
)
def test_real_data(shared: Path, name: str, split: str, pages: int, boxes: int, ignored: int) -> None:
    index = load(shared / "data" / name, split)
    dropped = sum(index.dropped.values())
    assert (len(index.samples), index.problems) == (pages, [])
    assert sum(len(sample.polygons) for sample in index.samples) + dropped == boxes
    assert dropped <= boxes * 0.01
    assert sum(int(sample.ignored.sum()) for sample in index.samples) >= ignored - dropped
    for sample in index.samples[:5]:
        assert read_image(sample.image).shape == (sample.height, sample.width, 3)
        assert len(sample.texts) == len(sample.polygons) == len(sample.ignored)
