from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.bisect import bisect_job, bisect_summary, sample_search
from ocrlab.debug.bisect.bisect_job import BisectJob, Limits
from ocrlab.debug.bisect.sample_search import SampleCulprits
from ocrlab.debug.bisect.search import Search

Fails = Callable[[set[int]], bool]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SampleCulprits]:
    """Return a function that looks for the samples with which a rule fails, with no program."""

    def run(count: int, fails: Fails, rate: float = 1.0, runs: int = 200) -> SampleCulprits:
        job = BisectJob([], [], lambda *_: ([], {}), tmp_path, Limits(runs=runs), "key")

        def perform_run(job: BisectJob, run: int, old: list[Any], pages: list[int]) -> dict[str, Any]:
            if job.used >= job.limits.runs:
                raise bisect_job.LimitReached("runs")
            job.used += 1
            return {"ended": "failed" if fails(set(pages)) else "passed"}

        monkeypatch.setattr(sample_search, "perform_run", perform_run)
        return sample_search.find_culprits(job, count, rate, lambda row: None)

    return run


def test_single_culprits_and_a_pair(look: Callable[..., SampleCulprits]) -> None:
    assert look(30, lambda chosen: 13 in chosen).groups == [[13]]
    two = look(30, lambda chosen: bool(chosen & {3, 21}))
    assert (two.groups, two.ending) == ([[3], [21]], "found")
    assert look(30, lambda chosen: {4, 22} <= chosen).groups == [[4, 22]]


def test_where_every_sample_fails_none_is_blamed(look: Callable[..., SampleCulprits]) -> None:
    culprits = look(12, bool)
    assert (culprits.ending, len(culprits.groups)) == ("every", 3)
    assert (
        bisect_summary.describe_samples(culprits, [f"p{n}" for n in range(12)], "page").culprit
        == "no page in particular"
    )
    assert look(12, lambda chosen: len(chosen) == 12).ending == "whole"
    assert look(1, bool).ending == "whole"


@pytest.mark.parametrize(
    "count, fails", [(33, lambda n: n % 4 == 1), (35, lambda n: n % 4 == 3), (33, lambda n: n >= 8)]
)
def test_where_the_number_of_samples_decides_none_is_blamed(
    look: Callable[..., SampleCulprits], count: int, fails: Callable[[int], bool]
) -> None:
    culprits = look(count, lambda chosen: fails(len(chosen)))
    assert culprits.ending == "number"
    verdict = bisect_summary.describe_samples(culprits, [f"p{n}" for n in range(count)], "page")
    assert (verdict.culprit, verdict.fix) == ("no page in particular", "")
    assert "how many there are decides" in verdict.evidence


@pytest.mark.parametrize("culprit", range(0, 32, 3))
def test_that_the_number_does_not_decide_costs_no_more_runs_than_announced(
    look: Callable[..., SampleCulprits], culprit: int
) -> None:
    runs: list[bool] = []

    def fails(chosen: set[int]) -> bool:
        runs.append(culprit in chosen)
        return runs[-1]

    assert look(32, fails).groups == [[culprit]]
    assert len(runs) + 1 <= bisect_summary.halvings(32), "the first is the one as it was"


def test_a_culprit_that_needs_a_full_batch_is_not_called_a_group(look: Callable[..., SampleCulprits]) -> None:
    culprits = look(32, lambda chosen: 17 in chosen and len(chosen) >= 4)
    assert (culprits.groups, culprits.company) == ([[17]], True)
    verdict = bisect_summary.describe_samples(culprits, [f"p{n}" for n in range(32)], "page")
    assert (verdict.culprit, verdict.fix) == ("the page p17", "leave out page p17")
    assert "not alone" in verdict.evidence


def test_a_part_left_when_the_runs_are_spent_may_hold_several_culprits(
    look: Callable[..., SampleCulprits],
) -> None:
    culprits = look(32, lambda chosen: 17 in chosen, runs=3)
    assert culprits.ending == "spent"
    assert bisect_summary.describe_samples(culprits, [str(n) for n in range(32)], "line").culprit.startswith(
        "one or more of 4 lines (16,"
    )


@pytest.mark.parametrize("rate, prior_rate", [(0.3, 0.3), (0.5, 0.98), (0.7, 0.98), (0.9, 0.98)])
def test_a_sample_that_fails_now_and_then_is_seldom_called_a_group(
    look: Callable[..., SampleCulprits], rate: float, prior_rate: float
) -> None:
    dice = random.Random(0)
    wrong = sum(
        look(16, lambda chosen: 11 in chosen and dice.random() < rate, prior_rate).groups != [[11]] for _ in range(100)
    )
    assert wrong <= 5


def smallest(count: int, *groups: set[int], hint: set[int] = frozenset()) -> tuple[list[int], int]:  # type: ignore[assignment]
    """Return the smallest failing part of some items of which any of the groups fails, and the runs that it took."""
    log: list[int] = []

    def perform(items: int) -> bool:
        log.append(items)
        return any(group <= set(sample_search.numbers(items)) for group in groups)

    search = Search(count, perform)
    search.runs.append((search.whole, True))
    if hint:
        search.fails(sum(1 << index for index in hint))
    return sample_search.numbers(search.find_smallest(search.whole)), len(log)


@pytest.mark.parametrize("bad", [{0}, {7}, {63}, {3, 40}, {0, 63}, {10, 11, 50}])
def test_what_fails_alone_or_together_remains(bad: set[int]) -> None:
    culprits, runs = smallest(64, bad)
    assert set(culprits) == bad
    assert runs <= 8 + 8 * (len(bad) - 1) * 2


def test_a_culprit_of_a_thousand_takes_eleven_runs_and_less_with_a_right_hint() -> None:
    assert smallest(1000, {617})[0] == [617]
    assert smallest(1000, {617})[1] <= 11
    assert smallest(1000, {617}, hint={615, 616, 617, 618})[1] <= 4
    culprits, runs = smallest(64, {3}, hint={40, 41})
    assert culprits == [3] and runs <= 8


def test_a_single_item_needs_no_run() -> None:
    assert smallest(1, {0}) == ([0], 0)
