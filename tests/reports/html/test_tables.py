"""Tables: figures that line up, and a grid that marks its best cell by more than colour."""

from __future__ import annotations

import math

import pytest

from ocrlab.reports.html import tables

SCORES = {(0.3, "exact"): (0.8, 0.6), (0.3, 1.5): (0.7, 0.2), (0.5, "exact"): (0.9, 0.7), (0.5, 1.5): (math.nan, 0.0)}


def test_a_table_escapes_and_aligns() -> None:
    view = tables.table(("stage", "parameters"), [("<a>", 12345), ("all", 7)], "A finding", total=True)
    assert "&lt;a&gt;" in view.html
    assert 'class="words">stage' in view.html
    assert 'class="">parameters' in view.html
    assert "12\u202f345" in view.html
    assert '<tr class="sum">' in view.html
    assert view.text.splitlines()[:2] == ["A finding", "stage  parameters"]


def test_the_best_cell_is_marked_and_the_finding_names_it() -> None:
    view = tables.grid(SCORES, ("threshold", "unclip"), (0.3, 1.5), "hmean@0.5", "hmean@0.7")
    assert view.text == "Best: threshold 0.5 with unclip exact, hmean@0.5 0.900 (the settings in use give 0.700)"
    assert '<td class="day best"' in view.html
    assert "★ 0.900" in view.html
    assert "● 0.700" in view.html
    assert view.html.count("★ 0") == 1


def test_among_equals_the_settings_in_use_are_best() -> None:
    equal = dict.fromkeys(SCORES, (0.5, 0.5))
    view = tables.grid(equal, ("threshold", "unclip"), (0.5, 1.5), "hmean@0.5", "hmean@0.7")
    assert view.text == "Best: threshold 0.5 with unclip 1.5, hmean@0.5 0.500 (the settings in use)"
    assert "★ ● 0.500" in view.html


def test_without_detections_there_is_no_best() -> None:
    nothing = dict.fromkeys(SCORES, (0.0, 0.0))
    view = tables.grid(nothing, ("threshold", "unclip"), (0.5, 1.5), "hmean@0.5", "hmean@0.7")
    assert view.text == "No threshold and no unclip helps: hmean@0.5 is 0 everywhere"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1\u202f234\u202f567"),
        (0.12345, "0.123"),
        (12.3456, "12.35"),
        (math.nan, "not a number"),
        (None, ""),
        (True, "yes"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert tables.shown(value) == text
