"""A training whose loss is NaN: reported with its pages, and not a success if nothing was learned."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from ocrlab.config import schema as configs
from ocrlab.errors import RunError
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training import loop
from ocrlab.training.run_callback import NonFiniteLosses
from tests.training.test_loop import pages, stopped  # noqa: F401  # a fixture

FINE, WRONG = torch.tensor(1.0), torch.tensor(float("nan"))


def test_each_loss_that_is_not_finite_is_counted_with_its_pages():
    numbers = NonFiniteLosses(Ranks())
    assert not numbers.see([FINE, FINE], [["a"], ["b"]], 2)
    assert numbers.see([FINE, WRONG], [["c"], ["d", "e"]], 4)
    assert not numbers.see([WRONG / 1, torch.tensor(float("inf"))], [["d"]], 6), "only the first is reported at once"
    assert numbers.count == 3
    assert str(numbers).endswith("of 3 of 6 micro-batches was NaN or infinity, first seen at step 4; their pages: d, e")
    assert numbers.metrics() == {"not_finite": 3.0}
    numbers.judge()


def test_finite_losses_are_not_reported():
    numbers = NonFiniteLosses(Ranks())
    numbers.see([FINE] * 4, [["a"]] * 4, 4)
    numbers.check(nn.Linear(2, 2), 4)
    numbers.judge()
    assert numbers.metrics() == {}


def test_weights_that_are_not_finite_end_the_training():
    numbers, model = NonFiniteLosses(Ranks()), nn.Linear(2, 2)
    numbers.see([WRONG], [["bad.jpg"]], 1)
    numbers.check(model, 1)
    model.weight.data[0, 0] = float("inf")
    with pytest.raises(RunError, match=r"step 1; the loss of 1 of 1 .* bad\.jpg"):
        numbers.check(model, 1)


def test_mostly_no_number_is_no_success():
    numbers = NonFiniteLosses(Ranks())
    numbers.see([WRONG, WRONG, FINE], [["a"], ["b"], ["c"]], 3)
    with pytest.raises(RunError, match="not finite in most"):
        numbers.judge()


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
