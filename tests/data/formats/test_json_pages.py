"""JSON annotations: UFO and ocrlab's page as JSON lines, and the errors of broken ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocrlab.data.annotations import Boxes, Page, PageError
from ocrlab.data.folder_layouts import Source
from ocrlab.data.formats import recognition
from ocrlab.data.formats.json_pages import cord, labelme
from ocrlab.data.formats.reader import load
from ocrlab.errors import DataError

POINTS = [[10, 20], [60.5, 20], [60.5, 40], [10, 40]]
BOX = {"points": POINTS}


def readers(folder: Path, name: str, content: Any) -> list[Callable[[], Page]]:
    """Write an annotation file, with images a.png and b.png beside it; return the readers of its pages."""
    for image in ("a.png", "b.png"):
        (folder / image).touch()
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
    (folder / name).write_text(text, encoding="utf-8")
    pages, errors, _ = recognition.pages(Source(folder / name, (folder,), root=folder), "train")
    assert not errors
    return pages


def ufo(folder: Path, words: Any) -> Boxes:
    (read,) = readers(folder, "ufo.json", {"images": {"a.png": {"words": words}}})
    return read().boxes


def line(folder: Path, page: Any) -> Boxes:
    (read,) = readers(folder, "val.jsonl", page if isinstance(page, str) else json.dumps(page))
    return read().boxes


@pytest.mark.parametrize(("word", "text", "ignored"), [
    ({}, "", False),
    ({"transcription": None, "illegibility": None}, "", False),
    ({"transcription": "", "illegibility": True}, "", True),
    ({"transcription": "a", "illegibility": 0, "language": ["ko"]}, "a", False),
    ({"transcription": "###"}, "###", True),
])  # fmt: skip
def test_ufo_words(tmp_path: Path, word: dict[str, Any], text: str, ignored: bool) -> None:
    boxes = ufo(tmp_path, {"w": {"points": POINTS, **word}})
    assert (boxes.texts, boxes.ignored) == ([text], [ignored])
    assert boxes.polygons[0] is not None and boxes.polygons[0].dtype == np.float32
    np.testing.assert_array_equal(boxes.polygons[0], POINTS)


@pytest.mark.parametrize(("word", "says"), [
    ([], "no points. Given: a list of 0"),
    ({"points": "1,2"}, "points is not a list"),
    ({"points": [[1, 2], [3]]}, "points.1. is not a point. Given: .3."),
    ({"points": [["1", 2]]}, "points.0. is not a point"),
    ({"points": [[True, 2]]}, "points.0. is not a point"),
    ({"points": [[float("nan"), 2]]}, "points.0. is not a point"),
    ({"points": [[1e300, 2]]}, "points.0. is not a point"),
    ({"points": POINTS, "transcription": 5}, "transcription is not a string. Given: 5"),
    ({"points": POINTS, "illegibility": "false"}, "illegibility is not a flag"),
])  # fmt: skip
def test_a_bad_word_is_named_with_its_line(tmp_path: Path, word: Any, says: str) -> None:
    content = {"images": {"b.png": {"words": {"w": BOX}}, "a.png": {"words": {"v": BOX, "w": word}}}}
    good, bad = readers(tmp_path, "ufo.json", content)
    assert good().name == "b"
    with pytest.raises(PageError, match=rf"ufo.json:\d+: page 'a.png': word 'w': {says}") as caught:
        bad()
    lines = (tmp_path / "ufo.json").read_text().splitlines()
    assert caught.value.line == len(lines) - lines[::-1].index(next(x for x in lines[::-1] if '"w"' in x))


def test_missing_images_are_named_with_their_lines_in_any_order(tmp_path: Path) -> None:
    content = {"images": {f"{name}.png": {"words": {}} for name in "xyz"}}
    pages = readers(tmp_path, "ufo.json", content)
    for at in (0, 2, 1, 1, 0):
        with pytest.raises(PageError, match=f"'{'xyz'[at]}.png' does not exist") as caught:
            pages[at]()
        assert caught.value.line == 3 + 3 * at


@pytest.mark.parametrize(("content", "says"), [
    ("", "not JSON. Given: nothing at all"),
    ('{"images": {\n "a.png": }\n}', "ufo.json:2: not JSON. Given: Expecting value"),
    ('{"images": {\n"a.png": {}}}\n"more"', "ufo.json:3: not JSON. Given: Extra data"),
    pytest.param("[" * 99999, "not JSON", id="deep"),
    ('{"images": {"a.png": {"words": {}}, "a.png": {"words": {}}}}', "the key 'a.png' occurs twice"),
])  # fmt: skip
def test_what_is_no_ufo(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(PageError, match=says):
        readers(tmp_path, "ufo.json", content)


@pytest.mark.parametrize("page", [
    {"boxes": [BOX]},
    {"boxes": [{**BOX, "text": None, "ignore": False}]},
    {"boxes": [{"polygon": POINTS, "transcription": "", "ignored": False}]},
    {"polygons": [POINTS]},
    {"schema": 1, "width": 90, "height": 70, "detections": [{"polygon": POINTS, "score": 0.97}]},
])  # fmt: skip
def test_lines(tmp_path: Path, page: dict[str, Any]) -> None:
    boxes = line(tmp_path, {"image": "a.png", **page})
    assert (boxes.texts, boxes.ignored) == ([""], [False])
    np.testing.assert_array_equal(np.array(boxes.polygons), [POINTS])


@pytest.mark.parametrize(("page", "says"), [
    ("{nonsense}", "not JSON"),
    ("7", "a format that is not known. Given: 7. Needed: .*ocrlab's page.*LabelMe.*CORD"),
    ({"image": "a.png"}, "a format that is not known. Given: an object with 'image'"),
    ({"boxes": []}, "not a page"),
    ({"image": "a.png", "boxes": [], "polygons": []}, "not a page"),
    ({"image": "a.png", "boxes": [], "shapes": []}, "could be ocrlab's page or LabelMe"),
    ({"image": "a.png", "boxes": [BOX, {"text": "a"}]}, r"boxes\[1\]: no points. Given: an object with 'text'"),
    ({"image": "a.png", "detections": [{"polygon": 5}]}, r"detections\[0\]: polygon is not a list"),
    ({"image": "a.png", "detections": [], "schema": 2}, "newer ocrlab. Given: schema 2"),
    ({"image": "c.png", "boxes": []}, "image 'c.png' does not exist"),
    ({"image": "../a.png", "boxes": []}, "leaves the data folder"),
    ({"image": None, "boxes": []}, "name of an image is not usable"),
])  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, page: Any, says: str) -> None:
    text = page if isinstance(page, str) else json.dumps(page)
    good, bad = readers(tmp_path, "val.jsonl", f'{{"image": "b.png", "boxes": []}}\r\n\r\n{text}\r\n')
    assert (good().name, good().line) == ("b", 1)
    with pytest.raises(PageError, match=f"val.jsonl:3: .*{says}"):
        bad()


SHAPE_POINTS = [[10, 20], [60.5, 20], [60.5, 40], [10, 40]]
SHAPE = {"label": "TOTAL", "points": SHAPE_POINTS, "group_id": None, "shape_type": "polygon", "flags": {}}


def page(*shapes: dict[str, Any], image: Any = "a.png") -> dict[str, Any]:
    return {"version": "5.0.1", "flags": {}, "shapes": list(shapes), "imagePath": image, "imageData": "AAAA"}


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, SHAPE_POINTS),
    ({"shape_type": "rectangle", "points": [[60, 40], [10, 20.5]]}, [[10, 20.5], [60, 20.5], [60, 40], [10, 40]]),
    ({"shape_type": "rectangle"}, SHAPE_POINTS),
    ({"shape_type": "rotation", "direction": 0.4}, SHAPE_POINTS),
    ({"shape_type": None}, SHAPE_POINTS),
    ({"shape_type": None, "points": [[10, 20], [60, 40]]}, [[10, 20], [60, 20], [60, 40], [10, 40]]),
    ({"points": [[n, n * n] for n in range(14)]}, [[n, n * n] for n in range(14)]),
])  # fmt: skip
def test_shapes(changes: dict[str, Any], expected: list[list[float]]) -> None:
    name, boxes = labelme(page({**SHAPE, **changes}))
    assert (name, boxes.texts, boxes.ignored) == ("a.png", ["TOTAL"], [False])
    np.testing.assert_array_equal(boxes.polygons[0], np.array(expected, np.float32))


@pytest.mark.parametrize(("changes", "text", "ignored"), [
    ({"label": "text", "description": "RM 5, 00"}, "RM 5, 00", False),
    ({"description": ""}, "TOTAL", False),
    ({"description": None, "flags": None}, "TOTAL", False),
    ({"label": "###"}, "###", True),
    ({"label": "###", "description": "blurred"}, "blurred", True),
    ({"flags": {"ignore": True}}, "TOTAL", True),
    ({"difficult": True}, "TOTAL", True),
])  # fmt: skip
def test_texts_and_flags(changes: dict[str, Any], text: str, ignored: bool) -> None:
    _, boxes = labelme(page({**SHAPE, **changes}))
    assert (boxes.texts, boxes.ignored) == ([text], [ignored])


@pytest.mark.parametrize(("shape", "says"), [
    ({**SHAPE, "shape_type": "circle"}, "shapes.1.: a circle does not enclose text.*polygon"),
    ({**SHAPE, "shape_type": "rectangle", "points": SHAPE_POINTS[:3]}, "a rectangle does not enclose"),
    ({**SHAPE, "points": [[1]]}, "shapes.1.: points.0. is not a point"),
    ({**SHAPE, "label": 4}, "label is not a string"),
    ([], "not an object"),
])  # fmt: skip
def test_what_is_no_area_is_named(shape: Any, says: str) -> None:
    with pytest.raises(PageError, match=says):
        labelme(page(SHAPE, shape))


def test_a_folder_of_pages_beside_their_images(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        Image.new("L", (100, 90)).save(tmp_path / f"{name}.png")
    (tmp_path / "a.json").write_text(json.dumps(page(SHAPE)))
    (tmp_path / "b.json").write_text(json.dumps(page(image="renamed_since.png")))
    index = load(tmp_path, "train")
    assert [(sample.name, len(sample.polygons)) for sample in index.samples] == [("a", 1), ("b", 0)]
    (problem,) = index.problems
    assert "c.png: has no annotation" in str(problem) and "no text" in str(problem) and "forgotten" in str(problem)


def test_images_and_pages_in_two_folders(tmp_path: Path) -> None:
    for folder in ("train/images", "train/labels"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("a", "b"):
        Image.new("L", (100, 90)).save(tmp_path / "train" / "images" / f"{name}.png")
    labels = tmp_path / "train" / "labels"
    (labels / "a.json").write_text(json.dumps(page(SHAPE, image="..\\images\\a.png")))
    (labels / "other.json").write_text(json.dumps(page(SHAPE, SHAPE, image="../images/b.png")))
    index = load(tmp_path, "train")
    assert {sample.name: len(sample.polygons) for sample in index.samples} == {"a": 1, "b": 2}
    assert index.problems == []


@pytest.mark.parametrize("image", ["../../secret.png", "/etc/passwd", "..\\..\\secret.png", "C:\\a.png"])
def test_no_page_leads_out_of_the_folder(tmp_path: Path, image: str) -> None:
    data = tmp_path / "data" / "train"
    data.mkdir(parents=True)
    Image.new("L", (100, 90)).save(tmp_path / "secret.png")
    for name in ("a", "b"):
        Image.new("L", (100, 90)).save(data / f"{name}.png")
    (data / "a.json").write_text(json.dumps(page(SHAPE, image=image)))
    (data / "b.json").write_text(json.dumps(page(SHAPE, image="b.png")))
    index = load(tmp_path / "data", "train")
    assert [sample.name for sample in index.samples] == ["b"]
    (problem,) = index.problems
    assert "a.json" in str(problem) and "leaves the data folder" in str(problem)


CORNERS = [[10, 20], [60, 21], [60, 41], [10, 40]]


def quad(shift: int = 0) -> dict[str, int]:
    return {f"{axis}{n + 1}": xy[k] + shift for n, xy in enumerate(CORNERS) for k, axis in enumerate("xy")}


def truth(**changes: Any) -> dict[str, Any]:
    words = [{"quad": quad(), "is_key": 0, "row_id": 1, "text": "2"}, {"quad": quad(9), "text": "KOPI, SUSU"}]
    line = {"words": words, "category": "menu.nm", "group_id": 3, "sub_group_id": 0}
    meta = {"version": "2.0.0", "split": "train", "image_id": 0, "image_size": {"width": 100, "height": 90}}
    return {"valid_line": [line], "meta": meta, "roi": {}, "repeating_symbol": [], "dontcare": [], **changes}


@pytest.mark.parametrize("wrap", ["none", "object", "string"])
def test_words(wrap: str) -> None:
    data: dict[str, Any] = truth(gt_parse={"menu": []})
    if wrap != "none":
        data = {"file_name": "a.png", "ground_truth": data if wrap == "object" else json.dumps(data)}
    name, boxes = cord(data)
    assert name == (None if wrap == "none" else "a.png")
    assert (boxes.texts, boxes.ignored) == (["2", "KOPI, SUSU"], [False, False])
    np.testing.assert_array_equal(boxes.polygons[0], np.array(CORNERS, np.float32))


def test_what_does_not_count() -> None:
    rows = {"repeating_symbol": [[{"quad": quad(1), "text": "-----"}]], "dontcare": [[quad(2), quad(3)]]}
    _, boxes = cord(truth(**rows))
    assert boxes.ignored == [False, False, True, True, True]
    np.testing.assert_array_equal(boxes.polygons[4], np.array(CORNERS, np.float32) + 3)
    assert boxes.texts[2] == "-----"


@pytest.mark.parametrize(("data", "says"), [
    ({"gt_parse": {}}, "without valid_line.*what was read and not where"),
    ({"ground_truth": "{"}, "not JSON"),
    ({"ground_truth": "[]"}, "without valid_line. Given: a list of 0"),
    ({"valid_line": [{"category": "x"}]}, "valid_line.0. has no words"),
    ({"valid_line": [{"words": [{"text": "x"}]}]}, "valid_line.0., word 0: no quad"),
    ({"valid_line": [{"words": [{"quad": {**quad(), "y4": "4"}}]}]}, "word 0: no quad"),
    ({"valid_line": [{"words": [7]}]}, "word 0: no quad"),
])  # fmt: skip
def test_a_bad_page_is_named(data: dict[str, Any], says: str) -> None:
    with pytest.raises(PageError, match=says):
        cord(data)


def test_the_published_folders(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        for sub in ("image", "json"):
            (tmp_path / "CORD" / split / sub).mkdir(parents=True)
        for name in ("receipt_00000", "receipt_00001"):
            Image.new("RGB", (100, 90)).save(tmp_path / "CORD" / split / "image" / f"{name}.png")
            (tmp_path / "CORD" / split / "json" / f"{name}.json").write_text(json.dumps(truth()))
    for split in ("train", "dev"):
        index = load(tmp_path / "CORD", split)
        assert [sample.name for sample in index.samples] == ["receipt_00000", "receipt_00001"]
        assert index.problems == [] and index.samples[0].texts == ("2", "KOPI, SUSU")
    with pytest.raises(DataError, match="no split 'val'.*splits dev, train"):
        load(tmp_path / "CORD", "val")
