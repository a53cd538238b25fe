"""Folders and files of a data set: layouts, and how images and annotations find each other."""

import unicodedata
from pathlib import Path

import pytest

from ocrlab.data.annotations import PageError
from ocrlab.data.folder_layouts import Source, find, splits
from ocrlab.data.page_files import locate, pair
from ocrlab.errors import DataError


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def pairs(folder: Path) -> tuple[dict[str, str], list[str]]:
    matches, errors, _ = pair(Source(folder / "gts", (folder / "images",)))
    return {image.name: text.name for image, text in matches}, [str(error) for error in errors]


def test_images_and_texts_are_matched_by_name(tmp_path: Path) -> None:
    names = ["a.jpg", "B.JPEG", "c.d.e.PNG", "with space.bmp", "gt_own.tif", "plain.webp", ".hidden.jpg", "notes.md"]
    texts = ["gt_a.txt", "gt_B.txt", "gt_c.d.e.TXT", "gt_with space.txt", "gt_own.txt", "plain.txt", ".gt_x.txt"]
    touch(tmp_path, *(f"images/{name}" for name in names), *(f"gts/{name}" for name in texts))
    matches, errors = pairs(tmp_path)
    assert not errors
    assert matches == {
        "B.JPEG": "gt_B.txt", "a.jpg": "gt_a.txt", "c.d.e.PNG": "gt_c.d.e.TXT",
        "gt_own.tif": "gt_own.txt", "plain.webp": "plain.txt", "with space.bmp": "gt_with space.txt",
    }  # fmt: skip
    assert list(matches) == sorted(matches)


def test_names_from_a_mac_match(tmp_path: Path) -> None:
    name = "영수증é"
    image = unicodedata.normalize("NFD", name) + ".jpg"
    touch(tmp_path, f"images/{image}", f"gts/gt_{unicodedata.normalize('NFC', name)}.txt")
    assert pairs(tmp_path)[0].keys() == {image}
    assert locate(f"{name}.jpg", Source(tmp_path / "x.json", (tmp_path / "images",)), None).name == image


def test_what_has_no_partner_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.jpg", "images/alone.jpg", "images/two.jpg", "images/two.png")
    touch(tmp_path, "gts/gt_a.txt", "gts/gt_lost.txt", "gts/gt_two.txt")
    matches, errors = pairs(tmp_path)
    assert matches == {"a.jpg": "gt_a.txt"}
    assert len(errors) == 3
    assert f"{tmp_path}/images/alone.jpg: has no annotation. Needed: {tmp_path}/gts/gt_alone.txt" in errors[0]
    assert f"{tmp_path}/gts/gt_lost.txt: belongs to no image. Needed: {tmp_path}/images/lost.jpg" in errors[1]
    assert f"{tmp_path}/gts/gt_two.txt: belongs to several images. Given: two.jpg, two.png" in errors[2]


def test_the_names_of_published_sets(tmp_path: Path) -> None:
    touch(tmp_path, *(f"images/{name}" for name in ("img11.jpg", "1001.jpg", "x.jpg", "IMG_2.JPG", "sub/y.png")))
    touch(tmp_path, *(f"gts/{name}" for name in ("poly_gt_img11.txt", "0001001.txt", "x.jpg.txt", "gt_img_2.txt")))
    touch(tmp_path, "gts/sub/gt_y.txt")
    matches, errors = pairs(tmp_path)
    assert not errors
    assert matches == {
        "img11.jpg": "poly_gt_img11.txt", "1001.jpg": "0001001.txt", "x.jpg": "x.jpg.txt",
        "IMG_2.JPG": "gt_img_2.txt", "y.png": "gt_y.txt",
    }  # fmt: skip


def test_a_page_without_annotation_does_not_take_that_of_another(tmp_path: Path) -> None:
    touch(tmp_path, "images/1.jpg", "images/0001.jpg", "gts/0001.txt")
    matches, errors = pairs(tmp_path)
    assert matches == {"0001.jpg": "0001.txt"}
    assert len(errors) == 1 and "1.jpg: has no annotation" in errors[0] and "forgotten" in errors[0]


OUTSIDE = ["../secret.jpg", "a/../../secret.jpg", "a/../a/b.jpg", "/etc/passwd", "link.jpg"]


@pytest.mark.parametrize("name", [*OUTSIDE, "", None, 3, "a\0.jpg", "no.jpg", "x" * 999])
def test_no_path_outside_the_folder(tmp_path: Path, name: object) -> None:
    data = touch(tmp_path, "secret.jpg", "data/ufo.json", "data/a/b.jpg") / "data"
    (data / "link.jpg").symlink_to("../secret.jpg")
    source = find(data, "train")
    with pytest.raises(PageError, match=r"ufo.json:7: .*image .*(leaves|not usable|does not exist)"):
        locate(name, source, 7)
    assert locate("a/b.jpg", source, 7) == data / "a" / "b.jpg"


def test_a_linked_image_folder_is_the_users_own(tmp_path: Path) -> None:
    touch(tmp_path, "disk/a.jpg", "data/train.json")
    (tmp_path / "data" / "images").symlink_to(tmp_path / "disk")
    assert locate("a.jpg", find(tmp_path / "data", "train"), None) == tmp_path / "data" / "images" / "a.jpg"


@pytest.mark.parametrize("names", [("x/a.jpg", "y/a.jpg"), ("a.JPG", "A.jpg")])
def test_a_name_that_fits_two_files_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    data = touch(tmp_path, "train.json", *names)
    with pytest.raises(PageError, match="could be one of several files.*sub-folder"):
        locate("a.jpg", find(data, "train"))
    assert locate(names[1], find(data, "train")) == data / names[1]


WINDOWS = ["..\\secret.jpg", "C:\\Users\\a.jpg", "\\\\server\\share\\a.jpg", "/a.jpg", "x/../../secret.jpg"]


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_paths_do_not_leave_either(tmp_path: Path, name: str) -> None:
    data = touch(tmp_path, "secret.jpg", "data/train.json", "data/a.jpg") / "data"
    with pytest.raises(PageError, match="leaves the data folder"):
        locate(name, find(data, "train"))


def test_an_annotation_of_a_single_page_may_look_beside_its_own_folder(tmp_path: Path) -> None:
    data = touch(tmp_path, "secret.jpg", "data/labels/a.json", "data/images/a.jpg", "data/images/b.jpg") / "data"
    source = Source(data / "labels", (data / "images",), root=data)
    for name in ("../images/a.jpg", "..\\images\\a.jpg"):
        assert locate(name, source, beside=data / "labels").samefile(data / "images" / "a.jpg")
    assert locate("b.jpg", source, beside=data / "labels").samefile(data / "images" / "b.jpg"), "a bare name"
    with pytest.raises(PageError, match="leaves the data folder"):
        locate("../../secret.jpg", source, beside=data / "labels")


@pytest.mark.parametrize(("names", "annotation"), [
    (["train/images/a.jpg", "train/gts/gt_a.txt", "train.json"], "train/gts"),
    (["a.jpg", "train.json", "val.json"], "train.json"),
    (["images/a.jpg", "train.jsonl"], "train.jsonl"),
    (["train/ufo.json", "train/a.jpg", "val/ufo.json"], "train/ufo.json"),
    (["train/images/a.jpg", "train/labels.json"], "train/labels.json"),
    (["ufo/train.json", "ufo/val.json", "img/train/a.jpg", "img/val/b.jpg"], "ufo/train.json"),
    (["jsons/train.json", "images/train/a.jpg", "images/val/b.jpg"], "jsons/train.json"),
    (["train/gts/coco.json", "train/images/a.jpg", "val/gts/coco.json"], "train/gts/coco.json"),
    (["train/images/_annotations.coco.json", "train/images/a.jpg"], "train/images/_annotations.coco.json"),
])  # fmt: skip
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


@pytest.mark.parametrize(("names", "split", "says"), [
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
])  # fmt: skip
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
