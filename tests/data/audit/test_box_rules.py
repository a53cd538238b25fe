"""The rules of the data doctor at their limits; test_audit_job.py has each kind of mistake on a whole page."""

from typing import Any

import cv2
import numpy as np
import pytest

from ocrlab.data.audit import box_rules, check, missing_boxes, page_image
from ocrlab.data.audit.raw_annotations import Box, Raw

SQUARE = np.float32([[10, 10], [50, 10], [50, 30], [10, 30]])


def box(polygon: object, line: int = 1, text: str = "a", ignored: bool = False) -> Box:
    return Box(line, np.asarray(polygon, np.float32).reshape(-1, 2), text, ignored)


def page(*quads: np.ndarray) -> Raw:
    return Raw("p", "val", None, None, [Box(line, quad, "TOTAL 12.5", False) for line, quad in enumerate(quads, 1)])


@pytest.mark.parametrize(
    ("polygon", "kind"),
    [
        ([], "invalid"), ([[0, 0], [np.nan, 0], [1, 1]], "invalid"), ([[0, 0], [9, 9]], "invalid"),
        ([[0, 0], [9, 9], [18, 18], [3, 3]], "zero_area"), ([[5, 5]] * 4, "zero_area"),
        (SQUARE[[0, 2, 1, 3]], "self_crossing"),
    ],
)  # fmt: skip
def test_what_is_no_region_is_named(polygon: object, kind: str) -> None:
    problem = box_rules.shape_problem(box(polygon))
    assert problem is not None
    assert problem[0] == kind


def missing_lines(page: Any) -> list[tuple[missing_boxes.Line, np.ndarray]]:
    """Return the lines that are reported on a page, with their left, top, right, bottom in its pixels."""
    sheet = page_image.sheet(page.image, page.quads)
    lines = [
        line
        for line in missing_boxes.lines(sheet)
        if missing_boxes.likeness(line) > missing_boxes.TEXT_LIKE and missing_boxes.is_print(line)
    ]
    return [(line, np.array([*line.box[:2], *np.add(line.box[:2], line.box[2:])]) / sheet.scale) for line in lines]


@pytest.mark.parametrize("at", [4, 7, 12])
def test_a_line_left_out_is_detected(draw, at: int) -> None:
    page = draw(3)
    gone = page.quads.pop(at)
    [(line, place)] = missing_lines(page)
    assert line["known"] > 0.85
    assert np.abs(place - [*gone[0], *gone[2]]).max() < 8


def test_print_that_stands_on_a_ruling_is_a_line(draw) -> None:
    page = draw(5)
    gone = page.quads.pop(6)
    bottom = round(float(gone[2, 1])) - 4  # touches the letters
    cv2.line(page.image, (10, bottom), (500, bottom), (30, 30, 30), 2)
    [(_, place)] = missing_lines(page)
    assert np.abs(place - [*gone[0], *gone[2]]).max() < 8


def test_scrawls_repeat_no_sign_of_the_boxes(draw) -> None:
    page = draw(6)
    page.image = np.vstack([page.image, np.full((80, 520, 3), 235, np.uint8)])
    rng = np.random.default_rng(0)
    for letter in range(7):
        turn = np.cumsum(rng.normal(0, 4, (7, 2)), axis=0)
        turn += np.array([60 + 22 * letter, 660]) - turn.mean(axis=0)
        cv2.polylines(page.image, [turn.astype(np.int32)], False, (30, 30, 30), 2, cv2.LINE_AA)
    assert missing_boxes.lines(page_image.sheet(page.image, page.quads))
    assert missing_lines(page) == []


def test_a_page_saved_again_at_half_size_is_recognised(draw, tmp_path) -> None:
    page = draw(1)
    page.write(tmp_path, "a")
    page.write(tmp_path, "same")
    small = draw(1)
    small.image = cv2.resize(small.image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    small.quads = [quad / 2 for quad in small.quads]
    small.write(tmp_path, "b", split="val", suffix=".jpg")
    draw(2).write(tmp_path, "c")
    findings = {
        (f.kind, f.page, f.other, f.severity) for f in check(tmp_path) if f.box is None and f.severity != "note"
    }
    assert ("duplicate_page", "same", "a", "error") in findings
    assert ("leak", "b", "train/a", "error") in findings
    assert not any("c" in (page, other) for _, page, other, _ in findings)
