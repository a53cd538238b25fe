"""Padding in the targets and in attention: named where it is trained on, or all that is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.padding_in_loss import find_padding
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules

LENGTHS = torch.tensor([3, 4, 6, 9, 12, 5, 4, 3])
IDS = torch.randint(2, 20, (8, 12), generator=torch.Generator().manual_seed(0))
IDS[torch.arange(12) >= LENGTHS[:, None]] = 0  # padding


class Tagger(nn.Module):
    """Words to classes, with attention; `mask` makes key_padding_mask of the ids."""

    def __init__(self, mask: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.words, self.mask = nn.Embedding(20, 16), mask
        self.places = nn.Embedding(12, 16)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.last = nn.Linear(16, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        hidden = None if self.mask is None else self.mask(ids)
        return self.last(x + self.attention(x, x, x, key_padding_mask=hidden)[0])


def flat(model: nn.Module, ids: Tensor, **options: int) -> Tensor:
    return functional.cross_entropy(model(ids).flatten(0, 1), ((ids * 7) % 20).flatten(), **options)


def test_padding_that_the_loss_counts() -> None:
    finding = finding_of(checker.check(Tagger(), IDS, flat), "targets.padding")
    assert "52% of its targets are 0" in finding.got and "ignore_index=0" in finding.do and finding.judgement == "warn"


@pytest.mark.parametrize("way", ["ignored", "weighted", "masked"])
def test_padding_that_is_left_out_in_any_way_is_right(way: str) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        if way == "ignored":
            return flat(model, ids, ignore_index=0)
        logits, targets = model(ids).transpose(1, 2), (ids * 7) % 20
        if way == "weighted":
            return functional.cross_entropy(logits, targets, weight=torch.ones(20).index_fill(0, torch.tensor([0]), 0))
        return (functional.cross_entropy(logits, targets, reduction="none") * (ids != 0)).sum() / (ids != 0).sum()

    assert "targets.padding" not in rules(checker.check(Tagger(), IDS, loss))


def test_only_what_fills_rows_up_and_stands_nowhere_else_is_padding() -> None:
    padding = find_padding(IDS.flatten(), 8)
    assert padding is not None and padding[0] == 0 and bool((padding[1] == (IDS == 0)).all())
    left = find_padding(IDS.flip(1), 8)
    assert left is not None and bool((left[1] == (IDS.flip(1) == 0)).all())
    inside = IDS.clone()
    inside[0, 0] = 0  # a background, silence
    assert find_padding(inside, 8) is None
    assert find_padding((IDS != 0).long(), 8) is None  # two classes
    assert find_padding(torch.randint(0, 20, (8, 12)), 8) is None
    assert find_padding(IDS[:, 0], 8) is None


def test_attention_that_sees_only_padding() -> None:
    finding = finding_of(
        checker.check(Tagger(lambda ids: ids != 0), IDS, lambda m, b: flat(m, b, ignore_index=0)), "attention.padding"
    )
    assert "52% of the places" in finding.got
    right = checker.check(Tagger(lambda ids: ids == 0), IDS, lambda m, b: flat(m, b, ignore_index=0))
    assert "attention.padding" not in rules(right)


@pytest.mark.parametrize(("wrong", "count"), [(True, 1), (False, 0)])
def test_the_mask_of_scaled_dot_product_attention_the_wrong_way_round(wrong: bool, count: int) -> None:
    class Own(Tagger):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
            mask = ((ids == 0) if wrong else (ids != 0))[:, None, None]
            attended = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
            return self.last(x + attended.transpose(1, 2).flatten(2))

    report = checker.check(Own(), IDS[LENGTHS < 12], lambda m, b: flat(m, b, ignore_index=0))
    assert [finding.rule for finding in report.findings].count("attention.padding") == count


@pytest.mark.parametrize(("rows", "named"), [(20, True), (4, False)])
def test_texts_of_unknown_words(rows: int, named: bool) -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(rows, 8), nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(self.words(ids).mean(1))

    loss = nn.CrossEntropyLoss()
    unknown = checker.check(Bag(), ((IDS != 0).long(), torch.arange(8) % 3), loss)
    assert ("inputs.few" in rules(unknown)) == named
    if named:
        assert "all 96 of its batch are 0 or 1, of 20" in finding_of(unknown, "inputs.few").got
        assert "inputs.few" not in rules(checker.check(Bag(), (IDS, torch.arange(8) % 3), loss))
