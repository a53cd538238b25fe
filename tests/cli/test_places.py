"""Where a command may write: checked before anything is computed, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.cli import main, output_paths
from ocrlab.errors import ConfigError


def test_what_is_there_is_not_overwritten_and_a_dead_link_is_there(tmp_path):
    (tmp_path / "mine").touch()
    (tmp_path / "dead").symlink_to("nowhere")
    for name in ("mine", "dead"):
        with pytest.raises(ConfigError, match="Nothing is overwritten"):
            output_paths.new_file(tmp_path / name, "--out")
    output_paths.new_file(tmp_path / "deep" / "new", "--out")
    assert not (tmp_path / "deep").exists(), "it only looks"


def test_a_folder_cannot_lead_through_a_file(tmp_path):
    (tmp_path / "file").touch()
    for wanted in (tmp_path / "file", tmp_path / "file" / "in" / "it"):
        with pytest.raises(ConfigError, match="leads through a file"):
            output_paths.folder(wanted, "--out")
        with pytest.raises(ConfigError, match="cannot be made"):
            output_paths.make(wanted, "--out")
    output_paths.folder(tmp_path / "new" / "deeper", "--out")


@pytest.mark.parametrize("words", [
    ["predict", "page.jpg", "--out", "file"],
    ["predict", "page.jpg", "--out", ""],
    ["predict", "page.jpg", "--jsonl", ""],
    ["export", "onnx", "--out", "file"],
    ["export", "onnx", "--out", "file/model.onnx"],
    ["samples", "show", "data", "--out", "file.png"],
    ["samples", "show", "data", "--out", "file/sheet.png"],
    ["samples", "make", "file"],
    ["samples", "make", "new", "--train", "0", "--val", "0"],
])  # fmt: skip
def test_a_place_that_cannot_be_written_is_wrong_use(words, calls, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("page.jpg", "file", "file.png"):
        Path(name).write_text("mine")
    assert main(words) == 2
    stderr = capsys.readouterr().err
    assert stderr.count("ocrlab: ") == 1 and "  at " not in stderr
    assert calls.load is None, "before anything is loaded"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("page.jpg", "file", "file.png"), "mine"
    )


def test_a_link_that_leads_nowhere_is_named_as_a_link(tmp_path):
    (tmp_path / "dead").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="leads through a link") as caught:
        output_paths.folder(tmp_path / "dead", "--out")
    assert "leads nowhere" in str(caught.value)
