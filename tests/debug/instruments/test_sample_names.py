"""What a sample is called, in the batches and data sets that people write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from ocrlab.debug.instruments.sample_names import batch_names, index_namer, plain_index


@dataclass
class Mine:
    images: torch.Tensor
    pages: list[str]


@pytest.mark.parametrize(
    "batch,expected",
    [
        ({"x": torch.ones(2), "image_id": ["a", "b"]}, ["a", "b"]),
        ({"x": torch.ones(2), "id": torch.tensor([7, 9])}, ["7", "9"]),
        ((torch.ones(2, 3), torch.tensor([0, 1]), ("a.png", "b.png")), ["a.png", "b.png"]),
        (Mine(torch.ones(2), ["p1", "p2"]), ["p1", "p2"]),
        ((torch.ones(2), torch.tensor([0, 1])), []),
        (torch.ones(2), []),
        ([torch.ones(2), {"path": Path("x/a.png")}], ["a.png"]),
        ((tuple(torch.ones(3, 2 + i) for i in range(2)), ({"file": "a.png"}, {"file": "b.png"})), ["a.png", "b.png"]),
        ([{"file": "a.png", "x": torch.ones(2)}, {"file": "b.png"}], ["a.png", "b.png"]),
        ([{"file": "a.png"}, {"x": torch.ones(2)}], []),
        ([{"file": ["a.png", "b.png"]}, {"file": ["c.png", "d.png"]}], ["a.png + c.png", "b.png + d.png"]),
        (({"id": ["a", "b"]}, {"id": ["a", "b"]}), ["a", "b"]),
        (((torch.ones(2), ("a", "b")), (torch.ones(2), ("c", "d"))), ["a + c", "b + d"]),
        ([(torch.ones(2), 1, "a.png"), (torch.ones(2), 0, "b.png")], ["a.png", "b.png"]),
        (((torch.ones(2), torch.ones(2)), (torch.ones(2), torch.ones(2))), []),
        ({"x": torch.ones(1), "im_file": ("a.png",)}, ["a.png"]),
        ({"x": torch.ones(2), "im_file": ("a.png", "b.png")}, ["a.png", "b.png"]),
        ({"x": torch.ones(2), "utt_ids": ["a", "b"]}, ["a", "b"]),
        ({"x": torch.ones(2), "utt_ids": ["a", "a"]}, []),
        ({"x": torch.ones(2), "caption": ["a cat", "a dog"]}, []),
        ([{"image_id": 3}, {"image_id": 9}], []),
        (None, []),
    ],
)
def test_names_in_a_batch(batch, expected):
    assert batch_names(batch) == expected


class Folder:
    samples = (("root/cat/1.png", 0), ("root/dog/2.png", 1))


class Own:
    def sample_name(self, index):
        return {0: "zero"}[index]


class Plain:
    def __len__(self):
        return 3


def test_names_in_a_data_set():
    assert index_namer(Folder())(1) == "root/dog/2.png"
    assert index_namer(Subset(Folder(), [1]))(0) == "root/dog/2.png"
    assert index_namer(Folder())(9) == "9"
    assert index_namer(Own())(0) == "zero"
    assert index_namer(Own())(5) == "5"
    assert index_namer(Plain())((0, 2)) == "(0, 2)"


def test_an_index_becomes_pythons_own():
    indices = [np.int64(3), (torch.tensor(1), "a"), {"k": np.float64(0.5)}]
    assert plain_index(indices) == [3, (1, "a"), {"k": 0.5}]
    assert type(plain_index(np.int64(3))) is int
    with pytest.raises(TypeError, match="cannot be written down"):
        plain_index(object())
