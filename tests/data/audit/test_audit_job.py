"""The data doctor on whole data sets: nothing on clean pages, each planted mistake by its kind and line."""

import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from ocrlab.data.audit import KINDS, SEVERITIES, Finding, audit_job, check
from ocrlab.errors import DataError


def problems(path: Path, **more: Any) -> list[Finding]:
    return [finding for finding in check(path, **more) if finding.severity != "note"]


def at(findings: list[Finding], kind: str) -> list[int | None]:
    return [finding.box for finding in findings if finding.kind == kind]


def test_clean_pages_are_clean(draw, tmp_path: Path) -> None:
    for seed in range(4):
        draw(seed).write(tmp_path, f"p{seed}")
    assert problems(tmp_path) == []


@pytest.mark.parametrize("shift", [(0, -0.5), (0, 0.5), (-1.5, 0), (1.5, 0), (0.6, 0.5)])
def test_a_shift_of_half_a_height_is_detected(draw, tmp_path, shift):
    page = draw(1)
    page.quads[8] = page.quads[8] + np.float32(shift) * np.ptp(page.quads[8][:, 1])
    page.write(tmp_path, "p")
    findings = problems(tmp_path)
    assert at(findings, "misplaced") == [9]
    assert {finding.kind for finding in findings} == {"misplaced"}


def test_a_sloppy_edge_is_no_shift(draw, tmp_path: Path) -> None:
    page = draw(2)
    rng = np.random.default_rng(0)
    page.quads = [quad + rng.integers(-2, 3, 2).astype(np.float32) for quad in page.quads]
    page.write(tmp_path, "p")
    assert problems(tmp_path) == []


def test_each_planted_mistake_is_named(draw, tmp_path: Path) -> None:
    page = draw(3, lines=20)
    quads, texts = page.quads, page.texts
    quads[1] = quads[1][::-1].copy()  # counter-clockwise
    quads[3] = np.roll(quads[3], 2, axis=0)  # from the bottom right
    quads[5] = quads[5][[0, 2, 1, 3]]  # crossed
    quads[7] = quads[7] * (0, 1) + np.float32((100, 0))  # a line without width
    quads[9] = np.float32([[560, 20], [600, 20], [600, 40], [560, 40]])
    texts[11] = "FAR TOO MANY CHARACTERS FOR IT"
    quads.append(quads[13] + 1)
    texts.append(texts[13])
    gone = quads.pop(16), texts.pop(16)
    page.write(tmp_path, "p")
    findings = problems(tmp_path)
    assert set(at(findings, "reversed")) == {2, 4}
    expected = {"self_crossing": [6], "zero_area": [8], "outside": [10], "narrow": [12], "duplicate_box": [40]}
    assert {kind: at(findings, kind) for kind in expected} == expected
    missing = [finding for finding in findings if finding.kind == "missing_box"]
    places = [np.array(finding.polygon).mean(axis=0) for finding in missing]
    assert min(np.abs(place - gone[0].mean(axis=0)).max() for place in places) < 10


def test_x_and_y_exchanged_are_distinguished_from_a_reversed_box(draw, tmp_path: Path) -> None:
    page = draw(4)
    page.quads[6] = page.quads[6][:, ::-1].copy()
    page.quads[9] = page.quads[9][::-1].copy()
    page.write(tmp_path, "p")
    kinds = {finding.box: finding.kind for finding in problems(tmp_path) if finding.box}
    assert kinds == {7: "swapped", 10: "reversed"}


def test_exchanged_texts_are_a_pair(draw, tmp_path: Path) -> None:
    page = draw(4)
    long = max(range(len(page.texts)), key=lambda index: len(page.texts[index]))
    page.texts[long], page.texts[1] = page.texts[1], page.texts[long]
    page.write(tmp_path, "p")
    [finding] = problems(tmp_path)
    assert finding.kind == "swapped"
    assert {finding.box, finding.other} in ({2, f"p:{long + 1}"}, {long + 1, "p:2"})
    assert "px" in finding.why


def test_a_page_on_the_wrong_image_names_the_other(draw, tmp_path: Path) -> None:
    first, two = draw(5, lines=10), draw(6, lines=12)
    two.quads = [quad + np.float32((3, 17)) for quad in two.quads]
    two.image = np.roll(two.image, (17, 3), axis=(0, 1))
    first.quads, first.texts, two.quads, two.texts = two.quads, two.texts, first.quads, first.texts
    first.write(tmp_path, "a")
    two.write(tmp_path, "b")
    findings = [
        (finding.kind, finding.page, finding.other) for finding in problems(tmp_path) if finding.kind == "swapped"
    ]
    assert ("swapped", "a", "b") in findings
    assert ("swapped", "b", "a") in findings


def test_boxes_for_another_frame_are_a_single_finding(draw, tmp_path: Path) -> None:
    half, across = draw(7), draw(8)
    half.quads = [quad * np.float32(2.5) for quad in half.quads]
    across.quads = [quad[:, ::-1].copy() for quad in across.quads]
    half.write(tmp_path, "half")
    across.write(tmp_path, "across")
    findings = {finding.page: finding for finding in problems(tmp_path) if finding.box is None}
    assert findings["half"].kind == "wrong_size"
    width, height = re.findall(r"\d+", findings["half"].why)[:2]
    assert abs(int(width) / 1300 - 1) < 0.03
    assert abs(int(height) / 1550 - 1) < 0.03
    assert findings["across"].kind == "swapped"
    assert "change places" in findings["across"].why


def test_exif_traps_are_reported(draw, tmp_path: Path) -> None:
    page = draw(9)
    page.write(tmp_path, "trap", suffix=".jpg")
    place = tmp_path / "train" / "images" / "trap.jpg"
    exif = Image.Exif()
    exif[274] = 6
    Image.open(place).save(place, exif=exif, quality=95)
    [finding] = problems(tmp_path)
    assert (finding.kind, finding.severity, finding.box) == ("exif", "warn", None)
    assert "orientation 6" in finding.why


def test_broken_pages_do_not_end_the_run(draw, tmp_path: Path) -> None:
    page = draw(10)
    for name in ("good", "cut", "text", "line"):
        page = draw(10 + len(name) * ord(name[0]))
        page.write(tmp_path, name, suffix=".jpg")
    cut = tmp_path / "train" / "images" / "cut.jpg"
    cut.write_bytes(cut.read_bytes()[:200])
    (tmp_path / "train" / "images" / "text.jpg").write_text("no image")
    file = tmp_path / "train" / "gts" / "gt_line.txt"
    file.write_text(file.read_text() + "1,2,3\n")
    findings = problems(tmp_path)
    assert {finding.page for finding in findings if finding.kind == "unreadable_image"} == {"cut", "text"}
    [bad] = [finding for finding in findings if finding.kind == "unreadable_annotation"]
    assert (bad.page, bad.box) == ("line", 29)


@pytest.mark.parametrize("size", [(1, 1), (20_000, 300), (40, 3000)])
def test_odd_pages_have_an_answer(tmp_path: Path, size: tuple[int, int]) -> None:
    for below in ("images", "gts"):
        (tmp_path / "train" / below).mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "train" / "images" / "p.png"), np.full((*size, 3), 200, np.uint8))
    (tmp_path / "train" / "gts" / "gt_p.txt").write_text("0,0,5,0,5,5,0,5,a\nnan,0,1,0,1,1,0,1,b\n")
    kinds = {finding.kind for finding in check(tmp_path)}
    assert "invalid" in kinds
    assert kinds <= set(KINDS)


def test_five_thousand_boxes_are_looked_at(tmp_path: Path) -> None:
    for below in ("images", "gts"):
        (tmp_path / "train" / below).mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "train" / "images" / "p.png"), np.full((1000, 1000, 3), 200, np.uint8))
    rows = [(x * 13, y * 13) for x in range(72) for y in range(70)][:5000]
    lines = [f"{x},{y},{x + 9},{y},{x + 9},{y + 9},{x},{y + 9},###\n" for x, y in rows]
    (tmp_path / "train" / "gts" / "gt_p.txt").write_text("".join(lines))
    assert problems(tmp_path) == []


def test_what_nobody_foresaw_is_an_error_of_a_single_page(draw, tmp_path, monkeypatch):
    for seed, name in enumerate("ab"):
        draw(seed).write(tmp_path, name)
    whole = audit_job.page_image.sheet

    def broken(image: Any, polygons: Any) -> Any:
        if len(polygons) == 28 and not calls:
            calls.append(1)
            raise ValueError("a case of its own")
        return whole(image, polygons)

    calls: list[int] = []
    monkeypatch.setattr(audit_job.page_image, "sheet", broken)
    [finding] = problems(tmp_path)
    assert (finding.kind, finding.severity, finding.page) == ("unreadable_annotation", "error", "a")
    assert "ValueError: a case of its own" in finding.why


def test_each_of_a_few_forgotten_boxes_is_a_warning_and_of_a_habit_the_first(draw, tmp_path):
    few, many = draw(18), draw(18)
    for page, gone in ((few, 3), (many, 9)):
        for row in range(gone):
            at = 2 * (10 - row) + 1  # the right column
            del page.quads[at], page.texts[at]
    few.write(tmp_path, "few")
    many.write(tmp_path, "many")
    missed = [finding for finding in check(tmp_path) if finding.kind == "missing_box"]
    counts = {
        (name, severity): sum((each.page, each.severity) == (name, severity) for each in missed)
        for name in ("few", "many")
        for severity in ("warn", "note")
    }
    assert counts == {("few", "warn"): 3, ("few", "note"): 0, ("many", "warn"): 1, ("many", "note"): 8}


def test_a_misplaced_box_explains_its_own_line_only(draw, tmp_path: Path) -> None:
    page = draw(19)
    page.quads[9] = page.quads[9] + np.float32((0, -12))  # of the right column, and the one below is forgotten
    gone = page.quads.pop(11)
    page.texts.pop(11)
    page.write(tmp_path, "p")
    findings = problems(tmp_path)
    assert at(findings, "misplaced") == [10]
    [forgotten] = [np.array(finding.polygon) for finding in findings if finding.kind == "missing_box"]
    assert np.abs(forgotten.mean(axis=0) - gone.mean(axis=0)).max() < 6


def test_rows_of_stars_and_cloth_are_no_text(draw, tmp_path: Path) -> None:
    page = draw(17)
    page.image = np.vstack([page.image, np.full((200, 520, 3), 235, np.uint8)])
    cv2.putText(page.image, "*" * 30, (40, 640), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (30, 30, 30), 2, cv2.LINE_AA)
    weave = np.random.default_rng(0).normal(0, 40, (60, 260)).repeat(2, 0).repeat(2, 1)
    page.image[690:810] = np.clip(180 + weave, 0, 255)[..., None].astype(np.uint8)
    page.write(tmp_path, "p")
    assert problems(tmp_path) == []


def test_photographs_are_judged_by_numbers(draw, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        page = draw(number, lines=8)
        noise = rng.normal(0, 60, (190, 260, 3)).repeat(2, 0).repeat(2, 1)
        page.image = np.clip(128 + noise, 0, 255).astype(np.uint8)
        page.quads, page.texts = page.quads[:6], page.texts[:6]
        page.quads[0] = page.quads[0][::-1].copy()
        page.write(tmp_path, f"p{number}")
    findings = check(tmp_path)
    assert [finding.kind for finding in findings if finding.severity == "note"] == ["no_document"]
    assert {finding.kind for finding in findings if finding.severity != "note"} == {"reversed"}


def test_empty_pages_and_ignored_boxes_are_no_mistake(draw, tmp_path: Path) -> None:
    page = draw(11)
    page.quads = [quad + np.float32((0, 9)) for quad in page.quads]
    page.texts = ["###"] * len(page.texts)
    page.write(tmp_path, "ignored")
    page.image[:] = 240
    page.quads, page.texts = [], []
    page.write(tmp_path, "empty")
    assert [finding for finding in problems(tmp_path) if finding.kind != "missing_box"] == []


def test_progress_splits_and_the_lack_of_data(draw, tmp_path: Path) -> None:
    draw(12).write(tmp_path, "a", split="train")
    draw(13).write(tmp_path, "b", split="val")
    calls: list[tuple[int, int]] = []
    check(tmp_path, ["val"], lambda done, total: calls.append((done, total)))
    assert calls == [(1, 1)]
    assert all(finding.severity in SEVERITIES for finding in check(tmp_path))
    with pytest.raises(DataError):
        check(tmp_path / "nothing")


@pytest.mark.slow
def test_the_natural_defects_are_all_named(shared: Path) -> None:
    """NOTES.md of the set: 15 uncleaned pages, five pairs of one picture, one damaged JPEG."""

    folder = shared / "data" / "sroie" / "defects"
    if not folder.is_dir():
        pytest.skip("no defects in the shared data")
    findings = check(folder)
    named = {(finding.page, finding.box) for finding in findings if finding.box}
    named |= {(f.page, int(f.other.rpartition(":")[2])) for f in findings if f.other and ":" in f.other}
    defects = json.loads((folder / "defects.json").read_text())["defects"]
    assert [defect for defect in defects if (defect["id"], defect["line"]) not in named] == []
    assert {finding.page for finding in findings if finding.kind == "broken_image"} == {"427"}
    pairs = {(finding.other, finding.page) for finding in findings if finding.kind == "duplicate_page"}
    assert {("012", "015"), ("016", "018"), ("074", "624"), ("076", "625"), ("277", "452")} <= pairs
