"""The paired bootstrap: a real difference is told, chance is not, and hard pages weigh for both."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ocrlab.errors import ShapeError
from ocrlab.evaluation.metrics import page_scores as metric
from ocrlab.evaluation.metrics.paired_comparison import by_page, compare, counts


def rows(found: object, pages: int = 40, truth: int = 20) -> np.ndarray:
    matched = np.broadcast_to(np.asarray(found, dtype=float), pages)
    return np.stack([matched, np.full(pages, truth), np.full(pages, truth)], axis=1)


def test_a_real_difference_is_told_in_both_directions() -> None:
    rng = np.random.default_rng(0)
    hard = rng.integers(4, 16, 40)  # pages differ far more than the detectors do
    told = compare(rows(hard), rows(hard + (np.arange(40) % 2)))
    assert told.difference == pytest.approx(0.5 / 20)
    assert 0 < told.low < told.difference < told.high < 0.05
    assert (told.told, told.ahead) == ("better", 1.0)
    assert told.p < 0.001
    back = compare(rows(hard + (np.arange(40) % 2)), rows(hard))
    assert (back.told, back.ahead) == ("worse", 0.0)
    assert (back.low, back.high) == pytest.approx((-told.high, -told.low))


def test_what_can_be_chance_is_not_told_as_a_difference() -> None:
    first = np.array([10, 12, 8, 15, 9, 11, 7, 13] * 5)
    told = compare(rows(first), rows(first + np.array([1, -1, 1, -1, 0, 0, 1, -1] * 5)))
    assert told.told == "cannot tell"
    assert told.low < 0 < told.high
    assert told.p > 0.3


def test_the_same_detector_twice_is_even() -> None:
    told = compare(rows(10), rows(10))
    assert (told.difference, told.low, told.high, told.ahead, told.p) == (0, 0, 0, 0.5, 1.0)
    assert told.told == "cannot tell"


@pytest.mark.parametrize("pages", [0, 1, 4])
def test_few_pages_tell_nothing(pages: int) -> None:
    told = compare(rows(5, pages), rows(9, pages))
    assert told.pages == pages
    assert math.isnan(told.low)
    assert math.isnan(told.ahead)
    assert told.told == "cannot tell"


def test_it_says_false_only_as_often_as_it_says() -> None:
    """Of detectors that are equally good, at most about 5 % may be told to differ: 400 trials, +3 standard errors."""
    rng = np.random.default_rng(1)
    wrong = 0
    for trial in range(400):
        chance = rng.uniform(0.5, 0.95, 60)
        one, other = (rng.binomial(20, chance) for _ in range(2))
        wrong += compare(rows(one, 60), rows(other, 60), rounds=400, seed=trial).told != "cannot tell"
    assert wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_many_pages_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    one, other = rng.integers(0, 20, 40), rng.integers(0, 20, 40)
    whole = compare(rows(one), rows(other), rounds=3000)
    monkeypatch.setattr("ocrlab.evaluation.metrics.paired_comparison.BLOCK", 40 * 7)
    assert compare(rows(one), rows(other), rounds=3000) == whole


def test_other_pages_are_refused() -> None:
    with pytest.raises(ShapeError, match="same pages"):
        compare(rows(5, 6), rows(5, 7))
    with pytest.raises(ShapeError, match="same pages"):
        compare(rows(5, 6, truth=20), rows(5, 6, truth=21))


def test_sums_are_those_of_the_summary() -> None:
    box = np.array([[0, 0], [50, 0], [50, 20], [0, 20]], dtype=np.float32)
    truth = [box, box + 100, box + 200]
    pages = [metric.judge(truth, [False, False, True], None, [box, box + 103, box + 400, box + 200])] * 6
    for at, (found, boxes, detections) in counts(pages[0]).items():
        assert 2 * found / (boxes + detections) == pytest.approx(metric.summary(pages)[f"hmean{at}"])
        told = compare([counts(one)[at] for one in pages], [counts(one)[at] for one in pages])
        assert told.first == pytest.approx(metric.summary(pages)[f"hmean{at}"])


def test_pages_by_their_difference() -> None:
    assert by_page([0.5, 0.9, 0.5, 0.1], [0.5, 0.2, 0.9, 0.1]) == [1, 0, 3, 2]


@pytest.mark.parametrize("pages", [5, 6, 10])
def test_it_says_false_no_more_often_on_few_pages(pages: int) -> None:
    """The plain percentile interval of 5 pages is wrong three times as often as it says."""
    rng = np.random.default_rng(3)
    wrong = 0
    for trial in range(400):
        one, other = (rng.normal(600, 60, pages) for _ in range(2))
        wrong += compare(rows(one, pages, 1000), rows(other, pages, 1000), rounds=400, seed=trial).told != "cannot tell"
    assert wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_of_many_detectors_that_are_the_same_none_is_better() -> None:
    """Twelve compared with one, each for itself, give a false finding in a third of the trials."""
    rng = np.random.default_rng(5)
    false = {1: 0, 12: 0}
    for trial in range(40):
        first = rows(rng.normal(600, 60, 40), 40, 1000)
        others = [rows(rng.normal(600, 60, 40), 40, 1000) for _ in range(12)]
        for among in false:
            found = [compare(first, other, among=among, rounds=1000, seed=trial) for other in others]
            false[among] += any(one.told != "cannot tell" for one in found)
    assert false[1] / 40 > 0.2
    assert false[12] / 40 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 40)


def test_among_several_the_interval_is_wider_and_the_middle_the_same() -> None:
    rng = np.random.default_rng(0)
    first, second = (rows(rng.normal(mean, 60, 30), 30, 1000) for mean in (600, 630))
    alone, one_of = (compare(first, second, among=among) for among in (1, 5))
    assert (alone.difference, alone.ahead) == (one_of.difference, one_of.ahead)
    assert one_of.low < alone.low < alone.high < one_of.high
    assert one_of.p == pytest.approx(min(1, 5 * alone.p))
