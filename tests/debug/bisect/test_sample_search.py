from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.bisect import bisect_job, bisect_summary, sample_search, sample_summary
from ocrlab.debug.bisect.bisect_job import Hunt, Limits
from ocrlab.debug.bisect.sample_search import Guilt

Fails = Callable[[set[int]], bool]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Guilt]:
    """Return a function that looks for the samples with which a rule fails, with no program."""

    def run(count: int, fails: Fails, rate: float = 1.0, runs: int = 200) -> Guilt:
        job = Hunt([], [], lambda *_: ([], {}), tmp_path, Limits(runs=runs), "key")

        def made(job: Hunt, run: int, old: list[Any], pages: list[int]) -> dict[str, Any]:
            if job.used >= job.limits.runs:
                raise bisect_job.Spent("runs")
            job.used += 1
            return {"ended": "failed" if fails(set(pages)) else "passed"}

        monkeypatch.setattr(sample_search, "made", made)
        return sample_search.pages(job, count, rate, lambda row: None)

    return run


def test_one_two_and_a_pair(look: Callable[..., Guilt]) -> None:
    assert look(30, lambda seen: 13 in seen).groups == [[13]]
    two = look(30, lambda seen: bool(seen & {3, 21}))
    assert (two.groups, two.ending) == ([[3], [21]], "found")
    assert look(30, lambda seen: {4, 22} <= seen).groups == [[4, 22]]


def test_where_every_sample_fails_none_is_blamed(look: Callable[..., Guilt]) -> None:
    found = look(12, bool)
    assert (found.ending, len(found.groups)) == ("every", 3)
    assert sample_summary.words(found, [f"p{n}" for n in range(12)], "page").who == "no page in particular"
    assert look(12, lambda seen: len(seen) == 12).ending == "whole"
    assert look(1, bool).ending == "whole"


@pytest.mark.parametrize(
    "count, fails", [(33, lambda n: n % 4 == 1), (35, lambda n: n % 4 == 3), (33, lambda n: n >= 8)]
)
def test_where_the_number_of_samples_decides_none_is_blamed(
    look: Callable[..., Guilt], count: int, fails: Callable[[int], bool]
) -> None:
    found = look(count, lambda seen: fails(len(seen)))
    assert found.ending == "number"
    told = sample_summary.words(found, [f"p{n}" for n in range(count)], "page")
    assert (told.who, told.cure) == ("no page in particular", "")
    assert "how many there are decides" in told.how


@pytest.mark.parametrize("guilty_one", range(0, 32, 3))
def test_that_the_number_does_not_decide_costs_no_more_runs_than_announced(
    look: Callable[..., Guilt], guilty_one: int
) -> None:
    runs: list[bool] = []

    def fails(seen: set[int]) -> bool:
        runs.append(guilty_one in seen)
        return runs[-1]

    assert look(32, fails).groups == [[guilty_one]]
    assert len(runs) + 1 <= bisect_summary.halvings(32), "the first is the one as it was"


def test_one_that_needs_a_full_batch_is_not_called_a_group(look: Callable[..., Guilt]) -> None:
    found = look(32, lambda seen: 17 in seen and len(seen) >= 4)
    assert (found.groups, found.company) == ([[17]], True)
    told = sample_summary.words(found, [f"p{n}" for n in range(32)], "page")
    assert (told.who, told.cure) == ("the page p17", "leave out page p17")
    assert "not alone" in told.how


def test_what_is_left_where_the_runs_are_spent_is_not_called_guilty_as_a_whole(look: Callable[..., Guilt]) -> None:
    found = look(32, lambda seen: 17 in seen, runs=3)
    assert found.ending == "spent"
    assert sample_summary.words(found, [str(n) for n in range(32)], "line").who.startswith(
        "one or more of 8 lines (16,"
    )


@pytest.mark.parametrize("rate, known", [(0.3, 0.3), (0.5, 0.98), (0.7, 0.98), (0.9, 0.98)])
def test_a_sample_that_fails_now_and_then_is_seldom_called_a_group(
    look: Callable[..., Guilt], rate: float, known: float
) -> None:
    dice = random.Random(0)
    wrong = sum(look(16, lambda seen: 11 in seen and dice.random() < rate, known).groups != [[11]] for _ in range(100))
    assert wrong <= 5
