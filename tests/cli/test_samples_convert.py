"""`ocrlab samples convert`: what it prints, and that it tells what was lost."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from ocrlab.cli import main


@pytest.fixture
def source(tmp_path):
    """One page in UFO, with a box that does not count."""
    folder = tmp_path / "source"
    folder.mkdir()
    Image.new("L", (100, 90)).save(folder / "a.png")
    points = [[10, 20], [60, 20], [60, 40], [10, 40]]
    words = {"1": {"points": points, "transcription": "one"}, "2": {"points": points, "transcription": "faint"}}
    words["2"]["illegibility"] = True
    (folder / "train.json").write_text(json.dumps({"images": {"a.png": {"words": words}}}))
    return folder


def test_lossless(source, tmp_path, capsys):
    assert main(["samples", "convert", str(source), "--to", "coco", str(tmp_path / "new"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["pages"], record["boxes"], record["lost"], record["problems"]) == ({"train": 1}, 2, {}, [])
    assert (tmp_path / "new" / "images" / "train" / "a.png").is_file()
    assert main(["samples", "convert", str(source), str(tmp_path / "next"), "--to", "jsonl", "--images", "none"]) == 0
    assert "lost: nothing" in capsys.readouterr().out


def test_what_is_lost_is_reported(source, tmp_path, capsys):
    words = ["samples", "convert", str(source), str(tmp_path / "new"), "--to", "icdar", "--split", "train"]
    assert main(words) == 0
    assert "lost: 1 transcriptions of boxes that do not count, now ###" in capsys.readouterr().out
    assert main(words) == 1
    assert "already exists" in capsys.readouterr().err
