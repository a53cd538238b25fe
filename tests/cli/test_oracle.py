"""`ocrlab evaluate --oracle`: its words, table, sentences and record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ocrlab.cli import upper_bound
from ocrlab.cli.parser import Answer, Parser
from ocrlab.errors import ConfigError


@pytest.fixture
def data(tmp_path: Path, root: Path) -> Path:
    """Return a folder with two pages: lines, two of which touch, one that is too small, and one that does not count."""
    import cv2
    import numpy as np

    for name in ("images", "gts"):
        (tmp_path / "val" / name).mkdir(parents=True)
    lines = [(20, 20 + 60 * i, 300 + 30 * i, 50 + 60 * i, "word") for i in range(5)]
    lines += [
        (20, 400, 120, 440, "one"),
        (60, 400, 160, 440, "two"),
        (500, 20, 530, 22, "dot"),
        (400, 400, 500, 440, "###"),
    ]
    for page in ("a", "b"):
        cv2.imwrite(str(tmp_path / "val" / "images" / f"{page}.png"), np.full((480, 640, 3), 255, np.uint8))
        text = "".join(f"{x},{y},{u},{y},{u},{v},{x},{v},{word}\n" for x, y, u, v, word in lines)
        (tmp_path / "val" / "gts" / f"gt_{page}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def answer(*words: str) -> Answer:
    parser = Parser("ocrlab evaluate", "scores", "")
    parser.add_argument("settings", nargs="*")
    upper_bound.arguments(parser)
    return upper_bound.run(parser.parse_args(words))


GRID = ("--long-side", "640", "--shrink", "0.5", "--unclip", "exact", "1.5")


def test_the_config_is_always_a_row_and_marked(data: Path) -> None:
    record = answer("evaluate.long_side=320", "targets.shrink_ratio=0.5", "post.unclip=2", "--oracle", str(data), *GRID)
    rows = [line.split() for line in record.text.splitlines() if line[:3] in ("320", "640")]
    assert len(rows) == 6 and [row[:3] for row in rows if "config" in row] == [["320", "0.5", "2.0"]]
    assert sum("best" in row for row in rows) == 1
    assert record.record["config"]["unclip"] == 2 and record.record["best"]["unclip"] == "exact"
    assert record.status == 0


def test_the_record_is_json_with_every_row_and_all_lost_boxes(data: Path) -> None:
    half = ("evaluate.long_side=640", "targets.shrink_ratio=0.5")
    record = json.loads(json.dumps(answer(*half, "--oracle", str(data), *GRID).record))
    about = {"schema": 1, "pages": 2, "boxes": 16, "split": "val", "shape": "quad", "skipped": 0}
    assert {key: record[key] for key in about} == about
    settings = [(row["long_side"], row["shrink_ratio"], row["unclip"]) for row in record["rows"]]
    assert settings == [(640, 0.5, "exact"), (640, 0.5, 1.5)]
    mine = record["config"]
    assert [box["page"] for box in mine["vanished"]] == ["a", "b"] and mine["vanished"][0]["index"] == 7
    assert [[box["index"] for box in group] for group in mine["merged"]] == [[5, 6], [5, 6]]
    assert mine["hmean@0.8"] == pytest.approx(2 * 10 / (16 + 12)) and record["warning"] is None


def test_a_wrong_config_is_warned_of_with_what_to_try(data: Path) -> None:
    settings = ("evaluate.long_side=640", "targets.shrink_ratio=0.4", "post.unclip=1.5")
    record = answer(*settings, "--oracle", str(data), *GRID)
    warning = record.record["warning"]
    assert warning.startswith("WARNING") and "hmean@0.7" in warning and "post.unclip=exact" in warning
    assert re.search(r"Unclip 1.5 costs, in hmean@0.7 against exact: 0\.[1-9]\d with shrink 0.4, ", record.text)


def test_lost_boxes_are_named_and_counted_from_1(data: Path) -> None:
    text = answer("evaluate.long_side=640", "--oracle", str(data), *GRID).text
    assert "2 boxes are too small to be drawn (targets.min_text_size): a box 8 (2 px); b box 8 (2 px)." in text
    assert "2 groups of boxes touch on the map and come back as one: a boxes 6 + 7; b boxes 6 + 7." in text
    assert "by short side on the page: < 8 px: 0 of 2" in text


def test_the_settings_of_a_file_are_judged(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("targets: {shrink_ratio: 0.6}\npost: {shape: polygon}\n", encoding="utf-8")
    record = answer("--oracle", str(data), "--config", str(tmp_path / "mine.yaml"), *GRID).record
    assert record["config"]["shrink_ratio"] == 0.6 and record["shape"] == "polygon"
    assert answer("--oracle", str(data), "--shape", "polygon", *GRID).record["shape"] == "polygon"


@pytest.mark.parametrize(
    "words", [("--unclip", "tight"), ("--shrink", "1.5"), ("--long-side", "9"), ("--shape", "oval")]
)
def test_wrong_words_are_refused(data: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        answer("--oracle", str(data), *words)
