"""Recurrent layers on padded texts: named where only the step behind the padding is read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules

LENGTHS = torch.tensor([12, 5, 9, 7, 3, 12, 4, 6])
IDS = torch.randint(1, 40, (8, 12), generator=torch.Generator().manual_seed(0))
IDS[torch.arange(12) >= LENGTHS[:, None]] = 0
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


class Reader(nn.Module):
    """Words through a recurrent layer; `way` says what of it is read."""

    def __init__(self, way: str, kind: type[nn.RNNBase] = nn.LSTM, batch_first: bool = True) -> None:
        super().__init__()
        self.way, self.batch_first = way, batch_first
        self.words, self.layer = nn.Embedding(40, 8, padding_idx=0), kind(8, 16, batch_first=batch_first)
        self.last = nn.Linear(16, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        x = self.words(ids if self.batch_first else ids.t())
        if self.way == "packed":
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=self.batch_first, enforce_sorted=False)
        steps, state = self.layer(x)
        state = state[0] if isinstance(state, tuple) else state
        if self.way in ("packed", "state"):
            return self.last(state[-1])
        steps = steps if self.batch_first else steps.transpose(0, 1)
        if self.way == "mean":
            return self.last(steps.mean(1))
        return self.last(steps[:, -1] if self.way == "last" else steps[torch.arange(len(ids)), lengths - 1])


def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(*batch[:2]), batch[2])


@pytest.mark.parametrize("way", ["last", "state"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_last_step_behind_the_padding(way: str, kind: type[nn.RNNBase], batch_first: bool) -> None:
    finding = finding_of(
        checker.check(Reader(way, kind, batch_first), (IDS, LENGTHS, LABELS), loss), "recurrent.padding"
    )
    assert finding.where == "layer" and "6 of 8 rows" in finding.got and "pack_padded_sequence" in finding.do


@pytest.mark.parametrize("way", ["packed", "at the length", "mean"])
def test_what_is_packed_taken_at_its_length_or_read_in_all_steps_is_right(way: str) -> None:
    assert "recurrent.padding" not in rules(checker.check(Reader(way), (IDS, LENGTHS, LABELS), loss))


def test_texts_of_the_same_length_and_padding_in_front_are_right() -> None:
    full = torch.randint(1, 40, (8, 12), generator=torch.Generator().manual_seed(1))
    for ids in (full, IDS.flip(1)):
        assert "recurrent.padding" not in rules(checker.check(Reader("last"), (ids, LENGTHS, LABELS), loss))
