"""The paired bootstrap: a real difference is reported, chance is not, and hard pages weigh for both."""

import math

import numpy as np
import pytest

from ocrlab.errors import ShapeError
from ocrlab.evaluation.metrics.paired_comparison import compare


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


def test_other_pages_are_refused() -> None:
    with pytest.raises(ShapeError, match="same pages"):
        compare(rows(5, 6), rows(5, 7))
    with pytest.raises(ShapeError, match="same pages"):
        compare(rows(5, 6, truth=20), rows(5, 6, truth=21))


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


def test_among_several_the_interval_is_wider_and_the_middle_the_same() -> None:
    rng = np.random.default_rng(0)
    first, second = (rows(rng.normal(mean, 60, 30), 30, 1000) for mean in (600, 630))
    alone, corrected = (compare(first, second, among=among) for among in (1, 5))
    assert (alone.difference, alone.ahead) == (corrected.difference, corrected.ahead)
    assert corrected.low < alone.low < alone.high < corrected.high
    assert corrected.p == pytest.approx(min(1, 5 * alone.p))
