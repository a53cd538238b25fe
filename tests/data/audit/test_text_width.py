"""Characters against pixels."""

from __future__ import annotations

import numpy as np

from ocrlab.data.audit import box_rules

TEXTS = ["TOTAL AMOUNT", "CASH", "12.50", "THANK YOU", "INVOICE", "DATE", "99.90", "ROUNDING", "TAX", "CHANGE DUE"]


def fit(texts: list[str], change: dict[int, float] | None = None) -> box_rules.Fit:
    widths = np.array([10 * box_rules.units(text) + 6 for text in TEXTS])
    for index, factor in (change or {}).items():
        widths[index] *= factor
    return box_rules.Fit(texts, widths, np.full(len(TEXTS), 20.0))


def test_text_that_fits_is_nothing() -> None:
    assert list(box_rules.judge(fit(TEXTS))) == []
    assert list(box_rules.exchanged(fit(TEXTS))) == []
    assert np.abs(fit(TEXTS).deviation()).max() < 0.05


def test_narrow_and_wide_report_their_numbers() -> None:
    [narrow] = box_rules.judge(fit(TEXTS, {3: 0.2}))
    assert narrow[:3] == (3, "narrow", "error")
    assert "9 characters in 19 px: 2.1 px a character, page median 10" in narrow[3]
    [wide] = box_rules.judge(fit(TEXTS, {3: 6}))
    assert wide[:2] == (3, "wide")


def test_double_width_letters_are_honest() -> None:
    assert list(box_rules.judge(fit(TEXTS, {0: 2.0}))) == []


def test_exchanged_texts_are_detected_as_a_pair() -> None:
    texts = TEXTS.copy()
    texts[0], texts[8] = texts[8], texts[0]
    [(low, high, _)] = box_rules.exchanged(fit(texts))
    assert {low, high} == {0, 8}


def test_without_text_or_with_few_boxes_nothing_is_judged() -> None:
    assert np.isnan(fit([""] * len(TEXTS)).deviation()).all()
    few = box_rules.Fit(["AB", "C"], np.array([5.0, 900.0]), np.array([20.0, 20.0]))
    assert list(box_rules.judge(few)) == []
    assert list(box_rules.exchanged(few)) == []
