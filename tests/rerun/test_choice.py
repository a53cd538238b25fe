from __future__ import annotations

import pytest

from ocrlab.rerun import choice, search


@pytest.mark.parametrize("count", [1, 5, 14])
def test_the_first_runs_are_as_it_was_until_it_has_failed_once(count: int) -> None:
    known = search.begin([1.0] * count)
    for _ in range(3):
        assert choice.choose(known) == known.whole
        search.learn(known, known.whole, False)
    search.learn(known, known.whole, True)
    assert known.flaky
    assert 0 <= choice.choose(known) <= known.whole


def test_the_second_run_halves_the_factors() -> None:
    known = search.begin([1.0] * 8)
    search.learn(known, known.whole, True)
    assert choice.choose(known).bit_count() == 4
