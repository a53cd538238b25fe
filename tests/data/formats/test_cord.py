"""CORD: words with corners by name, regions that do not count, one file a page or one line a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocrlab.data.annotations import PageError
from ocrlab.data.formats.json_pages import cord
from ocrlab.data.formats.reader import load
from ocrlab.errors import DataError

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


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"gt_parse": {}}, "without valid_line.*what was read and not where"),
        ({"ground_truth": "{"}, "not JSON"),
        ({"ground_truth": "[]"}, "without valid_line. Given: a list of 0"),
        ({"valid_line": [{"category": "x"}]}, "valid_line.0. has no words"),
        ({"valid_line": [{"words": [{"text": "x"}]}]}, "valid_line.0., word 0: no quad"),
        ({"valid_line": [{"words": [{"quad": {**quad(), "y4": "4"}}]}]}, "word 0: no quad"),
        ({"valid_line": [{"words": [7]}]}, "word 0: no quad"),
    ],
)
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


def test_json_lines(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    rows = []
    for name in ("a", "b"):
        Image.new("RGB", (100, 90)).save(tmp_path / "train" / f"{name}.png")
        rows.append({"file_name": f"{name}.png", "ground_truth": json.dumps({"gt_parse": {}, **truth()})})
    (tmp_path / "train" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    index = load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["a", "b"] and index.problems == []
    assert len(index.samples[0].polygons) == 2


def test_parquet_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    for path in (tmp_path, tmp_path / "train-00000-of-00001.parquet"):
        with pytest.raises(DataError, match=r"Parquet.*pyarrow.*metadata\.jsonl"):
            load(path, "train")
