from __future__ import annotations

import pytest

from ocrlab.debug.bisect import quickxplain


def tried(log: list[list[int]], *groups: set[int]):
    def fails(chosen: list[int]) -> bool:
        log.append(chosen)
        return any(group <= set(chosen) for group in groups)

    return fails


@pytest.mark.parametrize("bad", [{0}, {7}, {63}, {3, 40}, {0, 63}, {10, 11, 50}])
def test_what_fails_alone_remains(bad: set[int]) -> None:
    log: list[list[int]] = []
    assert set(quickxplain.smallest(range(64), tried(log, bad))) == bad


def test_one_of_a_thousand_takes_twenty_runs_at_most() -> None:
    log: list[list[int]] = []
    assert quickxplain.smallest(range(1000), tried(log, {617})) == [617]
    assert len(log) <= 20


def test_a_right_hint_is_short_and_a_wrong_one_costs_one_run() -> None:
    log: list[list[int]] = []
    assert quickxplain.smallest(range(1000), tried(log, {617}), hint=[615, 616, 617, 618]) == [617]
    assert len(log) <= 5
    other: list[list[int]] = []
    assert quickxplain.smallest(range(64), tried(other, {3}), hint=[40, 41]) == [3]
    assert other[0] == [40, 41]


def test_a_single_item_needs_no_run() -> None:
    log: list[list[int]] = []
    assert quickxplain.smallest(["only"], tried(log, set())) == ["only"]
    assert log == []


@pytest.mark.parametrize("bad", [{0, 29}, {14, 15}, {3, 9, 27}])
def test_what_fails_only_together_takes_few_runs(bad: set[int]) -> None:
    log: list[list[int]] = []
    assert set(quickxplain.smallest(range(30), tried(log, bad))) == bad
    assert len(log) <= 2 + len(bad) * 6


def test_halves_are_tried_anew_while_nobody_is_sure() -> None:
    log: list[list[int]] = []
    doubts = iter([False, True])
    quickxplain.smallest([0, 1], tried(log), sure=lambda left: next(doubts))
    assert log[:4] == [[0], [1]] * 2
