"""Batches of every kind: their tensors by name, their size, a part of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ocrlab.replaying import batch as traced_batch


@dataclass
class Pair:
    images: Tensor
    pages: list[str]


def image() -> Tensor:
    return torch.arange(12.0).view(4, 3)


BATCHES: list[Any] = [
    image(),
    (image(), torch.arange(4)),
    [image(), torch.arange(4)],
    {"image": image(), "name": list("abcd"), "scale": 2.0},
    Pair(image(), list("abcd")),
    [image(), {"boxes": [torch.zeros(2, 4)] * 4, "more": (image(),)}],
]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
def test_a_part_of_any_batch_can_be_taken_and_left_in_place(batch: Any) -> None:
    assert traced_batch.size(batch, list("abcd")) == 4
    part = traced_batch.select(batch, [2], 4)
    assert type(part) is type(batch)
    assert traced_batch.size(part, ["c"]) == 1
    traced_batch.narrow(batch, [2], 4)
    for (name, one), (other, two) in zip(traced_batch.tensors(part), traced_batch.tensors(batch), strict=True):
        assert name == other and torch.equal(one, two)


def test_names_decide_the_size_where_a_tensor_has_it() -> None:
    assert traced_batch.size((torch.zeros(8, 3), torch.zeros(8, 3), torch.zeros(2)), ["a", "b"]) == 2
    assert traced_batch.size({"pages": [1, 2, 3]}) == 3


def test_heads_and_rows_are_told_from_samples() -> None:
    mask = torch.zeros(8, 5, dtype=torch.bool)
    mask[5] = True
    assert traced_batch.positions(mask, 4, merged=True) == [2]
    assert traced_batch.positions(mask, 4, merged=False) is None
    assert traced_batch.where([1, 0, 4, 5], (2, 3, 8, 8), 2) == {"sample": 1, "pixel": [4, 5]}
