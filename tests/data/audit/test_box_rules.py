"""The rules for single boxes at their limits; test_audit_job.py has each kind of mistake on a whole page."""

from __future__ import annotations

import numpy as np
import pytest

from ocrlab.data.audit import box_rules
from ocrlab.data.audit.raw_annotations import Box, Raw

SQUARE = np.float32([[10, 10], [50, 10], [50, 30], [10, 30]])
QUAD = np.array([[10, 10], [110, 10], [110, 30], [10, 30]], np.float32)
TEXTS = ["TOTAL AMOUNT", "CASH", "12.50", "THANK YOU", "INVOICE", "DATE", "99.90", "ROUNDING", "TAX", "CHANGE DUE"]


def box(polygon: object, line: int = 1, text: str = "a", ignored: bool = False) -> Box:
    return Box(line, np.asarray(polygon, np.float32).reshape(-1, 2), text, ignored)


def page(*quads: np.ndarray) -> Raw:
    return Raw("p", "val", None, None, [Box(line, quad, "TOTAL 12.5", False) for line, quad in enumerate(quads, 1)])


def doubled(*boxes: Box) -> list[tuple[int | None, str | None]]:
    findings = box_rules.number_findings(Raw("p", "val", None, None, list(boxes)), list(boxes), None)
    return [(finding.box, finding.other) for finding in findings if finding.kind == "duplicate_box"]


def fit(texts: list[str], change: dict[int, float] | None = None) -> box_rules.Fit:
    widths = np.array([10 * box_rules.units(text) + 6 for text in TEXTS])
    for index, factor in (change or {}).items():
        widths[index] *= factor
    return box_rules.Fit(texts, widths, np.full(len(TEXTS), 20.0))


@pytest.mark.parametrize(
    ("polygon", "kind"),
    [
        ([], "invalid"),
        ([[0, 0], [np.nan, 0], [1, 1]], "invalid"),
        ([[0, 0], [9, 9]], "invalid"),
        ([[0, 0], [9, 9], [18, 18], [3, 3]], "zero_area"),
        ([[5, 5]] * 4, "zero_area"),
        (SQUARE[[0, 2, 1, 3]], "self_crossing"),
    ],
)
def test_what_is_no_region_is_named(polygon: object, kind: str) -> None:
    problem = box_rules.shape_problem(box(polygon))
    assert problem is not None
    assert problem[0] == kind


def test_order_is_judged_by_where_it_runs_and_starts() -> None:
    assert box_rules.order_problem(SQUARE) is None
    upward = np.float32([[10, 100], [10, 20], [30, 20], [30, 100]])  # text that runs up the page
    assert box_rules.order_problem(upward) is None
    for wrong, word in ((SQUARE[::-1], "counter"), (np.roll(SQUARE, 2, 0), "right"), (np.roll(SQUARE, 1, 0), "short")):
        problem = box_rules.order_problem(np.asarray(wrong, np.float32))
        assert problem is not None
        assert word in problem[2]


def test_small_boxes_of_a_single_text_need_less_of_each_other() -> None:
    digit = np.float32([[10, 10], [18, 10], [18, 20], [10, 20]])
    off = digit + np.float32([3, 2])  # IoU 0.33
    assert doubled(box(digit), box(off, 2)) == [(2, "p:1")]
    assert doubled(box(digit), box(off, 2, text="b")) == []
    assert doubled(box(digit), box(digit + np.float32([6, 0]), 2)) == []  # neighbours


def test_a_box_as_narrow_as_a_stroke_holds_no_text_that_runs_down() -> None:
    raw = page(*(QUAD + 40 * row for row in range(12)), np.array([[5, 5], [6, 5], [6, 40], [5, 40]], np.float32))
    [finding] = box_rules.text_findings(raw, raw.boxes)
    assert (finding.kind, finding.severity, finding.box) == ("narrow", "error", 13)


def test_narrow_and_wide_report_their_numbers() -> None:
    [(index, narrow)] = box_rules.misfits(fit(TEXTS, {3: 0.2}))
    assert (index, *narrow[:2]) == (3, "narrow", "error")
    assert "9 characters in 19 px: 2.1 px a character, page median 10" in narrow[2]
    [(index, wide)] = box_rules.misfits(fit(TEXTS, {3: 6}))
    assert (index, wide[0]) == (3, "wide")
