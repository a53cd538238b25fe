"""The rules for single boxes of one page."""

from __future__ import annotations

import numpy as np

from ocrlab.data.audit import box_rules
from ocrlab.data.audit.finding import KINDS, SEVERITIES, Finding
from ocrlab.data.audit.raw_annotations import Box, Raw

QUAD = np.array([[10, 10], [110, 10], [110, 30], [10, 30]], np.float32)


def page(*quads: np.ndarray) -> Raw:
    return Raw("p", "val", None, None, [Box(line, quad, "TOTAL 12.5", False) for line, quad in enumerate(quads, 1)])


def test_what_is_no_region_is_left_out_of_the_rest() -> None:
    findings, good = box_rules.usable(page(QUAD, QUAD * np.nan, QUAD * 0))
    assert [(finding.kind, finding.box) for finding in findings] == [("invalid", 2), ("zero_area", 3)]
    assert good == [0]


def test_a_pair_names_the_other_line() -> None:
    [finding] = box_rules.numbers(page(QUAD, QUAD + 200, QUAD + 1), [0, 1, 2], (400, 400))
    assert (finding.kind, finding.box, finding.other) == ("duplicate_box", 3, "p:1")


def test_a_box_as_narrow_as_a_stroke_holds_no_text_that_runs_down() -> None:
    raw = page(*(QUAD + 40 * row for row in range(12)), np.array([[5, 5], [6, 5], [6, 40], [5, 40]], np.float32))
    [finding] = box_rules.texts(raw, list(range(13)))
    assert (finding.kind, finding.severity, finding.box) == ("narrow", "error", 13)


def test_a_finding_is_of_a_listed_kind() -> None:
    findings, _ = box_rules.usable(page(QUAD * np.nan))
    assert isinstance(findings[0], Finding)
    assert findings[0].kind in KINDS
    assert findings[0].severity in SEVERITIES
