"""Images and annotations find each other: by the names of both files, or by the name that an annotation holds."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from ocrlab.data.annotations import PageError
from ocrlab.data.folder_layouts import Source, find
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
        "B.JPEG": "gt_B.txt",
        "a.jpg": "gt_a.txt",
        "c.d.e.PNG": "gt_c.d.e.TXT",
        "gt_own.tif": "gt_own.txt",
        "plain.webp": "plain.txt",
        "with space.bmp": "gt_with space.txt",
    }
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
        "img11.jpg": "poly_gt_img11.txt",
        "1001.jpg": "0001001.txt",
        "x.jpg": "x.jpg.txt",
        "IMG_2.JPG": "gt_img_2.txt",
        "y.png": "gt_y.txt",
    }


def test_a_page_without_annotation_does_not_take_that_of_another(tmp_path: Path) -> None:
    touch(tmp_path, "images/1.jpg", "images/0001.jpg", "gts/0001.txt")
    matches, errors = pairs(tmp_path)
    assert matches == {"0001.jpg": "0001.txt"}
    assert len(errors) == 1 and "1.jpg: has no annotation" in errors[0] and "forgotten" in errors[0]


def test_a_second_annotation_under_another_name_is_not_reported_without_image(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.jpg", "gts/gt_a.txt", "gts/a.txt")
    matches, errors = pairs(tmp_path)
    assert matches == {"a.jpg": "gt_a.txt"}
    assert len(errors) == 1 and "a.txt: is an annotation too many. Given: another one of a.jpg" in errors[0]


def test_formats_of_other_tools_explain_what_to_do(tmp_path: Path) -> None:
    touch(tmp_path, "images/img1.jpg", "gts/poly_gt_img1.mat")
    with pytest.raises(DataError, match="MATLAB.*txt_format"):
        pairs(tmp_path)


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
