"""`ocrlab predict`: paths and settings apart, lines of JSON, pages left out, the answer."""

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from ocrlab.cli import main

LINE = {
    "schema": 1, "image": "a.jpg", "width": 8, "height": 9,
    "detections": [{"polygon": [[0, 0], [4, 0], [4, 4]], "score": 0.5}],
}  # fmt: skip


@pytest.fixture
def pages(tmp_path, monkeypatch) -> Path:
    """A working folder with two pages, one of them bad."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "b.bad", "x=1.jpg"):
        Path(name).touch()
    return tmp_path


def test_predictions_are_the_answer(pages, calls, capsys):
    assert main(["predict", "a.jpg", "b.bad", "--out", "here", "--json"]) == 1
    output = capsys.readouterr()
    record = json.loads(output.out)
    assert (record["schema"], record["pages"], record["regions"], record["out"]) == (1, 1, 1, "here")
    assert record["left_out"] == ["b.bad: is not an image"] and "b.bad: is not an image" in output.err
    assert record["predictions"] == [LINE]
    assert record["detector"] == "as asked" and "detector: as asked" in output.err
    assert calls.load.checkpoint is None, "the newest successful run's is looked for"
    assert calls.files.formats == ["json", "icdar", "overlay"]


def test_later_pages_of_a_file_are_left_out_and_reported(pages, calls, capsys):
    sheets = [Image.new("L", (8, 8), grey) for grey in (0, 255)]
    sheets[0].save("two.tif", save_all=True, append_images=sheets[1:])
    assert main(["predict", "a.jpg", "two.tif", "--out", "here"]) == 1
    output = capsys.readouterr()
    assert "two.tif: all but the first of its 2 pages" in output.err and "1 left out" in output.out


def test_words_in_any_order(pages, calls):
    words = "post.threshold=0.4 a.jpg --out here x=1.jpg --checkpoint receipts --format json icdar --device cuda"
    assert main(["predict", *words.split()]) == 0
    assert calls.load.device == "cuda"
    assert calls.files.paths == [Path("a.jpg"), Path("x=1.jpg")], "a file that is there is no setting"
    assert calls.files.formats == ["json", "icdar"]
    assert calls.files.detector.config.post.threshold == 0.4
    assert calls.load.checkpoint == Path("receipts")


def test_lines_go_to_stdout_and_nothing_else_does(pages, calls, capfd):
    assert main(["predict", "a.jpg", "b.bad", "--jsonl", "-"]) == 1
    output = capfd.readouterr()
    assert [json.loads(line) for line in output.out.splitlines()] == [LINE, {"image": "b.bad"}]
    assert "1 page, 1 text region; 1 left out" in output.err
    assert calls.files.out is None


def test_a_line_is_written_when_its_page_is_done(pages, calls, monkeypatch):
    """Whatever ends the run, the lines before are whole."""
    counts = []

    def predict_files(_detector, files, _out, _formats):
        for path in files:
            counts.append(Path("lines.jsonl").read_text())
            yield SimpleNamespace(page=None, record=lambda path=path: {"image": path.name, "long": "é" * 100_000})
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["ocrlab.inference.prediction_files"], "predict_files", predict_files)
    assert main(["predict", "a.jpg", "x=1.jpg", "--jsonl", "lines.jsonl"]) == 130
    lines = Path("lines.jsonl").read_text().splitlines()
    assert [json.loads(line)["image"] for line in lines] == ["a.jpg", "x=1.jpg"]
    assert [text.count("\n") for text in counts] == [0, 1]


def test_a_name_that_is_no_text_is_still_json(pages, calls, monkeypatch, capfd):
    name = os.fsdecode(b"\xff \xe2\x82\xac.jpg")
    Path(name).touch()
    assert main(["predict", name, "--jsonl", "-"]) == 0
    assert json.loads(capfd.readouterr().out)["image"] == name


def test_a_list_on_stdin(pages, calls, monkeypatch, capsys):
    Path("a b\u2028.jpg").touch()
    lines = "a.jpg\na b\u2028.jpg\n\nnot-there.bad\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["predict", "-", "--format", "json"]) == 1
    assert [path.name for path in calls.files.paths] == ["a.jpg", "a b\u2028.jpg", "not-there.bad"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["predict", "-"]) == 1
    assert "empty list" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [
    (["--out", "here"], "at least one image"),
    (["a.jpg", "--format", "xml"], "xml"),
    (["a.jpg", "data=x"], "no effect"),
    (["a.jpg", "encoder=resnet18"], "no effect"),
    (["a.jpg", "--device", "tpu"], "tpu"),
    (["a.jpg", "--jsonl", "-", "--json"], "both want stdout"),
    (["a.jpg", "--jsonl", "b.bad"], "Nothing is overwritten"),
    (["a.jpg", "--jsonl", "nowhere/lines.jsonl"], "nowhere/lines.jsonl"),
    (["https://example.org/a.jpg"], "Given: https://example.org/a.jpg."),
])  # fmt: skip
def test_wrong_use(pages, words, message, calls, capsys):
    assert main(["predict", *words]) == 2
    output = capsys.readouterr()
    assert message in output.err + output.out
    assert calls.load is None


def test_behind_dashes_there_are_only_files(pages, calls):
    for name in ("-rf.jpg", "post.threshold=0.4"):
        Path(name).touch()
    assert main(["predict", "--out", "here", "--", "-rf.jpg", "post.threshold=0.4"]) == 0
    assert calls.files.paths == [Path("-rf.jpg"), Path("post.threshold=0.4")]
