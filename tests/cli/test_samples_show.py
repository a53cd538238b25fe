"""`ocrlab samples show`: the contact sheet and the counts of a split."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from ocrlab.cli import main
from ocrlab.cli.samples_show import CELL, COUNTED, GAP, IGNORED


@pytest.fixture
def folder(tmp_path):
    """Five white pages, 800 x 400, with one box that counts and one that does not."""
    images, texts = tmp_path / "data" / "train" / "images", tmp_path / "data" / "train" / "gts"
    images.mkdir(parents=True)
    texts.mkdir()
    for number in range(5):
        cv2.imwrite(str(images / f"p{number}.png"), np.full((400, 800, 3), 255, np.uint8))
        (texts / f"gt_p{number}.txt").write_text(
            "40,40,240,40,240,80,40,80,total\n400,200,600,200,600,240,400,240,###\n"
        )
    return tmp_path / "data"


def test_show_counts_and_draws(folder, tmp_path, capsys):
    out = tmp_path / "new" / "sheet.png"
    assert main(["samples", "show", str(folder), "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["pages"], record["boxes"], record["ignored"], record["picture"]) == (5, 10, 5, str(out))
    assert record["boxes_per_page"] == {"least": 2, "median": 2, "most": 2}
    sheet = cv2.imread(str(out))[..., ::-1]
    assert sheet.shape == (2 * CELL + GAP, 4 * CELL + 3 * GAP, 3), "five pages in two rows of at most four"
    white = (255, 255, 255)
    for (y, x), colour in {(20, 60): COUNTED, (100, 250): IGNORED, (60, 60): white, (300, 60): white}.items():
        distance = np.abs(sheet[y - 1 : y + 2, x].astype(int) - colour).sum(axis=1).min()
        assert distance < 120, f"row {y}, column {x}, at half the size of the page"


def test_a_page_that_cannot_be_decoded_costs_its_place_only(folder, tmp_path, capsys):
    page = folder / "train" / "images" / "p1.png"
    page.write_bytes(page.read_bytes()[:200])
    assert main(["samples", "show", str(folder), "--out", str(tmp_path / "sheet.png"), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["pages"] == 5 and "p1.png: is damaged" in record["problems"][0]
    sheet = cv2.imread(str(tmp_path / "sheet.png"))
    assert (sheet[:CELL, CELL + GAP : 2 * CELL + GAP] == 255).all() and (sheet[:CELL, :CELL] != 255).any()


def test_show_without_out_keeps_to_reports(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["samples", "show", "data", "--pages", "1"]) == 0
    assert (tmp_path / "reports" / "samples-data-train.png").is_file()
    assert "samples-data-train.png" in capsys.readouterr().out


def test_nothing_is_overwritten(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.png"
    mine.write_bytes(b"mine")
    assert main(["samples", "show", "data", "--out", "mine.png"]) == 2
    assert "Nothing is overwritten" in capsys.readouterr().err
    assert mine.read_bytes() == b"mine"
    for _ in range(2):
        assert main(["samples", "show", "data", "--pages", "1"]) == 0
    assert {path.name for path in (tmp_path / "reports").iterdir()} == {
        "samples-data-train.png",
        "samples-data-train-2.png",
    }
