"""A format is recognised by the content of a file, not by its name; an unknown or unclear one is an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ocrlab.data.formats.reader import load, splits
from ocrlab.errors import DataError

POINTS = [[10, 20], [60, 20], [60, 40], [10, 40]]
FLAT = [10, 20, 60, 20, 60, 40, 10, 40]
CORNERS = {f"{axis}{n + 1}": xy[k] for n, xy in enumerate(POINTS) for k, axis in enumerate("xy")}
FORMS: dict[str, Any] = {
    "ufo": {"images": {"a.png": {"words": {"1": {"points": POINTS}}}}},
    "coco": {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "segmentation": [FLAT]}]},
    "coco-text": {"imgs": {"1": {"file_name": "a.png"}}, "anns": {"1": {"image_id": 1, "mask": FLAT}}, "imgToAnns": {}},
    "labelme": {"shapes": [{"label": "", "points": POINTS, "shape_type": "polygon"}], "imagePath": "a.png"},
    "cord": {"file_name": "a.png", "valid_line": [{"words": [{"quad": CORNERS, "text": ""}]}]},
    "ours": {"image": "a.png", "boxes": [{"points": POINTS}]},
}
PAGES = ("labelme", "cord", "ours")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png"):
        Image.new("L", (100, 90)).save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("file", ["train.json", "train.jsonl", "whatever.json"])
def test_every_format_under_any_name(folder: Path, name: str, file: str) -> None:
    for text in (json.dumps(FORMS[name]), "\ufeff" + json.dumps(FORMS[name], indent=2).replace("\n", "\r\n")):
        (folder / file).write_text(text, encoding="utf-8", newline="")
        (sample,) = load(folder / file, "train").samples
        assert (sample.name, sample.width, [polygon.tolist() for polygon in sample.polygons]) == ("a", 100, [POINTS])


@pytest.mark.parametrize("name", PAGES)
def test_a_file_for_each_page(folder: Path, name: str) -> None:
    (folder / "train").mkdir()
    for page in ("a", "b"):
        (folder / f"{page}.png").rename(folder / "train" / f"{page}.png")
        text = json.dumps(FORMS[name]).replace("a.png", f"{page}.png")
        (folder / "train" / f"{page}.json").write_text(text)
    assert [sample.name for sample in load(folder, "train").samples] == ["a", "b"]


@pytest.mark.parametrize(("data", "says"), [
    ({"annotations": []}, "a format that is not known. Given: an object with 'annotations'.*UFO.*COCO.*COCO-Text"),
    ({}, "a format that is not known. Given: an object with nothing in it"),
    (7, "a format that is not known. Given: 7"),
    ("text", "a format that is not known"),
    ({**FORMS["coco"], "imgs": {}, "anns": {}}, "could be COCO or COCO-Text. .*Remove what does not belong"),
    ([7], "a format that is not known. Given: 7"),
])  # fmt: skip
def test_an_unknown_format_is_reported_with_the_supported_formats(folder: Path, data: Any, says: str) -> None:
    (folder / "train.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=rf"train.json: {says}"):
        load(folder, "train")


@pytest.mark.parametrize(("lines", "texts"), [
    ("10,20,60,40,one\n10,50,60,70,two, and more\n", ["one", "two, and more"]),
    ('10, 20, 60, 40, "one"\n10, 50, 60, 70, "two, \\"more\\""\n', ["one", 'two, "more"']),
    ('10 20 60 40 "one"\r\n10 50 60 70 "two"\r\n', ["one", "two"]),
    ("10,20,60,40\n10,50,60.5,70\n", ["", ""]),
    ("10,20,60,40,60\n10,50,60,70,12,50\n", ["60", "12,50"]),
    ("10,20,60,20,60,40,10,40,###\n10,50,60,50,60,70,10,70,two\n", ["###", "two"]),
])  # fmt: skip
def test_text_of_4_and_8_numbers(folder: Path, lines: str, texts: list[str]) -> None:
    for sub in ("images", "gts"):
        (folder / "train" / sub).mkdir(parents=True)
    (folder / "a.png").rename(folder / "train" / "images" / "a.png")
    (folder / "train" / "gts" / "gt_a.txt").write_text("\ufeff" + lines, encoding="utf-8", newline="")
    (sample,) = load(folder, "train").samples
    assert list(sample.texts) == texts and sample.ignored.tolist() == [text == "###" for text in texts]
    assert sample.polygons[0].tolist() == POINTS


@pytest.mark.parametrize(
    "line", ["10,20,5,40,one", "10,20,60,22,60,4O,10,40,text", "10,20,60,40,61,41,12", "10;20;60;40"]
)
def test_a_damaged_line_is_not_taken_for_a_rectangle(folder: Path, line: str) -> None:
    (folder / "train" / "gts").mkdir(parents=True)
    (folder / "train" / "images").mkdir()
    (folder / "a.png").rename(folder / "train" / "images" / "a.png")
    (folder / "train" / "gts" / "gt_a.txt").write_text(line)
    with pytest.raises(DataError, match=r"gt_a.txt:1: .*8 numbers"):
        load(folder, "train")


@pytest.mark.parametrize(("encoding", "text"), [("gb18030", "总计"), ("cp949", "합계금액"), ("latin-1", "café")])
def test_an_encoding_is_named_and_not_guessed(folder: Path, encoding: str, text: str) -> None:
    (folder / "train" / "gts").mkdir(parents=True)
    (folder / "train" / "images").mkdir()
    (folder / "a.png").rename(folder / "train" / "images" / "a.png")
    (folder / "train" / "gts" / "gt_a.txt").write_bytes(f"10,20,60,20,60,40,10,40,{text}\n".encode(encoding))
    with pytest.raises(DataError, match=rf"gt_a.txt:1: is not UTF-8.*{text}.*iconv"):
        load(folder, "train")


def test_splits(folder: Path) -> None:
    data = FORMS["coco-text"]
    (folder / "street.json").write_text(json.dumps(data))
    assert splits(folder / "street.json") == []
    data = {**data, "imgs": {"1": {"file_name": "a.png", "set": "val"}, "2": {"file_name": "b.png", "set": "train"}}}
    (folder / "street.json").write_text(json.dumps(data))
    assert splits(folder / "street.json") == ["train", "val"] == splits(folder)
    (folder / "train.json").write_text(json.dumps(FORMS["ufo"]))
    assert splits(folder) == ["train"]
