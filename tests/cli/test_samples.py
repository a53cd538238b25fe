"""`ocrlab samples`: make, check, convert and show, and wrong use of them."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from ocrlab.cli import main
from ocrlab.cli.samples_show import CELL, COUNTED, GAP, IGNORED


@pytest.mark.parametrize(("words", "status", "message"), [
    ([], 2, "COMMAND"),
    (["shew", "data"], 2, "invalid choice: 'shew'"),
    (["show", "{folder}/none"], 2, "none"),
    (["show", "{folder}", "--out", "sheet.gif"], 2, ".png"),
    (["show", "{folder}", "--pages", "0"], 2, "--pages"),
    (["show", "{folder}", "--seed", "1"], 2, "--seed"),
    (["make", "{folder}/new", "--train", "-1"], 2, "--train"),
    (["make", "{folder}/new", "--train", "0", "--val", "0"], 2, "--train 0 --val 0"),
    (["make", "{folder}/new", "--seed", "one"], 2, "--seed"),
    (["convert", "{folder}", "{folder}-new"], 2, "--to"),
    (["convert", "{folder}", "{folder}-new", "--to", "voc"], 2, "icdar"),
    (["convert", "{folder}/none", "{folder}-new", "--to", "coco"], 2, "none"),
])  # fmt: skip
def test_wrong_use(words, status, message, tmp_path, capsys):
    assert main(["samples", *(word.format(folder=tmp_path) for word in words)]) == status
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


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
    option, data, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocrlab.data.audit.check", None)
    (tmp_path / "file").touch()
    assert main(["samples", "check", str(data), option, str(tmp_path / "file" / "sheets")]) == 2
    assert f"{option} leads through a file" in capsys.readouterr().err


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


def test_nothing_is_overwritten(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.png"
    mine.write_bytes(b"mine")
    assert main(["samples", "show", "data", "--out", "mine.png"]) == 2
    assert "Nothing is overwritten" in capsys.readouterr().err
    assert mine.read_bytes() == b"mine"
    for _ in range(2):
        assert main(["samples", "show", "data", "--pages", "1"]) == 0
    expected = {"samples-data-train.png", "samples-data-train-2.png"}
    assert {path.name for path in (tmp_path / "reports").iterdir()} == expected
