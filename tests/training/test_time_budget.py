"""A training that has so many minutes: it makes fewer steps, and its learning rate still comes down to nothing."""

from __future__ import annotations

import csv
import itertools
import re
from types import SimpleNamespace

import pytest

from ocrlab.config import schema as configs
from ocrlab.inference import checkpoint
from ocrlab.training import loop, time_budget
from ocrlab.training.time_budget import make_budget, steps_that_fit
from tests.training.test_loop import pages, tiny  # noqa: F401  # a fixture


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [(1e9, 800), (100.0, 800), (99.9, 799), (60.0, 480), (4.9, 39), (0.0, 30), (-5.0, 30)],
)
def test_as_many_steps_as_fit_never_more_than_asked_nor_fewer_than_done(seconds, steps):
    whole = 100.0 / (800 - 30)
    planned = steps_that_fit(800, 30, seconds, whole, 0.0, 200)
    assert abs(planned - (30 + min(770, max(0.0, seconds) / whole))) < 1
    assert abs(planned - steps) <= 30 or seconds < 99


def test_validations_are_paid_for():
    assert steps_that_fit(100, 0, 100.0, 1.0, 0.0, 10) == 100
    assert steps_that_fit(100, 0, 100.0, 1.0, 10.0, 10) == 50  # 50 steps and 5 validations
    assert steps_that_fit(100, 0, 109.9, 1.0, 10.0, 10) == 50  # one step more needs a sixth one, at its end
    assert steps_that_fit(100, 0, 111.0, 1.0, 10.0, 10) == 51


def test_the_schedule_comes_to_its_end_in_the_time_there_is(pages, tmp_path, monkeypatch):  # noqa: F811
    """On a clock on which each step takes a second, so that the load of this machine changes no count."""
    clock = itertools.count()
    monkeypatch.setattr(time_budget, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    events = []
    asked = tiny(pages, tmp_path, "trainer.max_steps=100000", "trainer.val_every=100000", "trainer.max_minutes=2")
    result = loop.fit(asked, progress=events.append)
    text = next(e["text"] for e in events if "max_minutes" in e.get("text", ""))
    planned = int(re.search(r"allows (\d+) of 100000 steps of 1.00 s", text)[1])
    assert 0.9 * 120 < planned <= 0.95 * 120
    assert configs.of_run(result.folder).trainer.max_steps == planned
    assert int(result.metrics["steps"]) == planned
    rows = list(csv.DictReader((result.folder / "metrics.csv").open()))
    rates = [float(row["lr"]) for row in rows if row["lr"]]
    assert rates[-1] < 0.01 * max(rates)
    last = checkpoint.load(result.folder / "checkpoints" / "last.ckpt")
    assert last["ocrlab"]["step"] == planned
    assert last["ocrlab"]["config"]["trainer"]["max_steps"] == planned


def test_the_time_limit_holds_whatever_was_planned(pages, tmp_path, monkeypatch):  # noqa: F811
    """Other work may come after the plan: then the steps end with the minutes."""
    monkeypatch.setattr(time_budget, "steps_that_fit", lambda wanted, *_: wanted)
    result = loop.fit(tiny(pages, tmp_path, "trainer.max_steps=100000", "trainer.max_minutes=0.1"))
    assert 1 < result.metrics["steps"] < 100000


@pytest.mark.parametrize(
    ("warmup", "begun", "after"), [(500, 0, 29), (500, 28, 29), (40, 20, 19), (30, 28, 1), (1, 0, 1)]
)
def test_a_run_that_goes_on_is_planned_before_its_warm_up_ends(warmup, begun, after, tmp_path):
    config = configs.load(overrides=[f"optim.warmup_steps={warmup}", "trainer.max_minutes=1"])
    budget = make_budget(config, None, print, None, begun)
    assert budget.times == after + 1


def test_what_was_planned_or_has_no_limit_is_not_planned():
    config = configs.load(overrides=["optim.warmup_steps=500", "trainer.max_minutes=1"])
    assert make_budget(config, None, print, None, 29) is None
    config.trainer.max_minutes = None
    assert make_budget(config, None, print, None, 0) is None
