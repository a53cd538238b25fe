"""LabelMe: shapes that are areas of text, the image that a page names, and folders of pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocrlab.data.annotations import PageError
from ocrlab.data.formats.json_pages import labelme
from ocrlab.data.formats.reader import load

POINTS = [[10, 20], [60.5, 20], [60.5, 40], [10, 40]]
SHAPE = {"label": "TOTAL", "points": POINTS, "group_id": None, "shape_type": "polygon", "flags": {}}


def page(*shapes: dict[str, Any], image: Any = "a.png") -> dict[str, Any]:
    return {"version": "5.0.1", "flags": {}, "shapes": list(shapes), "imagePath": image, "imageData": "AAAA"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, POINTS),
        ({"shape_type": "rectangle", "points": [[60, 40], [10, 20.5]]}, [[10, 20.5], [60, 20.5], [60, 40], [10, 40]]),
        ({"shape_type": "rectangle"}, POINTS),
        ({"shape_type": "rotation", "direction": 0.4}, POINTS),
        ({"shape_type": None}, POINTS),
        ({"shape_type": None, "points": [[10, 20], [60, 40]]}, [[10, 20], [60, 20], [60, 40], [10, 40]]),
        ({"points": [[n, n * n] for n in range(14)]}, [[n, n * n] for n in range(14)]),
    ],
)
def test_shapes(changes: dict[str, Any], expected: list[list[float]]) -> None:
    name, boxes = labelme(page({**SHAPE, **changes}))
    assert (name, boxes.texts, boxes.ignored) == ("a.png", ["TOTAL"], [False])
    np.testing.assert_array_equal(boxes.polygons[0], np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("changes", "text", "ignored"),
    [
        ({"label": "text", "description": "RM 5, 00"}, "RM 5, 00", False),
        ({"description": ""}, "TOTAL", False),
        ({"description": None, "flags": None}, "TOTAL", False),
        ({"label": "###"}, "###", True),
        ({"label": "###", "description": "blurred"}, "blurred", True),
        ({"flags": {"ignore": True}}, "TOTAL", True),
        ({"flags": {"ignore": False, "seen": True}}, "TOTAL", False),
        ({"difficult": True}, "TOTAL", True),
    ],
)
def test_texts_and_flags(changes: dict[str, Any], text: str, ignored: bool) -> None:
    _, boxes = labelme(page({**SHAPE, **changes}))
    assert (boxes.texts, boxes.ignored) == ([text], [ignored])


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({**SHAPE, "shape_type": "circle"}, "shapes.1.: a circle is no area of text.*polygon"),
        ({**SHAPE, "shape_type": "linestrip"}, "a linestrip is no area"),
        ({**SHAPE, "shape_type": "mask"}, "a mask is no area"),
        ({**SHAPE, "shape_type": "rectangle", "points": POINTS[:3]}, "a rectangle is no area"),
        ({**SHAPE, "points": [[1]]}, "shapes.1.: points.0. is not a point"),
        ({**SHAPE, "label": 4}, "label is not a string"),
        ([], "not an object"),
    ],
)
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
