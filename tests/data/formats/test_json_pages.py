"""JSON annotations: UFO and ocrlab's page as JSON lines, and what is said about a broken one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocrlab.data.annotations import Boxes, Page, PageError
from ocrlab.data.folder_layouts import Source
from ocrlab.data.formats import sniff

POINTS = [[10, 20], [60.5, 20], [60.5, 40], [10, 40]]
BOX = {"points": POINTS}


def readers(folder: Path, name: str, content: Any) -> list[Callable[[], Page]]:
    """Write an annotation file, with images a.png and b.png beside it; return the readers of its pages."""
    for image in ("a.png", "b.png"):
        (folder / image).touch()
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
    (folder / name).write_text(text, encoding="utf-8")
    pages, errors, _ = sniff.pages(Source(folder / name, (folder,), root=folder), "train")
    assert not errors
    return pages


def ufo(folder: Path, words: Any) -> Boxes:
    (read,) = readers(folder, "ufo.json", {"images": {"a.png": {"words": words}}})
    return read().boxes


def line(folder: Path, page: Any) -> Boxes:
    (read,) = readers(folder, "val.jsonl", page if isinstance(page, str) else json.dumps(page))
    return read().boxes


@pytest.mark.parametrize(
    ("word", "text", "ignored"),
    [
        ({}, "", False),
        ({"transcription": None, "illegibility": None}, "", False),
        ({"transcription": "", "illegibility": False}, "", False),
        ({"transcription": "", "illegibility": True}, "", True),
        ({"transcription": "a", "illegibility": 0, "language": ["ko"]}, "a", False),
        ({"transcription": "###"}, "###", True),
    ],
)
def test_ufo_words(tmp_path: Path, word: dict[str, Any], text: str, ignored: bool) -> None:
    boxes = ufo(tmp_path, {"w": {"points": POINTS, **word}})
    assert (boxes.texts, boxes.ignored) == ([text], [ignored])
    assert boxes.polygons[0] is not None and boxes.polygons[0].dtype == np.float32
    np.testing.assert_array_equal(boxes.polygons[0], POINTS)


def test_how_many_points_are_enough_is_judged_later(tmp_path: Path) -> None:
    boxes = ufo(tmp_path, {"1": {"points": None}, "2": {"points": []}, "3": {"points": [[1, 2]]}, "4": BOX})
    assert [None if p is None else p.shape for p in boxes.polygons] == [None, (0, 2), (1, 2), (4, 2)]
    assert ufo(tmp_path, {}).polygons == []


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ([], "no points. Given: a list of 0"),
        ({"point": POINTS}, "no points. Given: an object with 'point'"),
        ({"points": "1,2"}, "points is not a list"),
        ({"points": [[1, 2], [3]]}, "points.1. is not a point. Given: .3."),
        ({"points": [[1, 2], [3, 4, 5]]}, "points.1. is not a point"),
        ({"points": [1, 2, 3, 4]}, "points.0. is not a point. Given: 1"),
        ({"points": [["1", 2]]}, "points.0. is not a point"),
        ({"points": [[True, 2]]}, "points.0. is not a point"),
        ({"points": [[None, 2]]}, "points.0. is not a point"),
        ({"points": [[float("nan"), 2]]}, "points.0. is not a point"),
        ({"points": [[1e300, 2]]}, "points.0. is not a point"),
        ({"points": POINTS, "transcription": 5}, "transcription is not a string. Given: 5"),
        ({"points": POINTS, "illegibility": "false"}, "illegibility is not a flag"),
    ],
)
def test_a_bad_word_is_named_with_its_line(tmp_path: Path, word: Any, says: str) -> None:
    content = {"images": {"b.png": {"words": {"w": BOX}}, "a.png": {"words": {"v": BOX, "w": word}}}}
    good, bad = readers(tmp_path, "ufo.json", content)
    assert good().name == "b"
    with pytest.raises(PageError, match=rf"ufo.json:\d+: page 'a.png': word 'w': {says}") as caught:
        bad()
    lines = (tmp_path / "ufo.json").read_text().splitlines()
    assert caught.value.line == len(lines) - lines[::-1].index(next(x for x in lines[::-1] if '"w"' in x))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON. Given: nothing at all"),
        ('{"images": {\n "a.png": }\n}', "ufo.json:2: not JSON. Given: Expecting value"),
        ('{"images": {\n"a.png": {}}}\n"more"', "ufo.json:3: not JSON. Given: Extra data"),
        pytest.param("[" * 99999, "not JSON", id="deep"),
        ('{"images": {"a.png": {"words": {}}, "a.png": {"words": {}}}}', "the key 'a.png' is twice"),
    ],
)
def test_what_is_no_ufo(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(PageError, match=says):
        readers(tmp_path, "ufo.json", content)


@pytest.mark.parametrize("content", [None, [], {"word": {}}, {"words": []}, {"words": None}])
def test_a_page_without_words(tmp_path: Path, content: Any) -> None:
    (read,) = readers(tmp_path, "ufo.json", {"images": {"a.png": content}})
    with pytest.raises(PageError, match="ufo.json:3: page 'a.png': no words"):
        read()


@pytest.mark.parametrize(
    "page",
    [
        {"boxes": [BOX]},
        {"boxes": [{**BOX, "text": None, "ignore": False}]},
        {"boxes": [{"polygon": POINTS, "transcription": "", "ignored": False}]},
        {"polygons": [POINTS]},
        {"schema": 1, "width": 90, "height": 70, "detections": [{"polygon": POINTS, "score": 0.97}]},
    ],
)
def test_lines(tmp_path: Path, page: dict[str, Any]) -> None:
    boxes = line(tmp_path, {"image": "a.png", **page})
    assert (boxes.texts, boxes.ignored) == ([""], [False])
    np.testing.assert_array_equal(np.array(boxes.polygons), [POINTS])


def test_line_with_texts(tmp_path: Path) -> None:
    boxes = line(tmp_path, {"image": "a.png", "boxes": [{**BOX, "text": "a"}, {**BOX, "text": "b", "ignore": True}]})
    assert (boxes.texts, boxes.ignored) == (["a", "b"], [False, True])
    assert line(tmp_path, {"image": "a.png", "boxes": []}).polygons == []


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("{nonsense}", "not JSON"),
        ("7", "a format that is not known. Given: 7. Needed: .*ocrlab's page.*LabelMe.*CORD"),
        ({"image": "a.png"}, "a format that is not known. Given: an object with 'image'"),
        ({"boxes": []}, "not a page"),
        ({"image": "a.png", "boxes": [], "polygons": []}, "not a page"),
        ({"image": "a.png", "boxes": {}}, "not a page"),
        ({"image": "a.png", "boxes": [], "shapes": []}, "could be ocrlab's page or LabelMe"),
        ({"image": "a.png", "boxes": [BOX, {"text": "a"}]}, r"boxes\[1\]: no points. Given: an object with 'text'"),
        ({"image": "a.png", "polygons": [[[1, "x"]]]}, r"polygons\[0\]: points\[0\] is not a point"),
        ({"image": "a.png", "detections": [{"polygon": 5}]}, r"detections\[0\]: polygon is not a list"),
        ({"image": "a.png", "detections": [], "schema": 2}, "newer ocrlab. Given: schema 2"),
        ({"image": "c.png", "boxes": []}, "image 'c.png' does not exist"),
        ({"image": "../a.png", "boxes": []}, "leaves the data folder"),
        ({"image": None, "boxes": []}, "name of an image is not usable"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, page: Any, says: str) -> None:
    text = page if isinstance(page, str) else json.dumps(page)
    good, bad = readers(tmp_path, "val.jsonl", f'{{"image": "b.png", "boxes": []}}\r\n\r\n{text}\r\n')
    assert (good().name, good().line) == ("b", 1)
    with pytest.raises(PageError, match=f"val.jsonl:3: .*{says}"):
        bad()


def test_real_ufo(shared: Path) -> None:
    folder = shared / "data" / "ufo_sample"
    readers, _, _ = sniff.pages(Source(folder / "ufo.json", (folder,), root=folder), "train")
    pages = [read() for read in readers]
    assert sum(len(page.boxes.polygons) for page in pages) == 146
    assert not any(any(page.boxes.ignored) for page in pages)
    assert [page.name for page in pages] == sorted(path.stem for path in folder.glob("*.png"))
