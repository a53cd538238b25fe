"""Images that annotations name: found as they are written or nearly so, never outside the data folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.data.annotations import PageError
from ocrlab.data.folder_layouts import Source, find
from ocrlab.data.page_files import locate


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


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


@pytest.mark.parametrize("name", ["sub/a.jpg", "SUB/A.JPG", "a.jpg", "A.jpg", "sub\\a.jpg", "./sub/a.jpg"])
def test_a_name_that_is_nearly_right(tmp_path: Path, name: str) -> None:
    data = touch(tmp_path / "data", "train.json", "images/sub/a.jpg", "images/other/b.jpg")
    assert locate(name, find(data, "train")).samefile(data / "images" / "sub" / "a.jpg")


def test_a_folder_that_is_not_there_is_not_guessed(tmp_path: Path) -> None:
    data = touch(tmp_path / "data", "train.json", "images/sub/a.jpg")
    with pytest.raises(PageError, match="does not exist"):
        locate("train/a.jpg", find(data, "train"))


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


def test_what_is_not_searched(tmp_path: Path) -> None:
    data = touch(tmp_path, "train.json", ".hidden/a.jpg", "b.jpg")
    with pytest.raises(PageError, match="does not exist.*nothing by that name"):
        locate("a.jpg", find(data, "train"))
