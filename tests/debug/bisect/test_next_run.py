from __future__ import annotations

import functools
import itertools
import math

import pytest

from ocrlab.debug.bisect import next_run, posterior


@pytest.mark.parametrize("count", [1, 5, 14])
def test_the_first_runs_are_as_it_was_until_it_has_failed_once(count: int) -> None:
    search = posterior.begin_search([1.0] * count)
    for _ in range(3):
        assert next_run.choose_run(search) == search.whole
        posterior.add_run(search, search.whole, False)
    posterior.add_run(search, search.whole, True)
    assert search.flaky
    assert 0 <= next_run.choose_run(search) <= search.whole


def test_the_second_run_halves_the_factors() -> None:
    search = posterior.begin_search([1.0] * 8)
    posterior.add_run(search, search.whole, True)
    assert next_run.choose_run(search).bit_count() == 4


@functools.cache
def soonest(suspect: int, others: int, acquitted: int, needless: int, runs: int) -> float:
    """Return in how many runs the suspect can be named, if any other culprit is named in `runs` whichever it is.

    In question are `suspect` (0 or 1) and `others`. Of the rest `acquitted` lie in a passing run, but in all failing
    ones too; `needless` in no passing run, but not in all failing ones: none may be left when a culprit is named.
    """
    if suspect + others <= 1 and not acquitted + needless:
        return 0
    if runs == 0:
        return math.inf
    best = math.inf
    choices = (range(suspect + 1), range(others + 1), range(acquitted + 1), range(needless + 1))
    for first, some, of_acquitted, of_needless in itertools.product(*choices):  # every run that there is
        gone = suspect + others - first - some
        fails = soonest(first, some, of_acquitted, needless + gone, runs - 1) if first + some else 0
        passes = soonest(suspect - first, others - some, acquitted + first + some, needless - of_needless, runs - 1)
        passes = passes if gone else 0
        best = min(best, 1 + (fails if first else passes) + (math.inf if math.inf in (fails, passes) else 0))
    return best


@pytest.mark.parametrize("count, possible", [(3, 3), (4, 4), (5, 3), (6, 4), (7, 4), (8, 5), (9, 3)])
def test_no_choice_of_runs_names_a_suspect_sooner_and_no_other_too_late(count: int, possible: int) -> None:
    after = math.ceil(math.log2(count)) + 1  # the first, as it was
    assert 1 + soonest(1, count - 1, 0, 0, after) == possible
    assert soonest(1, count - 1, 0, 0, after - 1) == math.inf
