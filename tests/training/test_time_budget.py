"""A training that has so many minutes; and one whose loss is NaN."""

import csv
import itertools
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ocrlab.config import schema as configs
from ocrlab.errors import RunError
from ocrlab.inference import checkpoint
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training import loop, time_budget
from ocrlab.training.run_callback import NonFiniteLosses
from ocrlab.training.time_budget import make_budget, steps_that_fit
from tests.training.test_loop import (  # noqa: F401  # a fixture
    pages,
    stopped,
    tiny,
)


@pytest.mark.parametrize(
    ("seconds", "steps"), [(1e9, 800), (100.0, 800), (99.9, 799), (60.0, 480), (4.9, 39), (0.0, 30), (-5.0, 30)]
)
def test_as_many_steps_as_fit_never_more_than_asked_nor_fewer_than_done(seconds, steps):
    whole = 100.0 / (800 - 30)
    planned = steps_that_fit(800, 30, seconds, whole, 0.0, 200)
    assert abs(planned - (30 + min(770, max(0.0, seconds) / whole))) < 1
    assert abs(planned - steps) <= 30 or seconds < 99


def test_the_schedule_comes_to_its_end_in_the_time_there_is(pages, tmp_path, monkeypatch):  # noqa: F811
    """On a clock on which each step takes a second, so that the load of this machine changes no count."""
    clock = itertools.count()
    monkeypatch.setattr(time_budget, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    events = []
    asked = tiny(pages, tmp_path, "trainer.max_steps=100000", "trainer.val_every=100000", "trainer.max_minutes=1")
    result = loop.fit(asked, progress=events.append)
    text = next(e["text"] for e in events if "max_minutes" in e.get("text", ""))
    planned = int(re.search(r"allows (\d+) of 100000 steps of 1.00 s", text)[1])
    assert 0.9 * 60 <= planned <= 0.95 * 60
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
    result = loop.fit(tiny(pages, tmp_path, "trainer.max_steps=100000", "trainer.max_minutes=0.03"))
    assert 1 < result.metrics["steps"] < 100000


@pytest.mark.parametrize(
    ("warmup", "begun", "after"), [(500, 0, 29), (500, 28, 29), (40, 20, 19), (30, 28, 1), (1, 0, 1)]
)
def test_a_run_that_goes_on_is_planned_before_its_warm_up_ends(warmup, begun, after, tmp_path):
    config = configs.load(overrides=[f"optim.warmup_steps={warmup}", "trainer.max_minutes=1"])
    budget = make_budget(config, None, print, None, begun)
    assert budget.times == after + 1


FINE, WRONG = torch.tensor(1.0), torch.tensor(float("nan"))


def test_each_loss_that_is_not_finite_is_counted_with_its_pages():
    numbers = NonFiniteLosses(Ranks())
    assert not numbers.see([FINE, FINE], [["a"], ["b"]], 2)
    assert numbers.see([FINE, WRONG], [["c"], ["d", "e"]], 4)
    assert not numbers.see([WRONG / 1, torch.tensor(float("inf"))], [[], ["d"]], 6), (
        "only the first is reported at once"
    )
    assert numbers.count == 3
    assert str(numbers).endswith("of 3 of 6 micro-batches was NaN or infinity, first seen at step 4; their pages: d, e")
    numbers.judge()


def test_weights_that_are_not_finite_end_the_training():
    numbers, model = NonFiniteLosses(Ranks()), nn.Linear(2, 2)
    numbers.see([WRONG], [["bad.jpg"]], 1)
    numbers.check(model, 1)
    model.weight.data[0, 0] = float("inf")
    with pytest.raises(RunError, match=r"step 1; the loss of 1 of 1 .* bad\.jpg"):
        numbers.check(model, 1)


def test_a_resumed_run_goes_on_counting(tmp_path):
    before, after, other = NonFiniteLosses(Ranks()), NonFiniteLosses(Ranks()), NonFiniteLosses(Ranks(rank=1, world=2))
    before.see([WRONG, FINE, FINE], [["a"], ["b"], ["c"]], 3)
    torch.save(before.state(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    after.go_on(state)
    assert not after.see([WRONG], [["d"]], 4), "the first one was reported before"
    assert str(after).endswith("of 2 of 4 micro-batches was NaN or infinity, first seen at step 3; their pages: a, d")
    other.go_on(state)
    assert other.count == 0, "each rank counts its own"


@pytest.mark.slow
def test_a_loss_that_was_no_number_before_the_resume_is_counted(pages, tmp_path, monkeypatch):  # noqa: F811
    whole_loss, calls, events = loop.Training.training_step, itertools.count(), []

    def step(self, batch, index):
        total = whole_loss(self, batch, index)
        self.parts = self.parts._replace(total=self.parts.total + (float("nan") if next(calls) == 0 else 0.0))
        return total

    monkeypatch.setattr(loop.Training, "training_step", step)
    folder = stopped(pages, tmp_path, 3)
    assert loop.fit(configs.Config(), resume=folder, progress=events.append).metrics["not_finite"] == 1
    assert "of 1 of 8" in [event["text"] for event in events if event["kind"] == "warning"][-1]
