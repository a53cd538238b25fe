"""A mask of 0 and -Inf is no fault; whatever else holds an Inf still is."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.debug.instruments.layers.statistics import StepClock, _Transfer


class Attends(nn.Module):
    """Attention with a causal mask as a buffer, as many models keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        return self.block(self.embed(x), src_mask=self.causal, src_key_padding_mask=padded)  # type: ignore[no-any-return]


def padding(count: int) -> Tensor:
    hidden = torch.arange(5).expand(3, 5) >= torch.tensor([[5], [5], [count]])
    return torch.zeros(3, 5).masked_fill(hidden, -math.inf)


def test_masks_of_attention_are_no_fault() -> None:
    model = Attends()
    with layer_watch.watch(model, "*") as watch:
        model(torch.randn(3, 5, 4), padding(3)).square().mean().backward()
    assert watch.first_nonfinite is None and not watch.table()["worst"].any()
    assert watch.history()["inf"].max() > 0  # they are told, and not judged


def test_what_a_mask_spoils_is_reported() -> None:
    model = Attends()
    model.causal.fill_(-math.inf)  # nobody may look anywhere: 0 / 0 in the softmax
    with layer_watch.watch(model, "*") as watch:
        model(torch.randn(3, 5, 4), padding(5))
    assert watch.first_nonfinite is not None and watch.first_nonfinite.module == "(Attends)"
    assert (watch.first_nonfinite.what, watch.first_nonfinite.path) == ("weight", "causal")


@pytest.mark.parametrize("place", ["input", "bias", "statistics", "frozen"])
def test_zeros_with_a_single_inf_are_no_mask_elsewhere(place: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), torch.zeros(3, 4)
    spoilt = {"input": x, "statistics": model[1].running_mean}.get(place, model[0].bias)
    with torch.no_grad():
        spoilt.zero_()
        spoilt.view(-1)[1] = -math.inf
    model[0].bias.requires_grad_(place != "frozen")
    with layer_watch.watch(model, "*") as watch:
        model(x)
    first = watch.first_nonfinite
    assert first is not None and first.inf == 1
    assert first.what == ("input" if place == "input" else "weight")


def test_after_a_dead_context_nothing_on_its_way_is_read_or_freed() -> None:
    model = nn.Linear(2, 2)
    numbers = torch.zeros(3)
    watched = layer_watch.watch(model, "*")
    before = sys.getrefcount(numbers)
    with pytest.raises(RuntimeError), watched as watch:
        watch._store._sent.append(_Transfer([], [], [], StepClock(), numbers, None, False))
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    assert not watch._store._sent and "CUDA error ended" in watch.fault
    assert sys.getrefcount(numbers) > before
