"""Folders: each layout is recognised, and the error for a missing part names what is there instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.data.folder_layouts import find, splits
from ocrlab.data.page_files import locate
from ocrlab.errors import DataError


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    ("names", "annotation"),
    [
        (["train/images/a.jpg", "train/gts/gt_a.txt", "train.json"], "train/gts"),
        (["a.jpg", "train.json", "val.json"], "train.json"),
        (["images/a.jpg", "train.jsonl"], "train.jsonl"),
        (["train/ufo.json", "train/a.jpg", "val/ufo.json"], "train/ufo.json"),
        (["train/images/a.jpg", "train/labels.json"], "train/labels.json"),
        (["ufo/train.json", "ufo/val.json", "img/train/a.jpg", "img/val/b.jpg"], "ufo/train.json"),
        (["jsons/train.json", "images/train/a.jpg", "images/val/b.jpg"], "jsons/train.json"),
        (["train/gts/coco.json", "train/images/a.jpg", "val/gts/coco.json"], "train/gts/coco.json"),
        (["train/images/_annotations.coco.json", "train/images/a.jpg"], "train/images/_annotations.coco.json"),
    ],
)
def test_layouts(tmp_path: Path, names: list[str], annotation: str) -> None:
    source = find(touch(tmp_path, *names), "train")
    assert (source.annotations, source.note) == (tmp_path / annotation, None)
    image = next(tmp_path / name for name in names if name.endswith("a.jpg"))
    assert locate("a.jpg", source, 1) == image


@pytest.mark.parametrize(
    ("names", "path"), [(["a.jpg", "ufo.json"], ""), (["images/a.jpg", "gts/a.txt"], ""), (["ufo.json"], "ufo.json")]
)
def test_without_splits_every_split_is_the_same(tmp_path: Path, names: list[str], path: str) -> None:
    touch(tmp_path, *names)
    train, val = find(tmp_path / path, "train"), find(tmp_path / path, "val")
    assert (train.annotations, train.images[0]) == (val.annotations, val.images[0])
    assert train.note is None
    assert val.note is not None and "no generalisation" in val.note


@pytest.mark.parametrize(
    ("names", "split", "says"),
    [
        (["train/images/a.jpg", "train/gts/a.txt"], "trian", "no split 'trian'.*splits train.*nearest is train"),
        (["dev/images/a.jpg", "dev/gts/a.txt", "ufo.json"], "val", "no split 'val'.*splits dev.*Choose"),
        (["train.json", "a.jpg"], "val", "no split 'val'.*splits train"),
        (["a.json", "b.json"], "val", "Several files.*a.json.*b.json.*Needed: one"),
        (["val/a.json", "val/b.json"], "val", "Several files"),
        (["val/images/a.jpg"], "val", "val has images/ but no gts/"),
        (["val/gts/gt_a.txt"], "val", "val has gts/ but no images/"),
        (["readme.md", "page.jpg"], "val", "a folder with page.jpg, readme.md"),
        (["boxes.csv", "images/a.jpg"], "val", "a table, whose columns have no known meaning; write one gts/NAME.txt"),
        ([], "val", "a folder with nothing"),
    ],
)
def test_no_such_split(tmp_path: Path, names: list[str], split: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        find(touch(tmp_path, *names), split)


def test_no_such_folder(tmp_path: Path) -> None:
    touch(tmp_path, "receipts/train/images/a.jpg", "page.jpg")
    with pytest.raises(DataError, match=f"recipts does not exist.*nearest is {tmp_path / 'receipts'}[.]$"):
        find(tmp_path / "recipts", "train")
    with pytest.raises(DataError, match=f"{tmp_path} has no else; .* samples make .*where draws pages"):
        find(tmp_path / "else" / "where", "train")
    with pytest.raises(DataError, match="page.jpg is not a data set"):
        find(tmp_path / "page.jpg", "train")


def test_splits(tmp_path: Path) -> None:
    touch(tmp_path, "b/images/a.jpg", "b/gts/a.txt", "a/ufo.json", "val.json", "extra.json", ".git/x.json", "none/x.md")
    touch(tmp_path, "c/images/a.jpg", "c/gts/coco.json")
    assert splits(tmp_path) == ["a", "b", "c", "val"]


@pytest.mark.parametrize("split", ["", ".", "..", "/etc", "../val", "a\\b", "images/val"])
def test_a_split_is_a_name_and_leads_nowhere_else(split: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name of a folder inside"):
        find(tmp_path, split)
