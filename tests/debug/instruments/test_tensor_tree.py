"""The tensors of nested values, with their paths."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.tensor_tree import dotted_tensors, tensors


@dataclass
class Out:
    logits: Tensor
    name: str


def test_tensors_come_with_their_path() -> None:
    t = torch.zeros(1)
    batch = {"loss": t, "more": [t, (t, "text")], "out": Out(t, "x"), "pair": namedtuple("Pair", "a b")(t, 3)}
    paths = ["['loss']", "['more'][0]", "['more'][1][0]", "['out'].logits", "['pair'].a"]
    assert [path for path, _ in tensors(batch, "")] == paths
    assert [name for name, _ in dotted_tensors(batch)] == ["loss", "more.0", "more.1.0", "out.logits", "pair.a"]
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
    assert [name for name, _ in (*tensors(t), *dotted_tensors(t), *tensors(packed))] == [
        "batch",
        "batch",
        "batch.data (packed)",
    ]
