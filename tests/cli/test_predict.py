"""`ocrlab predict`: paths and settings apart, pages left out, the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ocrlab.cli import main


@pytest.fixture
def pages(tmp_path, monkeypatch) -> Path:
    """A working folder with two pages, one of them bad."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "b.bad", "x=1.jpg"):
        Path(name).touch()
    return tmp_path


def test_predictions_are_the_answer(pages, calls, capsys):
    assert main(["predict", "a.jpg", "b.bad", "--out", "found", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["schema"], found["pages"], found["out"]) == (1, 1, "found")
    assert found["left_out"] == ["b.bad is no image"] and "b.bad is no image" in said.err
    assert found["predictions"][0] == {
        "schema": 1, "image": "a.jpg", "width": 8, "height": 9,
        "detections": [{"polygon": [[0, 0], [4, 0], [4, 4]], "score": 0.5}],
    }  # fmt: skip
    assert calls.load.checkpoint is None, "the newest successful run's is looked for"
    assert calls.files.formats == ["json", "icdar", "overlay"]


def test_words_in_any_order(pages, calls):
    words = [
        "post.threshold=0.4",
        "a.jpg",
        "--out",
        "found",
        "x=1.jpg",
        "--checkpoint",
        "c",
        "--format",
        "json",
        "icdar",
    ]
    assert main(["predict", *words]) == 0
    assert calls.files.paths == [Path("a.jpg"), Path("x=1.jpg")], "a file that is there is no setting"
    assert calls.files.formats == ["json", "icdar"]
    assert calls.files.detector.config.post.threshold == 0.4
    assert calls.load.checkpoint == Path("c")


def test_no_page_left_is_a_failure(pages, calls, capsys):
    assert main(["predict", "b.bad", "--out", "found"]) == 1
    assert "1 left out" in capsys.readouterr().out
    assert main(["predict", "none.jpg", "--out", "found"]) == 1
    assert "none.jpg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--out", "found"], "no image"),
        (["a.jpg"], "--out"),
        (["a.jpg", "--out", "found", "--format", "xml"], "xml"),
        (["a.jpg", "--out", "found", "data=x"], "no effect"),
        (["a.jpg", "--out", "found", "encoder=resnet18"], "no effect"),
    ],
)
def test_wrong_use(pages, words, told, calls, capsys):
    assert main(["predict", *words]) == 2
    assert told in capsys.readouterr().err
    assert calls.load is None
