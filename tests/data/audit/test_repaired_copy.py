"""What the data doctor reads and writes: pages as they were written, contact sheets, the cleaned copy."""

from typing import Any

import numpy as np
import pytest

from ocrlab.data.audit import Finding, check, contact_sheet, raw_annotations, repaired_copy
from ocrlab.data.formats.icdar import read_icdar
from ocrlab.errors import DataError


def test_what_is_certain_is_fixed_and_reported(draw, tmp_path) -> None:
    data, target = tmp_path / "data", tmp_path / "clean"
    page = draw(1)
    count = len(page.quads)
    page.quads[0] = page.quads[0][::-1].copy()
    page.quads.append(page.quads[2].copy())
    page.texts.append(page.texts[2])
    page.quads.append(np.float32([[1, 1], [1, 1], [1, 1], [1, 1]]))
    page.texts.append("nothing")
    page.write(data, "p")
    draw(2).write(data, "bad")
    (data / "train" / "images" / "bad.png").write_bytes(b"no image")
    before = {file: file.read_bytes() for file in data.rglob("*") if file.is_file()}
    done = repaired_copy.copy(data, target, check(data))
    assert {file: file.read_bytes() for file in data.rglob("*") if file.is_file()} == before
    assert (done.pages, done.boxes) == (1, count)
    assert done.counts == {"boxes reordered": 1, "boxes dropped": 2, "pages left out": 1}
    boxes = read_icdar(target / "train" / "gts" / "gt_p.txt")
    assert np.array_equal(boxes.polygons[0], page.quads[0][::-1])
    assert [finding for finding in check(target) if finding.severity == "error"] == []
    assert len((target / "CHANGES.txt").read_text().splitlines()) == 4


def test_nothing_is_overwritten(draw, tmp_path) -> None:
    draw(3).write(tmp_path / "data", "p")
    with pytest.raises(DataError, match="already exists"):
        repaired_copy.copy(tmp_path / "data", tmp_path / "data", [])


def test_what_was_ended_midway_leaves_nothing(draw, tmp_path, monkeypatch):
    draw(4).write(tmp_path / "data", "p")
    draw(5).write(tmp_path / "data", "q")
    (tmp_path / "clean").mkdir()
    written = []

    def ended(*arguments: Any, **more: Any) -> None:
        written.append(arguments[0])
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(repaired_copy, "write_icdar", ended)
    with pytest.raises(KeyboardInterrupt):
        repaired_copy.copy(tmp_path / "data", tmp_path / "clean", [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "data"] and not any(
        (tmp_path / "clean").iterdir()
    )
    monkeypatch.undo()
    assert repaired_copy.copy(tmp_path / "data", tmp_path / "clean", []).pages == 2


def test_each_finding_has_a_crop_and_sheets_are_paged(draw, tmp_path) -> None:
    page = draw(1)
    page.write(tmp_path, "p")
    points = [[float(x), float(y)] for x, y in page.quads[0]]
    far = [[9000.0, 9000.0], [9100.0, 9000.0], [9100.0, 9020.0]]
    shapes = [points, None, far, [[1.0, 1.0]] * 4]
    findings = [Finding("misplaced", "p", "train", 1, shape, "warn", "why " * 30) for shape in shapes * 8]
    sheets = list(contact_sheet.sheets(tmp_path, findings))
    assert len(sheets) == 2
    assert sheets[0].shape == (
        (contact_sheet.CELL[1] + contact_sheet.LABEL + contact_sheet.GAP) * 7,
        (contact_sheet.CELL[0] + contact_sheet.GAP) * 4,
        3,
    )
    red = (sheets[0] == contact_sheet.COLOURS["warn"]).all(axis=2)
    assert red.any()
    next((tmp_path / "train" / "images").iterdir()).write_bytes(b"no image")
    [sheet] = contact_sheet.sheets(tmp_path, findings[:1])
    assert (sheet < 100).any(), "its words are there"


def test_lines_keep_their_numbers_and_bad_ones_their_reasons(tmp_path) -> None:
    file = tmp_path / "gt_p.txt"
    file.write_bytes(b"\xef\xbb\xbf1,1,9,1,9,9,1,9,a,b\r\n\r\nx,1\n1,1,9,1,9,9,1,nan,c\n1,1,9,1,9,9,1,9,###\n")
    raw = raw_annotations.Raw("p", "train", None, file)
    raw_annotations.read_lines(file, raw)
    assert [(box.line, box.text, box.ignored) for box in raw.boxes] == [
        (1, "a,b", False), (4, "c", False), (5, "###", True),
    ]  # fmt: skip
    assert [line for line, _ in raw.faults] == [3]
    assert len(raw.notes) == 2


def test_loose_files_find_images_around_them(draw, tmp_path) -> None:
    draw(1).write(tmp_path, "p")
    loose = tmp_path / "defects" / "raw"
    loose.mkdir(parents=True)
    (loose / "p.csv").write_text("1,1,9,1,9,9,1,9,a\n")
    (loose / "q.csv").write_text("1,1,9,1,9,9,1,9,a\n")
    pages = {raw.name: raw for raw in (read() for read in raw_annotations.pages(tmp_path / "defects"))}
    assert pages["p"].image == tmp_path / "train" / "images" / "p.png"
    assert pages["q"].image is None


def test_an_annotation_file_that_cannot_be_read_is_an_error_and_no_loose_images(tmp_path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "p.png").write_bytes(b"")
        (tmp_path / split / f"{split}.json").write_text('{"images": [{"id": 1, "file_name": "p.png"}]')
    with pytest.raises(DataError, match="train.json.*not JSON"):
        raw_annotations.pages(tmp_path)
