"""The first NaN or Inf: whose sample it is, what a mask of attention may hold, and what an exception left."""

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.debug.instruments.layers.statistics import StepClock, _Transfer
from ocrlab.debug.instruments.layers.table import FirstNonFinite

NAN = float("nan")


def first(net: nn.Module, *arguments: Any) -> FirstNonFinite | None:
    with layer_watch.watch(net, "*") as watch:
        net(*arguments)
    return watch.first_nonfinite


class Around(nn.Module):
    """A layer inside of a model, whose own input is none of the layer's."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, make: Any) -> Any:
        return self.layer(make())


def test_a_row_of_packed_steps_is_no_sample() -> None:
    x = torch.randn(3, 4, 2)
    x[2, 1] = NAN  # the longest, so that it comes first among the packed
    packed = pack_padded_sequence(x, torch.tensor([2, 1, 4]), batch_first=True, enforce_sorted=False)
    fault = first(Around(nn.LSTM(2, 3, batch_first=True)), lambda: packed)
    assert fault is not None
    assert (fault.sample, "packed" in fault.sentence, "sample" in fault.sentence) == (None, True, False)


def test_the_state_of_a_recurrent_layer_has_its_samples_second() -> None:
    net = nn.LSTM(2, 3, batch_first=True)
    hidden = torch.zeros(1, 5, 3)
    hidden[0, 4] = NAN
    with layer_watch.watch(net, "*") as watch:
        net(torch.zeros(5, 4, 2), (hidden, torch.zeros(1, 5, 3)))
    assert watch.first_nonfinite is not None
    assert watch.first_nonfinite.sample == 4


def test_where_nothing_could_be_read_nothing_is_called_finite() -> None:
    net = nn.Linear(2, 2)
    with layer_watch.watch(net, "*") as watch:
        torch.func.vmap(net)(torch.ones(3, 2))
    assert not watch.fault
    assert "finite" not in str(watch)
    assert "no value was read: inside of vmap" in str(watch)


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
    assert watch.history()["inf"].max() > 0  # they are reported, and not judged


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
        watch._store._sent.append(_Transfer([], [], StepClock(), numbers, None))
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    assert not watch._store._sent and "CUDA error ended" in watch.fault
    assert sys.getrefcount(numbers) > before
