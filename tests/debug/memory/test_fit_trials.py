"""What a training of a few steps in a child says about a batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ocrlab.debug.memory import fit_trials
from ocrlab.errors import RunError

ENDED = SimpleNamespace(fingerprint="", description="passed", seconds=1.0)


def answer(**more: Any) -> dict[str, Any]:
    whole = {"finished": True, "over": None, "error": None, "phase": "final", "device": {}, "crops_a_second": 2.0}
    return {**whole, "peaks": {"check": 100, "train": 900, "validate": 905}, **more}


def test_a_child_that_was_done_says_its_peak_and_where() -> None:
    done = fit_trials.judge_trial(4, {}, answer(), ENDED, 1000, 1.0, 0.05)
    assert (done.fits, done.peak, done.phase) == (True, 905, "train")
    assert not fit_trials.judge_trial(4, {}, answer(), ENDED, 904, 1.0, 0.05).fits


@pytest.mark.parametrize(
    "ended", ["host.oom_kill", "host.alloc_fail", "gpumem.capacity", "gpumem.fragmentation", "SIGKILL"]
)
def test_a_child_that_memory_killed_does_not_fit(ended: str) -> None:
    how = SimpleNamespace(fingerprint=ended, description=ended, seconds=1.0)
    done = fit_trials.judge_trial(4, {}, answer(finished=False, phase="train", held=950), how, 1000, 1.0, 0.05)
    assert (done.fits, done.measured) == (False, True)


@pytest.mark.parametrize("ended", ["host.oom_kill", "loader.worker_killed", "SIGKILL"])
@pytest.mark.parametrize("held", [None, 0, 817])
def test_a_child_that_was_killed_below_its_limit_is_not_measured(ended: str, held: int | None) -> None:
    how = SimpleNamespace(fingerprint=ended, description=ended, seconds=1.0)
    child = None if held is None else answer(finished=False, held=held)
    done = fit_trials.judge_trial(4, {}, child, how, 1000, 1.0, 0.05)
    assert (done.fits, done.measured) == (False, False)
    assert "not measured" in fit_trials.line(done) and "does not fit" not in fit_trials.line(done)


def test_a_child_that_ended_itself_on_a_full_machine_is_not_measured() -> None:
    done = fit_trials.judge_trial(4, {}, answer(finished=False, held=400, crowded=True), ENDED, 1000, 1.0, 0.05)
    assert (done.fits, done.measured) == (False, False)


def test_a_child_that_ended_itself_at_the_limit_does_not_fit() -> None:
    over = answer(finished=False, over={"phase": "train", "held": 990})
    done = fit_trials.judge_trial(4, {}, over, ENDED, 1000, 1.0, 0.05)
    assert (done.fits, done.peak, done.phase) == (False, 990, "train")


@pytest.mark.parametrize("what", ["over its time", "hang"])
def test_a_child_that_is_too_slow_does_not_fit_and_is_not_called_out_of_memory(tmp_path: Path, what: str) -> None:
    how = SimpleNamespace(fingerprint=what, description="not done", seconds=1.0)
    done = fit_trials.judge_trial(5, {}, answer(finished=False), how, 1000, 120.0, 0.05)
    assert (done.fits, done.message, done.measured) == (False, "not done in 120 s", False)
    assert "does not fit" not in fit_trials.line(done)


@pytest.mark.parametrize("what", ["exit status 1", "data.broken"])
def test_what_fails_of_another_cause_is_no_answer(what: str) -> None:
    how = SimpleNamespace(fingerprint=what, description="DataError: no pages", seconds=1.0)
    with pytest.raises(RunError, match="no pages"):
        fit_trials.judge_trial(4, {}, answer(finished=False, error=None), how, 1000, 1.0, 0.05)


def test_on_a_device_what_others_hold_is_not_ours() -> None:
    device = {"total": 1000, "outside": 300, "reserved": 660, "train": 600, "validate": 100}
    done = fit_trials.judge_trial(4, {}, answer(device=device), ENDED, 10**9, 1.0, 0.05)
    assert (done.fits, done.peak, done.phase) == (True, 660, "train")
    assert not fit_trials.judge_trial(4, {}, answer(device={**device, "reserved": 670}), ENDED, 10**9, 1.0, 0.05).fits
