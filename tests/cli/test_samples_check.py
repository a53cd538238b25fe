"""`ocrlab samples check`."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from ocrlab.cli import main


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data folder with one page, whose second box runs backwards."""
    folder = tmp_path / "data"
    for below in ("images", "gts"):
        (folder / "val" / below).mkdir(parents=True)
    image = np.full((200, 300, 3), 240, np.uint8)
    for y in (60, 120):
        cv2.putText(image, "TOTAL 12.50", (40, y), cv2.FONT_HERSHEY_SIMPLEX, 0.7, (20, 20, 20), 2)
    cv2.imwrite(str(folder / "val" / "images" / "p.png"), image)
    lines = "37,42,186,42,186,64,37,64,TOTAL 12.50\n37,124,186,124,186,102,37,102,TOTAL 12.50\n"
    (folder / "val" / "gts" / "gt_p.txt").write_text(lines)
    return folder


def test_it_says_what_is_wrong_and_shows_it(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sheets"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    assert main(["samples", "check", str(data), "--out", str(out), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["counts"] == {"reversed": {"error": 1, "warn": 0, "note": 0}}
    assert record["findings"][0]["box"] == 2
    assert record["pictures"] == [str(out / "sheet-001.png")]
    assert cv2.imread(str(out / "sheet-001.png")) is not None
    assert (out / "mine.txt").read_text() == "kept"
    before = (out / "sheet-001.png").read_bytes()
    assert main(["samples", "check", str(data), "--out", str(out)]) == 2
    assert (out / "sheet-001.png").read_bytes() == before


def test_without_out_a_new_folder_is_created(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("check-data", "check-data-2"):
        assert main(["samples", "check", str(data)]) == 1
        assert (tmp_path / "reports" / folder / "sheet-001.png").is_file()


def test_a_cleaned_copy_is_clean(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, clean = str(tmp_path / "sheets"), str(tmp_path / "clean")
    assert main(["samples", "check", str(data), "--split", "val", "--out", out, "--clean", clean]) == 1
    text = capsys.readouterr().out
    assert "reversed" in text
    assert "p:2" in text
    assert "1 boxes reordered" in text
    assert main(["samples", "check", clean, "--out", f"{out}-2"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["samples", "check", str(data), "--out", f"{out}-3", "--clean", clean]) == 2


@pytest.mark.parametrize("option", ["--out", "--clean"])
def test_a_place_that_cannot_be_written_is_reported_before_the_pages_are_read(
    option: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocrlab.data.audit.check", None)
    (tmp_path / "file").touch()
    assert main(["samples", "check", str(data), option, str(tmp_path / "file" / "sheets")]) == 2
    assert f"{option} leads through a file" in capsys.readouterr().err
