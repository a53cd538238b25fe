"""A group that answers for ranks that are not there: they hold what this one holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import AllreduceOptions, ReduceOp, ReduceScatterOptions

from ocrlab.errors import RunError
from ocrlab.flight import ranks
from ocrlab.recording.stand_in import Group, fill, reduced


@pytest.fixture
def group() -> Group:
    return Group(1, 3)


@pytest.mark.parametrize(
    ("op", "value", "wanted"),
    [
        ("SUM", 2.0, 6.0),
        ("AVG", 2.0, 2.0),
        ("MAX", 2.0, 2.0),
        ("MIN", 2.0, 2.0),
        ("PRODUCT", 2.0, 8.0),
        ("SUM", 2, 6),
        ("BAND", 5, 5),
        ("BOR", 5, 5),
        ("BXOR", 5, 5),
        ("SUM", True, True),
        ("PRODUCT", False, False),
    ],
)
def test_what_equal_values_are_reduced_to(group: Group, op: str, value: Any, wanted: Any) -> None:
    options = AllreduceOptions()
    options.reduceOp = ReduceOp(getattr(ReduceOp, op))
    tensor = torch.tensor([value])
    work = group.allreduce([tensor], options)
    assert work.wait() and tensor.item() == wanted and work.get_future().value()[0] is tensor
    assert reduced(torch.tensor([value]), getattr(ReduceOp, op), 1).item() == value
    other = torch.tensor([value])
    group.allreduce(other, getattr(ReduceOp, op))
    assert other.item() == wanted


def test_an_even_number_of_equal_values_is_nothing_by_xor() -> None:
    assert reduced(torch.tensor([5]), ReduceOp.BXOR, 2).item() == 0


def test_only_the_rank_that_is_meant_gets_a_sum_or_a_list(group: Group) -> None:
    mine, other = torch.ones(1), torch.ones(1)
    group.reduce(mine, 1)
    group.reduce(other, 0)
    assert (mine.item(), other.item()) == (3, 1)
    lists = [torch.zeros(1) for _ in range(3)]
    group.gather(lists, torch.ones(1), 0)
    assert sum(lists).item() == 0
    group.gather(lists, torch.ones(1), 1)
    assert sum(lists).item() == 3


def test_tensors_are_gathered_as_often_as_there_are_ranks(group: Group) -> None:
    one = torch.tensor([[1.0, 2.0]], requires_grad=True)
    lists = [[torch.zeros(1, 2) for _ in range(3)]]
    group.allgather(lists, [one])
    assert all(torch.equal(place, one) for place in lists[0])
    flat, stacked = torch.zeros(3, 2), torch.zeros(3, 1, 2)
    group.all_gather_single(flat, one)
    group._allgather_base(stacked, one)
    assert torch.equal(flat, one.expand(3, 2)) and torch.equal(stacked, one.expand(3, 1, 2))
    by_rank = [[torch.zeros(1), torch.zeros(2)] for _ in range(3)]
    group.allgather_coalesced(by_rank, [torch.ones(1), torch.ones(2)])
    assert all(float(place.sum()) == len(place) for places in by_rank for place in places)


def test_parts_are_those_of_this_rank(group: Group) -> None:
    options, whole, part = ReduceScatterOptions(), torch.arange(6.0), torch.zeros(2)
    group.reduce_scatter_single(part, whole, options)
    assert part.tolist() == [6, 9]
    group.reduce_scatter([part.zero_()], [list(whole.chunk(3))], options)
    assert part.tolist() == [6, 9]
    group.scatter(part, list(whole.chunk(3)), 1)
    assert part.tolist() == [2, 3]
    group.scatter([part], [], 0)
    assert part.tolist() == [0, 0], "what another rank hands out is not whatever lay in memory"


def test_every_rank_sends_what_this_one_would_send_to_itself(group: Group) -> None:
    whole, place = torch.arange(6.0), torch.zeros(6)
    group.all_to_all_single(place, whole, [], [])
    assert place.tolist() == [2, 3, 2, 3, 2, 3]
    group.all_to_all_single(place, whole, [1, 3, 2], [0, 4, 2])
    assert place.tolist() == [0, 0, 1, 2, 0, 1]
    lists = [torch.zeros(2) for _ in range(3)]
    group.alltoall(lists, list(whole.chunk(3)))
    assert [one.tolist() for one in lists] == [[2, 3]] * 3


def test_a_value_of_another_size_is_repeated_or_cut() -> None:
    assert fill(torch.zeros(5), torch.tensor([1.0, 2.0])).tolist() == [1, 2, 1, 2, 1]
    assert fill(torch.zeros(1), torch.tensor([1.0, 2.0])).tolist() == [1]
    assert fill(torch.zeros(2), torch.zeros(0)).tolist() == [0, 0]


def test_what_only_another_rank_has_is_one_clear_error(group: Group) -> None:
    for call in (lambda: group.send([], 2, 0), lambda: group.recv([], 2, 0), lambda: group.recv_anysource([], 0)):
        with pytest.raises(RunError, match=f"Rank 1 of 3 .* (rank 2 of its group|any rank), and {ranks.HOLDS}"):
            call()
