"""Batches of every kind: their tensors by name, their size, a part of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ocrlab.debug.instruments import batch_tree, tensor_tree


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
    assert batch_tree.batch_size(batch, list("abcd")) == 4
    part = batch_tree.select(batch, [2], 4)
    assert type(part) is type(batch)
    assert batch_tree.batch_size(part, ["c"]) == 1
    batch_tree.narrow_in_place(batch, [2], 4)
    for (name, tensor), (other, two) in zip(tensor_tree.tensors(part), tensor_tree.tensors(batch), strict=True):
        assert name == other and torch.equal(tensor, two)


def test_samples_in_lists_of_any_size_are_left_in_place_and_those_in_tuples_anew() -> None:
    images = [torch.zeros(3, 8 + i, 8) for i in range(4)]
    targets = [{"boxes": torch.zeros(i, 4)} for i in range(4)]
    lists, tuples = (images, targets), (tuple(images), tuple(targets))
    assert batch_tree.batch_size(lists, list("abcd")) == batch_tree.batch_size(tuples, list("abcd")) == 4
    left = batch_tree.narrow_in_place(tuples, [2], 4)
    assert [len(part) for part in (*left, *tuples)] == [1, 1, 4, 4] and left[0][0] is images[2]
    assert batch_tree.narrow_in_place(lists, [2], 4) is lists
    assert [len(part) for part in lists] == [1, 1] and targets[0]["boxes"].shape == (2, 4)


def test_a_mapping_for_each_sample_may_hold_as_many_of_something() -> None:
    batch = (tuple(torch.zeros(3, 8, 8) for _ in range(4)), tuple({"boxes": torch.zeros(4, 4)} for _ in range(4)))
    owned = batch_tree.tensors_by_sample(batch, 4)
    assert owned["batch[1][2]['boxes']"] == owned["batch[0][2]"] == 2 and len(owned) == 8
    assert [len(part) for part in batch_tree.narrow_in_place(batch, [2], 4)] == [1, 1]
    assert batch_tree.tensors_by_sample((image(), {"x": image(), "name": list("abcd")}), 4) == {}


def test_a_tuple_inside_of_what_can_be_changed_is_replaced_there() -> None:
    targets = tuple({"boxes": torch.zeros(i, 4)} for i in range(4))
    for batch in ({"image": image(), "targets": targets}, [image(), targets], Pair(image(), targets)):  # type: ignore[arg-type]
        assert batch_tree.narrow_in_place(batch, [3], 4) is batch
        assert tensor_tree.parts(batch)[1][1] == (targets[3],)


def test_names_decide_the_size_where_a_tensor_has_it() -> None:
    assert batch_tree.batch_size((torch.zeros(8, 3), torch.zeros(8, 3), torch.zeros(2)), ["a", "b"]) == 2
    assert batch_tree.batch_size({"pages": [1, 2, 3]}) == 3


def test_heads_and_rows_are_distinguished_from_samples() -> None:
    mask = torch.zeros(8, 5, dtype=torch.bool)
    mask[5] = True
    assert batch_tree.positions(mask, 4, merged=True) == [2]
    assert batch_tree.positions(mask, 4, merged=False) is None
    assert batch_tree.index_in_batch([1, 0, 4, 5], (2, 3, 8, 8), 2) == {"sample": 1, "pixel": [4, 5]}


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
    assert batch_tree.batch_size({"x": pictures, "y": [{"boxes": torch.zeros(2, 4)}] * 5}) == 5
    assert batch_tree.batch_size([torch.zeros(4, 3), torch.zeros(4)]) == 4
    assert batch_tree.batch_size({"maps": [torch.zeros(6, 2, s, s) for s in (8, 4, 2)], "y": torch.zeros(6)}) == 6


def test_two_batches_of_columns_have_as_many_samples_as_their_rows() -> None:
    both = (
        (torch.zeros(6, 3), torch.zeros(6), tuple("abcdef")),
        (torch.zeros(6, 3), torch.zeros(6, 3), list("ghijkl")),
    )
    assert batch_tree.batch_size(both) == 6
    assert batch_tree.tensors_by_sample(both, 6) == {}


def test_a_tensor_of_two_batches_selects_the_name() -> None:
    assert batch_tree.name_of_part("a + b", "input batch[1]['x']") == "b"
    assert batch_tree.name_of_part("a + b", "target batch[0]") == "a"
    assert (
        batch_tree.name_of_part("a + b", "input batch[2]")
        == batch_tree.name_of_part("a + b", "output aten::div")
        == "a + b"
    )
    assert batch_tree.name_of_part("a", "input batch[1]") == "a"


def test_a_batch_next_to_another_is_partial() -> None:
    small, large = torch.ones(4, 2), torch.ones(10, 2)
    assert batch_tree.is_partial([{"x": small}, {"x": large}], 4)
    assert not batch_tree.is_partial({"x": small, "y": torch.ones(4), "scale": torch.tensor(2.0)}, 4)
    assert not batch_tree.is_partial((small, [{"boxes": torch.ones(n, 4)} for n in range(4)]), 4)


def test_a_row_has_the_text_that_lies_beside_its_tensor() -> None:
    batch = ((torch.ones(2, 3), torch.ones(2), ("a", "b")), (torch.ones(3), ("c", "d", "e"), ("f", "f", "f")))
    assert batch_tree.row_text(batch, "batch[0][1]", 1) == "b"
    assert batch_tree.row_text({"u": {"x": torch.ones(2), "path": ["p", "q"]}}, "batch['u']['x']", 0) == "p"
    assert batch_tree.row_text(batch, "batch[1][0]", 2) == "e"
    for tensor in ("batch[0][2]", "batch[7]", "output", ""):
        assert batch_tree.row_text(batch, tensor, 0) == ""
    assert batch_tree.row_text([torch.ones(2), ["same", "same"]], "batch[0]", 0) == ""
    assert batch_tree.row_text(None, "batch[0]", 0) == ""
