"""Conversion: every pair of formats gives back what was annotated; all or nothing, nothing overwritten."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocrlab.data.annotations import Page
from ocrlab.data.formats import reader, writers
from ocrlab.data.formats.convert import convert
from ocrlab.errors import DataError

FORMATS = tuple(writers.FORMATS)
QUAD = [[10, 20], [60, 21], [61, 40], [9, 41]]
BOW = [[300 + 7 * n, 100 - n * (6 - n)] for n in range(7)] + [[342 - 7 * n, 120 - n * (6 - n)] for n in range(7)]
FINE = [[10.25, 200.1], [60.123, 201.7], [61.3333, 219.99999], [9.1, 221.0]]
BOXES = [
    {"points": QUAD, "text": 'RM 5, 00 "total"', "ignore": False},
    {"points": QUAD[::-1], "text": "", "ignore": False},  # somebody's order is kept, and checked when it is read
    {"points": BOW, "text": "합계, 金額", "ignore": False},
    {"points": BOW[:3], "text": "2019,12", "ignore": False},
    {"points": FINE, "text": "12,500.00", "ignore": False},
    {"points": [[-4, 300], [700, 300], [700, 330], [-4, 330]], "text": "###", "ignore": True},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two splits of JSON lines: a page of all sorts, one without text, one in a sub-folder."""
    folder = tmp_path / "source"
    (folder / "images" / "sub").mkdir(parents=True)
    for name in ("all.png", "none.jpg", "sub/all.jpg", "val.png"):
        Image.new("L", (640, 480)).save(folder / "images" / name)
    pages = [("all.png", BOXES), ("none.jpg", []), ("sub/all.jpg", BOXES[2:4])]
    lines = [json.dumps({"image": name, "boxes": boxes}) for name, boxes in pages]
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "val.jsonl").write_text(json.dumps({"image": "val.png", "boxes": BOXES[:1]}) + "\n")
    return folder


def annotated(path: Path, split: str) -> dict[str, Page]:
    readers, errors, _ = reader.open_pages(path, split)
    assert not errors
    return {page.name: page for page in (read() for read in readers)}


def same(first: dict[str, Page], second: dict[str, Page]) -> None:
    assert first.keys() == second.keys()
    for name, page in first.items():
        other = second[name].boxes
        assert (page.boxes.texts, page.boxes.ignored) == (other.texts, other.ignored)
        for polygon, copy in zip(page.boxes.polygons, other.polygons, strict=True):
            assert polygon is not None and copy is not None
            np.testing.assert_array_equal(polygon, copy)
        with Image.open(page.image) as source, Image.open(second[name].image) as two:
            assert source.tobytes() == two.tobytes()


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("start", FORMATS)
def test_every_pair_there_and_back(source: Path, tmp_path: Path, start: str, to: str) -> None:
    first = convert(source, tmp_path / "first", start)
    second = convert(tmp_path / "first", tmp_path / "second", to)
    assert first.pages == second.pages == {"train": 3, "val": 1}
    assert first.boxes == second.boxes == 9
    assert not +first.lost and not +second.lost
    for split in ("train", "val"):
        same(annotated(source, split), annotated(tmp_path / "second", split))
    index = reader.load(tmp_path / "second", "train")
    assert {sample.name for sample in index.samples} == {"all", "none", "sub/all"} and not index.dropped


def test_what_icdar_cannot_hold_is_counted(source: Path, tmp_path: Path) -> None:
    boxes = [
        {"points": QUAD, "text": "blurred", "ignore": True}, {"points": QUAD, "text": "two\nlines"},
        {"points": QUAD[:2], "text": "a line"}, {"points": None}, {"points": BOW, "text": "bow"},
    ]  # fmt: skip
    (source / "train.jsonl").write_text(json.dumps({"image": "all.png", "boxes": boxes}))
    result = convert(source, tmp_path / "new", "icdar", splits=["train"], quads=True)
    assert dict(+result.lost) == {
        "transcriptions of boxes that do not count, now ###": 1,
        "line breaks in transcriptions, now blanks": 1,
        "boxes of fewer than 3 points, left out": 2,
        "polygons of other than 4 points, now their smallest rectangle": 1,
    }
    written = annotated(tmp_path / "new", "train")["all"].boxes
    assert (
        written.texts == ["###", "two lines", "bow"] and [len(p) for p in written.polygons if p is not None] == [4] * 3
    )
    lines = (tmp_path / "new" / "train" / "gts" / "gt_all.txt").read_text().splitlines()
    assert lines[0] == "10,20,60,21,61,40,9,41,###"


def test_text_that_would_be_read_as_points_is_refused(source: Path, tmp_path: Path) -> None:
    line = {"image": "all.png", "boxes": [{"points": [[0, 0], [50, 0], [50, 10], [90, 40]], "text": "80,45"}]}
    (source / "train.jsonl").write_text(json.dumps(line))
    with pytest.raises(DataError, match="Page all cannot be written as ICDAR text"):
        convert(source, tmp_path / "new", "icdar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    assert convert(source, tmp_path / "new", "coco").boxes == 2


def test_nothing_is_overwritten_and_nothing_is_half_there(source: Path, tmp_path: Path, monkeypatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()
    for target, says in ((tmp_path / "there", "already exists"), (source / "new", "lies inside")):
        with pytest.raises(DataError, match=says):
            convert(source, target, "coco")
    with pytest.raises(DataError, match="Unknown format to write"):
        convert(source, tmp_path / "new", "voc")
    with pytest.raises(DataError, match="no split 'test'"):
        convert(source, tmp_path / "new", "coco", splits=["train", "test"])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(DataError, match="cannot be written. Given: No space left"):
            convert(source, tmp_path / "new", "coco")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "there"]
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine"]
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before


def test_images_linked_and_left_out(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "linked", "ufo", images="link")
    assert (tmp_path / "linked" / "images" / "val" / "val.png").samefile(source / "images" / "val.png")
    assert not (tmp_path / "linked" / "images" / "val" / "val.png").is_symlink()
    same(annotated(source, "train"), annotated(tmp_path / "linked", "train"))
    convert(source, tmp_path / "bare", "labelme", images="none")
    assert not [path for path in (tmp_path / "bare").rglob("*") if path.suffix in (".png", ".jpg")]
    assert json.loads((tmp_path / "bare" / "train" / "sub" / "all.json").read_text())["imagePath"] == "all.jpg"


def test_a_page_that_cannot_be_read_is_left_out_and_reported(source: Path, tmp_path: Path) -> None:
    (source / "images" / "none.jpg").write_bytes(b"no image")
    with (source / "train.jsonl").open("a") as file:
        file.write('\n{"image": "../../secret.png", "boxes": []}\n{"image": "all.png", "boxes": []}\n')
    result = convert(source, tmp_path / "new", "coco", splits=["train"])
    assert result.pages == {"train": 2}
    text = "\n".join(map(str, result.problems))
    assert len(result.problems) == 3
    assert "none.jpg: is not an image" in text and "leaves the data folder" in text and "'all' occurs twice" in text
    (source / "val.jsonl").write_text('{"image": "gone.png", "boxes": []}')
    with pytest.raises(DataError, match="No page of .* can be converted.*gone.png"):
        convert(source, tmp_path / "other", "coco", splits=["val"])
