"""Batches of every kind: their tensors by name, their size, a part of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset

from ocrlab.debug.instruments import batch_tree, tensor_tree
from ocrlab.debug.instruments.sample_names import batch_names, index_namer


@dataclass
class Pair:
    images: Tensor
    pages: list[str]


def image() -> Tensor:
    return torch.arange(12.0).view(4, 3)


BATCHES: list[Any] = [
    image(), (image(), torch.arange(4)), [image(), torch.arange(4)],
    {"image": image(), "name": list("abcd"), "scale": 2.0}, Pair(image(), list("abcd")),
    [image(), {"boxes": [torch.zeros(2, 4)] * 4, "more": (image(),)}],
]  # fmt: skip


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
def test_a_part_of_any_batch_can_be_taken(batch: Any) -> None:
    assert batch_tree.batch_size(batch, list("abcd")) == 4
    part = batch_tree.select(batch, [2], 4)
    assert type(part) is type(batch)
    assert batch_tree.batch_size(part, ["c"]) == 1
    whole = dict(tensor_tree.tensors(batch))
    images = [tensor for name, tensor in tensor_tree.tensors(part) if tensor.shape == (1, 3)]
    assert images and all(torch.equal(tensor[0], image()[2]) for tensor in images)
    assert all(len(tensor) in (4, 2) for tensor in whole.values()), "the batch itself stays whole"


def test_samples_in_lists_and_tuples_of_any_size_are_selected() -> None:
    images = [torch.zeros(3, 8 + i, 8) for i in range(4)]
    targets = [{"boxes": torch.zeros(i, 4)} for i in range(4)]
    lists, tuples = (images, targets), (tuple(images), tuple(targets))
    assert batch_tree.batch_size(lists, list("abcd")) == batch_tree.batch_size(tuples, list("abcd")) == 4
    for batch in (lists, tuples):
        part = batch_tree.select(batch, [2], 4)
        assert [len(item) for item in (*part, *batch)] == [1, 1, 4, 4] and part[0][0] is images[2]
        assert type(part[1]) is type(batch[1]) and part[1][0]["boxes"].shape == (2, 4)


def test_names_decide_the_size_where_a_tensor_has_it() -> None:
    assert batch_tree.batch_size((torch.zeros(8, 3), torch.zeros(8, 3), torch.zeros(2)), ["a", "b"]) == 2
    assert batch_tree.batch_size({"pages": [1, 2, 3]}) == 3


def test_samples_lie_in_the_second_dimension_where_time_comes_first():
    mask = torch.zeros(7, 4, 5, dtype=torch.bool)
    mask[6, 2, 1] = True
    assert batch_tree.positions(mask, 4, merged=False) == [2]
    assert not batch_tree.is_in_first_dimension(mask.shape, 4) and batch_tree.is_in_first_dimension((4, 5), 4)


def test_batches_are_equal_with_nan_at_the_same_places():
    def batch(value: float, width: int = 3) -> dict[str, Any]:
        return {"image": torch.full((2, width), value), "names": ["a", "b"], "box": [torch.zeros(1, 4)]}

    assert batch_tree.same_batch(batch(float("nan")), batch(float("nan")))
    assert not batch_tree.same_batch(batch(1.0), batch(2.0)) and not batch_tree.same_batch(batch(1.0), batch(1.0, 4))
    assert not batch_tree.same_batch(batch(1.0), {**batch(1.0), "more": torch.zeros(1)})


def test_a_sorted_batch_is_distinguished_from_a_batch_in_order():
    samples = [torch.full((1,), float(number)) for number in (3, 1, 2)]

    def in_order(positions: Sequence[int]) -> torch.Tensor:
        return torch.stack([samples[position] for position in positions])

    def by_size(positions: Sequence[int]) -> torch.Tensor:
        return in_order(positions).sort(0).values

    assert batch_tree.changes_order(by_size, 3) and not batch_tree.changes_order(in_order, 3)
    assert not batch_tree.changes_order(lambda positions: torch.ones(len(positions), 1), 3), "equal rows tell nothing"


def test_a_list_of_pictures_beside_their_labels_is_as_long_as_these():
    pictures = [torch.zeros(3, 8, 8)] * 5
    assert batch_tree.batch_size((pictures, torch.zeros(5))) == 5
    assert batch_tree.batch_size([(torch.zeros(6, 3), torch.zeros(6), tuple("abcdef"))] * 2) == 6
    assert batch_tree.batch_size({"x": pictures, "y": [{"boxes": torch.zeros(2, 4)}] * 5}) == 5
    assert batch_tree.batch_size([torch.zeros(4, 3), torch.zeros(4)]) == 4
    assert batch_tree.batch_size({"maps": [torch.zeros(6, 2, s, s) for s in (8, 4, 2)], "y": torch.zeros(6)}) == 6


def test_a_tensor_of_two_batches_selects_the_name() -> None:
    assert batch_tree.name_of_part("a + b", "input batch[1]['x']") == "b"
    assert batch_tree.name_of_part("a + b", "target batch[0]") == "a"
    for names, tensor in (("a + b", "input batch[2]"), ("a + b", "output aten::div"), ("a", "input batch[1]")):
        assert batch_tree.name_of_part(names, tensor) == names


def test_a_batch_next_to_another_is_partial() -> None:
    small, large = torch.ones(4, 2), torch.ones(10, 2)
    assert batch_tree.is_partial([{"x": small}, {"x": large}], 4)
    assert not batch_tree.is_partial({"x": small, "y": torch.ones(4), "scale": torch.tensor(2.0)}, 4)
    assert not batch_tree.is_partial((small, [{"boxes": torch.ones(n, 4)} for n in range(4)]), 4)


@pytest.mark.parametrize("batch,expected", [
    ({"x": torch.ones(2), "image_id": ["a", "b"]}, ["a", "b"]),
    ({"x": torch.ones(2), "id": torch.tensor([7, 9])}, ["7", "9"]),
    ((torch.ones(2, 3), torch.tensor([0, 1]), ("a.png", "b.png")), ["a.png", "b.png"]),
    (Pair(torch.ones(2), ["p1", "p2"]), ["p1", "p2"]),
    ((torch.ones(2), torch.tensor([0, 1])), []),
    ([torch.ones(2), {"path": Path("x/a.png")}], ["a.png"]),
    ((tuple(torch.ones(3, 2 + i) for i in range(2)), ({"file": "a.png"}, {"file": "b.png"})), ["a.png", "b.png"]),
    ([{"file": "a.png", "x": torch.ones(2)}, {"file": "b.png"}], ["a.png", "b.png"]),
    ([{"file": "a.png"}, {"x": torch.ones(2)}], []),
    ([{"file": ["a.png", "b.png"]}, {"file": ["c.png", "d.png"]}], ["a.png + c.png", "b.png + d.png"]),
    (({"id": ["a", "b"]}, {"id": ["a", "b"]}), ["a", "b"]),
    (((torch.ones(2), ("a", "b")), (torch.ones(2), ("c", "d"))), ["a + c", "b + d"]),
    ([(torch.ones(2), 1, "a.png"), (torch.ones(2), 0, "b.png")], ["a.png", "b.png"]),
    ({"x": torch.ones(2), "im_file": ("a.png", "b.png")}, ["a.png", "b.png"]),
    ({"x": torch.ones(2), "utt_ids": ["a", "a"]}, []),
    ({"x": torch.ones(2), "caption": ["a cat", "a dog"]}, []),
    ([{"image_id": 3}, {"image_id": 9}], []),
    (None, []),
])  # fmt: skip
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
    assert index_namer(Folder())(1) == index_namer(Subset(Folder(), [1]))(0) == "root/dog/2.png"
    assert (index_namer(Folder())(9), index_namer(Own())(0), index_namer(Own())(5)) == ("9", "zero", "5")
    assert index_namer(Plain())((0, 2)) == "(0, 2)"
