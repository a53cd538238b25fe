"""The paired bootstrap: a real difference is reported, chance is not, and hard pages weigh for both."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ocrlab.errors import ShapeError
from ocrlab.evaluation.metrics import page_scores as metric
from ocrlab.evaluation.metrics.paired_comparison import compare, counts


def rows(hits: object, pages: int = 40, truth: int = 20) -> np.ndarray:
    matched = np.broadcast_to(np.asarray(hits, dtype=float), pages)
    return np.stack([matched, np.full(pages, truth), np.full(pages, truth)], axis=1)


def test_a_real_difference_is_reported_in_both_directions() -> None:
    rng = np.random.default_rng(0)
    hard = rng.integers(4, 16, 40)  # pages differ far more than the detectors do
    result = compare(rows(hard), rows(hard + (np.arange(40) % 2)))
    assert result.difference == pytest.approx(0.5 / 20)
    assert 0 < result.low < result.difference < result.high < 0.05
    assert (result.verdict, result.ahead) == ("better", 1.0)
    assert result.p < 0.001
    back = compare(rows(hard + (np.arange(40) % 2)), rows(hard))
    assert (back.verdict, back.ahead) == ("worse", 0.0)
    assert (back.low, back.high) == pytest.approx((-result.high, -result.low))


def test_what_can_be_chance_is_not_reported_as_a_difference() -> None:
    first = np.array([10, 12, 8, 15, 9, 11, 7, 13] * 5)
    result = compare(rows(first), rows(first + np.array([1, -1, 1, -1, 0, 0, 1, -1] * 5)))
    assert result.verdict == "cannot tell"
    assert result.low < 0 < result.high
    assert result.p > 0.3


@pytest.mark.parametrize("pages", [0, 1, 4])
def test_few_pages_decide_nothing(pages: int) -> None:
    result = compare(rows(5, pages), rows(9, pages))
    assert result.pages == pages
    assert math.isnan(result.low)
    assert math.isnan(result.ahead)
    assert result.verdict == "cannot tell"


def test_other_pages_are_refused() -> None:
    with pytest.raises(ShapeError, match="same pages"):
        compare(rows(5, 6), rows(5, 7))
    with pytest.raises(ShapeError, match="same pages"):
        compare(rows(5, 6, truth=20), rows(5, 6, truth=21))


def test_sums_are_those_of_the_summary() -> None:
    box = np.array([[0, 0], [50, 0], [50, 20], [0, 20]], dtype=np.float32)
    truth = [box, box + 100, box + 200]
    pages = [metric.judge(truth, [False, False, True], None, [box, box + 103, box + 400, box + 200])] * 6
    for at, (matched, boxes, detections) in counts(pages[0]).items():
        assert 2 * matched / (boxes + detections) == pytest.approx(metric.summary(pages)[f"hmean{at}"])
        result = compare([counts(page)[at] for page in pages], [counts(page)[at] for page in pages])
        assert result.first == pytest.approx(metric.summary(pages)[f"hmean{at}"])


@pytest.mark.parametrize("pages", [5, 6, 10])
def test_it_says_false_no_more_often_on_few_pages(pages: int) -> None:
    """The plain percentile interval of 5 pages is wrong three times as often as it says."""
    rng = np.random.default_rng(3)
    wrong = 0
    for trial in range(400):
        first_rows, other = (rng.normal(600, 60, pages) for _ in range(2))
        wrong += (
            compare(rows(first_rows, pages, 1000), rows(other, pages, 1000), rounds=400, seed=trial).verdict
            != "cannot tell"
        )
    assert wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_of_many_detectors_that_are_the_same_none_is_better() -> None:
    """Twelve compared with one, each for itself, give a false finding in a third of the trials."""
    rng = np.random.default_rng(5)
    false = {1: 0, 12: 0}
    for trial in range(40):
        first = rows(rng.normal(600, 60, 40), 40, 1000)
        others = [rows(rng.normal(600, 60, 40), 40, 1000) for _ in range(12)]
        for among in false:
            results = [compare(first, other, among=among, rounds=1000, seed=trial) for other in others]
            false[among] += any(result.verdict != "cannot tell" for result in results)
    assert false[1] / 40 > 0.2
    assert false[12] / 40 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 40)


def test_among_several_the_interval_is_wider_and_the_middle_the_same() -> None:
    rng = np.random.default_rng(0)
    first, second = (rows(rng.normal(mean, 60, 30), 30, 1000) for mean in (600, 630))
    alone, corrected = (compare(first, second, among=among) for among in (1, 5))
    assert (alone.difference, alone.ahead) == (corrected.difference, corrected.ahead)
    assert corrected.low < alone.low < alone.high < corrected.high
    assert corrected.p == pytest.approx(min(1, 5 * alone.p))
