"""Watching models that have no truth value, and what was seen in words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.layers import layer_watch
from tests.debug.instruments.layers.test_layer_watch import hooks, small, train


def test_a_compiled_model_that_has_no_length_is_watched_too() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    model = torch.compile(Wrapped(), backend="eager")
    with layer_watch.watch(model, "*") as watch:
        train(model, 2)
    assert watch.table()["calls"].eq(1).all() and hooks(model) == 0


def test_a_watch_prints_its_report() -> None:
    model = small()
    with layer_watch.watch(model, "*") as watch:
        train(model, 1)
    assert str(watch).startswith("All that was seen is finite") and "object at" not in str(watch)
    with layer_watch.watch(model, "*") as watch:
        pass
    assert "No watched module was called" in str(watch)
