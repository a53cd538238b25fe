"""The largest batch that fits: what a child's training says, and the search, with children that are played."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ocrlab.cli import memory_fit
from ocrlab.config.schema import Config
from ocrlab.debug.memory import fit_trials, largest_batch, memory_limit
from ocrlab.debug.memory.fit_trials import MemoryTrial, TrialRunner
from ocrlab.debug.memory.memory_limit import Limit
from ocrlab.debug.trials import trial
from ocrlab.debug.trials.trial import RunResult
from ocrlab.errors import RunError

MIB = 1 << 20


class Played(TrialRunner):
    """Children whose peak is `of(batch)` bytes, and `grown` more where they train for longer."""

    of: Callable[[int], int]
    grown: int = 0
    lost: ClassVar[dict[tuple[int, bool], dict[str, Any]]] = {}  # what is not measured, and its answer

    def attempt(self, batch: int, changes: Any = None, *, long: bool = False) -> MemoryTrial:
        peak = self.of(batch) + long * self.grown
        if (batch, long) in self.lost:
            self.tries.append(MemoryTrial(batch, False, long=long, measured=False, answer=self.lost[batch, long]))
            return self.tries[-1]
        fits = peak <= self.usable
        message = "" if fits else "ended"
        done = MemoryTrial(
            batch, fits, peak if fits else self.usable, "train", message, changes=changes or {}, long=long
        )
        self.tries.append(done)
        return done


def room(tmp_path: Path, of: Callable[[int], int], limit: int = 1000 * MIB, margin: float = 0.05) -> Played:
    runner = Played(Config(), tmp_path, Limit(limit, "resident", "test"), margin, time.monotonic() + 60, lambda _: None)
    runner.of = of
    return runner


GUESS = {"offset": 200 * MIB, "slope": 50 * MIB, "space": 0}


@pytest.mark.parametrize("slope", [1, 30, 90, 700])
def test_the_largest_batch_however_wrong_the_guess(tmp_path: Path, slope: int) -> None:
    played = room(tmp_path, lambda batch: (200 + slope * batch) * MIB)
    batch, proven = largest_batch.search(played, GUESS, 64)
    right = min(64, (950 - 200) // slope)
    if proven == "close":
        assert batch <= right and 200 + slope * batch >= 900
    else:
        assert (batch, proven) == (right, "most" if right == 64 else "batch + 1 fails")
    assert len(played.tries) <= 5


def test_a_batch_that_was_not_measured_is_no_batch_that_does_not_fit(tmp_path: Path) -> None:
    played = room(tmp_path, lambda batch: (200 + 5 * batch) * MIB)
    played.lost = {(9, False): {}}
    assert largest_batch.search(played, GUESS, 4096, 9) == (0, "not measured")
    played.lost = {(23, False): {}}
    assert largest_batch.search(played, GUESS, 4096, 9) == (9, "not measured")


@pytest.mark.parametrize(("seconds", "right"), [(70.0, (9, "time")), (30.0, (12, "time"))])
def test_nothing_is_begun_that_takes_longer_than_the_time_that_is_left(tmp_path, seconds, right):
    class Slow(Played):
        def attempt(self, batch: int, changes: Any = None, *, long: bool = False) -> MemoryTrial:
            done = replace(super().attempt(batch), seconds=seconds, crops_a_second=1.05)
            self.tries[-1] = done
            self.end -= 31 if len(self.tries) > 1 else 0
            return done

    played = Slow(
        *(getattr(room(tmp_path, int), name) for name in ("config", "folder", "limit", "margin", "end", "report"))
    )
    played.of = lambda batch: (200 + 5 * batch) * MIB
    assert largest_batch.search(played, {**GUESS, "slope": 5 * MIB}, 4096, 9) == right


@pytest.mark.parametrize(("kind", "why"), [("host.oom_kill", "not measured"), ("slow", "time")])
def test_an_estimate_that_others_or_the_clock_ended_is_not_measured(tmp_path, monkeypatch, kind, why):
    ended = RunResult(trial.SLOW if kind == "slow" else kind, "it ended", 1.0)
    monkeypatch.setattr(TrialRunner, "child", lambda *_arguments: (None, ended))
    monkeypatch.setattr(TrialRunner, "wait_for_memory", lambda _room: None)
    limit = Limit(1000 * MIB, "resident", "test")
    done = largest_batch.fit(Config(), tmp_path, limit=limit, margin=0.1, seconds=60)
    assert (done.batch, done.proven) == (0, why)
    assert memory_fit.record(done)["status"] == "not measured" and "Not measured: " in memory_fit.text(done)


@pytest.mark.parametrize(("grown", "right"), [(40, 23), (190, 18), (740, 0)])
def test_a_heap_that_grows_in_a_longer_training_makes_the_batch_smaller(tmp_path: Path, grown: int, right: int) -> None:
    played = room(tmp_path, lambda batch: (200 + 30 * batch) * MIB)
    played.grown = grown * MIB
    assert largest_batch.verify_longer(played, 24, "close") == (right, "batch + 1 fails")
    assert all(trial.long for trial in played.tries)
    assert len(played.tries) <= 8


@pytest.mark.parametrize(("batch", "wanted", "accumulate", "words"), [
    (6, 16, 1, ["batch_size=4", "trainer.accumulate_grad_batches=4"]),
    (99, 4, 3, ["batch_size=99", "trainer.accumulate_grad_batches=1"]),
    (0, 4, 1, []),
])  # fmt: skip
def test_the_effective_batch_stays(batch: int, wanted: int, accumulate: int, words: list[str]) -> None:
    config = Config(batch_size=wanted, trainer={"accumulate_grad_batches": accumulate})
    assert largest_batch.as_settings(config, batch) == words


def test_every_remedy_can_be_set() -> None:
    from ocrlab.config import schema as configs
    from ocrlab.config.fields import flat

    settings = {**flat(Config(weights="receipts")), "trainer.precision": "fp32", "runtime.workers": 2}
    assert len(largest_batch.possible_changes(settings, "final", cuda=False)) == 8
    for change in largest_batch.possible_changes(settings, "final", cuda=False):
        assert configs.differences(Config(runtime={"workers": 2}), configs.apply(Config(), change))


class Changed(Played):
    """Children that hold less for each change: MiB by its name."""

    saved: dict[str, int]

    def attempt(self, batch: int, changes: Any = None, *, long: bool = False) -> MemoryTrial:
        whole = self.of
        self.of = lambda size: whole(size) - sum(self.saved.get(name, 0) for name in changes or {}) * MIB
        try:
            return super().attempt(batch, changes, long=long)
        finally:
            self.of = whole


@pytest.mark.parametrize(("saved", "fewest"), [
    ({"runtime.cache": 600, "crop": 600, "width": 10}, {"runtime.cache", "crop"}),
    ({"runtime.cache": 400, "crop": 400, "width": 400}, {"runtime.cache", "crop", "width"}),
    ({"runtime.cache": 600, "crop": 600, "width": 600}, {"runtime.cache", "crop"}),  # the width costs more accuracy
])  # fmt: skip
def test_the_fewest_remedies_that_are_enough_come_first(tmp_path, saved, fewest):
    limit = Limit(1000 * MIB, "resident", "test")
    played = Changed(Config(), tmp_path, limit, 0.05, time.monotonic() + 60, lambda _: None)
    played.of, played.saved = (lambda batch: 2000 * MIB), saved
    first, *others = largest_batch.try_changes(played, played.attempt(1))
    assert first.fits
    assert set(first.changes) == fewest
    assert len(others) <= 8


def test_the_limit_of_a_group_is_what_others_leave(tmp_path: Path) -> None:
    def machine(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    root = machine(
        {
            "proc/self/cgroup": "0::/job\n",
            "proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n",
            "sys/fs/cgroup/cgroup.controllers": "memory\n",
            "sys/fs/cgroup/job/memory.max": str(1000 * MIB),
            "sys/fs/cgroup/job/memory.current": str(300 * MIB),
            "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {150 * MIB}\nactive_file {50 * MIB}\n",
        }
    )
    limit = memory_limit.find_limit(None, root=root)
    assert (limit.bytes, limit.kind) == (900 * MIB, "resident")
    assert "version 2" in limit.source
    assert memory_limit.find_limit(0.5, root=root).chosen
    assert memory_limit.find_limit(100, root=root).bytes == 900 * MIB


ENDED = SimpleNamespace(fingerprint="", description="passed", seconds=1.0)


def answer(**more: Any) -> dict[str, Any]:
    whole = {"finished": True, "over": None, "error": None, "phase": "final", "device": {}, "crops_a_second": 2.0}
    return {**whole, "peaks": {"check": 100, "train": 900, "validate": 905}, **more}


def test_a_child_that_was_done_says_its_peak_and_where() -> None:
    done = fit_trials.judge_trial(4, {}, answer(), ENDED, 1000, 1.0, 0.05)
    assert (done.fits, done.peak, done.phase) == (True, 905, "train")
    assert not fit_trials.judge_trial(4, {}, answer(), ENDED, 904, 1.0, 0.05).fits


@pytest.mark.parametrize("ended", ["host.oom_kill", "host.alloc_fail", "gpumem.capacity"])
def test_a_child_that_memory_killed_does_not_fit(ended: str) -> None:
    how = SimpleNamespace(fingerprint=ended, description=ended, seconds=1.0)
    done = fit_trials.judge_trial(4, {}, answer(finished=False, phase="train", held=950), how, 1000, 1.0, 0.05)
    assert (done.fits, done.measured) == (False, True)


@pytest.mark.parametrize(("ended", "megabytes"), [("host.oom_kill", 817), ("SIGKILL", None)])
def test_a_child_that_was_killed_below_its_limit_is_not_measured(ended: str, megabytes: int | None) -> None:
    how = SimpleNamespace(fingerprint=ended, description=ended, seconds=1.0)
    child = None if megabytes is None else answer(finished=False, held=megabytes)
    done = fit_trials.judge_trial(4, {}, child, how, 1000, 1.0, 0.05)
    assert (done.fits, done.measured) == (False, False)
    assert "not measured" in fit_trials.line(done) and "does not fit" not in fit_trials.line(done)


def test_a_child_that_is_too_slow_does_not_fit_and_is_not_called_out_of_memory() -> None:
    how = SimpleNamespace(fingerprint=trial.SLOW, description="not done", seconds=1.0)
    done = fit_trials.judge_trial(5, {}, answer(finished=False), how, 1000, 120.0, 0.05)
    assert (done.fits, done.message, done.measured) == (False, "not done in 120 s", False)
    assert "does not fit" not in fit_trials.line(done)


def test_what_fails_of_another_cause_is_no_answer() -> None:
    how = SimpleNamespace(fingerprint="data.broken", description="DataError: no pages", seconds=1.0)
    with pytest.raises(RunError, match="no pages"):
        fit_trials.judge_trial(4, {}, answer(finished=False, error=None), how, 1000, 1.0, 0.05)
