"""Which factors or samples make a program fail, in how many runs, with programs that are rules."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.bisect import bisect_job, bisect_summary, factors, sample_search
from ocrlab.debug.bisect.bisect_job import BisectJob, Limits
from ocrlab.debug.bisect.sample_search import SampleCulprits
from ocrlab.debug.bisect.search import OFTEN, Answer, Search
from ocrlab.records import Cause, Verdict

Program = Callable[[int], bool | None]  # None: it ends otherwise
LIMIT = 60


class RunsSpent(Exception):
    pass


def answer_of(count, program, suspicion=(), rate=None):
    """Return the answer of a search, undecided after LIMIT runs, and the search."""

    def perform(run: int) -> bool | None:
        if len(search.runs) >= LIMIT:
            raise RunsSpent
        return program(run)

    search = Search(count, perform, rate=rate, suspicion=suspicion)
    try:
        return search.find_factors(), search
    except RunsSpent:
        return Answer("undecided"), search


def needs(*indices: int) -> Callable[[int], bool]:
    return lambda run: all(run >> index & 1 for index in indices)


def offers(*indices: int) -> Callable[[int], bool]:
    return lambda run: any(run >> index & 1 for index in indices)


@pytest.mark.parametrize("count, most", [(1, 2), (2, 3), (3, 4), (8, 5), (13, 6)])
def test_a_single_culprit_takes_log2_runs_and_two(count: int, most: int) -> None:
    for culprit in range(count):
        answer, search = answer_of(count, needs(culprit))
        assert (answer.status, answer.kind, answer.items) == ("found", "all", (culprit,))
        assert search.runs[0] == (search.whole, True)
        assert len(search.runs) <= most


@pytest.mark.parametrize("kind, program", [("all", needs), ("any", offers)])
def test_a_pair_takes_twelve_runs_whatever_is_suspected(kind: str, program: Callable[..., Program]) -> None:
    dice = random.Random(2)
    for pair in itertools.combinations(range(8), 2):
        for suspicion in ([], dice.sample([6.0, 3.0, 2.0, 1.5, 1.0, 1.0, 1.0, 1.0], 8)):
            answer, search = answer_of(8, program(*pair), suspicion)
            assert (answer.kind, answer.items) == (kind, pair)
            assert len(search.runs) <= 12


def test_a_factor_with_any_of_two_others_is_not_called_a_pair() -> None:
    for single, *others in itertools.permutations(range(5), 3):
        either = offers(*others)
        answer, _ = answer_of(5, lambda run, single=single, either=either: needs(single)(run) and either(run))
        assert answer.status == "misfit" or answer.items == (single,)


def test_what_always_fails_and_what_never_fails_again() -> None:
    answer, search = answer_of(8, lambda run: True)
    assert (answer.status, answer.kind) == ("none", "always")
    assert (0, True) in search.runs and len(search.runs) <= 8
    assert answer_of(1, lambda run: True)[0].status == "none"
    answer, search = answer_of(8, lambda run: False)
    assert (answer.status, answer.kind) == ("never", "never")
    assert search.runs == [(0b11111111, False)] * OFTEN


def test_a_right_suspicion_saves_runs_and_a_wrong_suspicion_costs_none() -> None:
    suspicion = [1.0, 1.0, 1.0, 6.0, 1.0]
    assert len(answer_of(5, needs(3), suspicion)[1].runs) == 3
    assert max(len(answer_of(5, needs(culprit), suspicion)[1].runs) for culprit in (0, 1, 2, 4)) == 5
    flips = factors.parse_factors(
        [f"{name}=1:0" for name in "workers amp compile nhwc batch threads cudnn start".split()]
    )
    for start in factors.SUSPECTS:
        weights = factors.suspicion_weights(flips, Verdict(causes=[Cause(start, 1.0)]))
        for culprit in range(8):
            answer, search = answer_of(8, needs(culprit), weights)
            assert (answer.items, len(search.runs)) == ((culprit,), 5)


@pytest.mark.parametrize("rate", [pytest.param(0.3, marks=pytest.mark.slow), 0.5, 0.9])
def test_a_flaky_failure_is_blamed_wrongly_in_five_of_100_at_most(rate: float) -> None:
    dice, wrong, right = random.Random(0), 0, 0
    for _ in range(100):
        culprit = dice.randrange(8)
        answer, _search = answer_of(8, lambda run, culprit=culprit: bool(run >> culprit & 1) and dice.random() < rate)
        right += answer.items == (culprit,)
        wrong += answer.status in ("found", "none") and answer.items != (culprit,)
    assert wrong <= 5 + 2  # of so few draws
    assert right >= 60


def test_a_flaky_failure_takes_more_runs_and_gets_a_rate() -> None:
    dice = random.Random(1)
    answer, search = answer_of(4, lambda run: bool(run & 1) and dice.random() < 0.4)
    assert answer.items == (0,) and search.is_flaky
    assert len(search.runs) > 4
    assert 0.15 < search.failure_rate < 0.8
    assert search.probability(answer) > 0.9


def bug(*needed: int, second: int, breaking: bool = False) -> Program:
    """Return a program that fails with all of `needed`; else, or if `second` is flipped, it ends otherwise (None)."""

    def ended(run: int) -> bool | None:
        fails = all(run >> single & 1 for single in needed)
        if breaking:
            return fails if run >> second & 1 else None
        return True if fails else None if run >> second & 1 else False

    return ended


@pytest.mark.parametrize("breaking", [False, True])
@pytest.mark.parametrize(("count", "size"), [(2, 1), (3, 1), (4, 1), (8, 1), (3, 2), (4, 2), (8, 2)])
def test_what_fails_otherwise_once_the_first_bug_is_gone_hides_nothing(count: int, size: int, breaking: bool) -> None:
    """The second bug is another factor's, or its flip breaks the program; each culprit beside each of these."""
    for chosen in list(itertools.permutations(range(count), size + 1))[:: 1 if size == 1 else 7]:
        answer, search = answer_of(count, bug(*chosen[:-1], second=chosen[-1], breaking=breaking))
        assert (answer.kind, set(answer.items)) == ("all", set(chosen[:-1])), chosen
        assert len(search.runs) <= (16 if size == 1 else 24)
        excluded = search.ended(None)
        assert len(set(excluded)) == len(excluded), "a run that ends otherwise is not repeated"


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("beside", [False, True])
def test_a_flip_that_breaks_the_program_beside_the_culprit_only_hides_nothing(count: int, beside: bool) -> None:
    for culprit, broken in itertools.permutations(range(count), 2):

        def program(run: int, culprit: int = culprit, broken: int = broken) -> bool | None:
            breaks = not run >> broken & 1 and bool(run >> culprit & 1) == beside
            return None if breaks else bool(run >> culprit & 1)

        answer, search = answer_of(count, program)
        assert (answer.kind, answer.items) == ("all", (culprit,))
        assert len(search.runs) <= 20


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
    names = [f"p{n}" for n in range(12)]
    assert bisect_summary.describe_samples(culprits, names, "page").culprit == "no page in particular"
    assert look(12, lambda chosen: len(chosen) == 12).ending == "whole"
    assert look(1, bool).ending == "whole"


@pytest.mark.parametrize(
    "count, fails", [(33, lambda n: n % 4 == 1), (35, lambda n: n % 4 == 3), (33, lambda n: n >= 8)]
)
def test_where_the_number_of_samples_decides_none_is_blamed(look, count, fails):
    culprits = look(count, lambda chosen: fails(len(chosen)))
    assert culprits.ending == "number"
    verdict = bisect_summary.describe_samples(culprits, [f"p{n}" for n in range(count)], "page")
    assert (verdict.culprit, verdict.fix) == ("no page in particular", "")
    assert "how many there are decides" in verdict.evidence


@pytest.mark.parametrize("culprit", range(0, 32, 3))
def test_that_the_number_does_not_decide_costs_no_more_runs_than_announced(look, culprit):
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


@pytest.mark.parametrize("rate, prior_rate", [(0.3, 0.3), (0.5, 0.98), (0.7, 0.98), (0.9, 0.98)])
def test_a_sample_that_fails_now_and_then_is_seldom_called_a_group(look, rate, prior_rate):
    dice = random.Random(0)
    wrong = sum(
        look(16, lambda chosen: 11 in chosen and dice.random() < rate, prior_rate).groups != [[11]] for _ in range(100)
    )
    assert wrong <= 5
