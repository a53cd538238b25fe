"""Other people's detections, read back and scored by name."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from ocrlab.data.formats import reader
from ocrlab.errors import DataError
from ocrlab.evaluation import prediction_scores
from ocrlab.records import Detection, Prediction, to_json

BOX = "10,10,60,10,60,30,10,30"
QUAD = [[10.0, 10.0], [60.0, 10.0], [60.0, 30.0], [10.0, 30.0]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data folder whose split val has pages a and b, of one box each."""
    for name in ("images", "gts"):
        (tmp_path / "data" / "val" / name).mkdir(parents=True)
    for page in "ab":
        cv2.imwrite(str(tmp_path / "data" / "val" / "images" / f"{page}.png"), np.zeros((50, 100, 3), np.uint8))
        (tmp_path / "data" / "val" / "gts" / f"gt_{page}.txt").write_text(f"{BOX},total\n")
    return tmp_path / "data"


def files(folder: Path, texts: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def prediction_json(image: str, *, width: int = 100, height: int = 50) -> str:
    return json.dumps(to_json(Prediction(image, width, height, [Detection(QUAD, 0.9)])))


def hmean(data: Path, path: Path) -> float:
    return prediction_scores.score(reader.load(data, "val"), prediction_scores.read(path)).record()["hmean@0.5"]


@pytest.mark.parametrize("texts", [
    {"res_a.txt": BOX, "res_b.txt": f"{BOX}\n"},
    {"a.txt": f"{BOX},0.75\n", "gt_b.txt": f"\ufeff{BOX},1\r\n"},
    {"a.json": prediction_json("a.png"), "anything.json": prediction_json("b.png")},
])  # fmt: skip
def test_a_folder_of_text_or_json_is_scored_by_name(texts: dict[str, str], data: Path, tmp_path: Path) -> None:
    assert hmean(data, files(tmp_path / "found", texts)) == 1


def test_json_lines_and_a_single_json_are_scored(data: Path, tmp_path: Path) -> None:
    lines = tmp_path / "found.jsonl"
    lines.write_text(prediction_json("a.png") + "\n\n" + prediction_json("folder/b.jpg") + "\n", encoding="utf-8")
    assert hmean(data, lines) == 1
    (data / "val" / "images" / "b.png").unlink()
    (data / "val" / "gts" / "gt_b.txt").unlink()
    (tmp_path / "single.json").write_text(prediction_json("a.png"))
    assert hmean(data, tmp_path / "single.json") == 1


@pytest.mark.parametrize(("texts", "message"), [
    ({"a.txt": BOX, "b.txt": BOX, "img_c.txt": BOX}, "belong to no page.*img_c"),
    ({"a.txt": BOX}, "have no prediction.*Given: b"),
    ({"A.txt": BOX, "b.txt": BOX}, "belong to no page.*Given: A.*named like|nearest"),
    ({"a.txt": BOX, "b.json": prediction_json("b.png")}, "not a folder of predictions"),
    ({}, "not a folder of predictions"),
    ({"a.txt": "10,10,60", "b.txt": BOX}, r"a\.txt:1"),
    ({"a.txt": BOX, "res_a.txt": BOX, "b.txt": BOX}, "'a' is predicted twice"),
    ({"a.json": prediction_json("a.png"), "b.json": "[]"}, "b.json is not a JSON object"),
    ({"a.json": prediction_json("a.png"), "b.json": '{"image": "b.png"}'}, "b.json is not a prediction"),
    ({"a.json": prediction_json("a.png"), "b.json": '{"image": "b.png", "detections": [[1]]}'}, "without a polygon"),
    (
        {"a.json": prediction_json("a.png"), "b.json": prediction_json("b.png", width=200)},
        "another image.*Given: 200 x 50.*Needed: 100 x 50",
    ),
])  # fmt: skip
def test_what_does_not_fit_is_a_single_clear_error(texts, message, data, tmp_path):
    with pytest.raises(DataError, match=message):
        hmean(data, files(tmp_path / "found", texts))


def test_a_page_that_could_not_be_predicted_is_left_out(data: Path, tmp_path: Path) -> None:
    lines = tmp_path / "found.jsonl"
    failed = json.dumps({"schema": 1, "image": "b.png", "error": "is damaged"})
    lines.write_text(f"{prediction_json('a.png')}\n{failed}\n", encoding="utf-8")
    scored = prediction_scores.score(reader.load(data, "val"), prediction_scores.read(lines))
    assert (list(scored.pages), scored.skipped, scored.record()["hmean@0.5"]) == (["a"], 1, 1)
    lines.write_text("\n".join([failed, failed.replace("b.png", "a.png")]))
    with pytest.raises(DataError, match="No page was predicted"):
        prediction_scores.score(reader.load(data, "val"), prediction_scores.read(lines))
