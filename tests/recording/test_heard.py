"""What is heard of collectives before a recording changes nothing of a program, which may never begin one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ocrlab.recording import heard


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a real group of one process, and hear of nothing yet."""
    heard.stop()  # it listens from the import of the recorder on
    for module in (dist, c10d):
        for name in heard.HEARD:
            monkeypatch.setattr(module, name, getattr(module, name))
    for name in ("REAL", "OURS"):
        monkeypatch.setattr(heard, name, {})
    monkeypatch.setattr(heard, "took", [])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_comes_back_is_what_came_back_before() -> None:
    heard.listen()
    x = torch.ones(2)
    assert dist.all_reduce(x) is None and heard.took[0][0] is not x
    work = dist.all_reduce(x, async_op=True)
    assert work is not None and work.wait() and heard.took[1] == []
    dist.all_gather_object(found := [None], {"page": 3})
    dist.gather(x, [y := torch.zeros(2)])
    assert found == [{"page": 3}] and y.tolist() == [1, 1]
    count = len(heard.took)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        dist.all_reduce([1])
    assert len(heard.took) == count, "it has answered nothing"


def test_a_rank_that_is_no_member_of_a_group_is_left_alone() -> None:
    heard.listen()
    assert dist.all_reduce(x := torch.full((1,), 3.0), group=dist.GroupMember.NON_GROUP_MEMBER) is None
    assert x.tolist() == [3]


def test_functions_are_put_back_and_are_one() -> None:
    real = [getattr(dist, name) for name in heard.HEARD]
    heard.listen()
    kept = dist.all_reduce
    assert kept is c10d.all_reduce and kept is not real[1], "a pickle finds it by its name"
    heard.stop()
    assert [getattr(module, name) for module in (dist, c10d) for name in heard.HEARD] == real * 2
    kept(torch.ones(1))
    assert not heard.took, "who has kept it goes on with that of torch"


def test_what_somebody_else_puts_in_their_place_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (lambda *_: "before"), (lambda *_: "after")
    monkeypatch.setattr(dist, "broadcast", before)
    heard.listen()
    assert dist.broadcast is before
    monkeypatch.setattr(dist, "all_reduce", after)
    heard.stop()
    assert dist.broadcast is before and dist.all_reduce is after


def test_a_torch_without_one_of_them_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(c10d, "all_reduce")
    heard.listen()
    assert "all_reduce" not in heard.REAL and "broadcast" in heard.REAL


def test_what_cannot_be_kept_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    heard._take([torch.zeros(2, device="meta")])
    heard._take([torch.zeros(2).to_sparse()])
    heard._take([torch.nn.Parameter(torch.ones(1))])
    assert [len(parts) for parts in heard.took] == [0, 0, 1]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not heard._is_quiet(torch.device("cuda", 0)) and heard._is_quiet(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert heard._is_quiet(torch.device("cuda", 0)) and not heard._is_quiet(torch.device("xpu"))


def test_a_copy_that_fails_is_no_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "clone", lambda *_: 1 / 0)
    heard.listen()
    dist.all_reduce(x := torch.ones(1))
    assert x.tolist() == [1] and heard.took == [[]]


def test_where_a_gpu_has_failed_nothing_is_written(tmp_path: Path) -> None:
    def cpu() -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    heard.took.append([SimpleNamespace(cpu=cpu)])  # type: ignore[list-item]
    heard.note(tmp_path, 0, 0)
    assert not list(tmp_path.iterdir())


def test_a_program_that_never_records_is_listened_to_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    real = dist.all_reduce
    monkeypatch.setattr(heard, "MOST", 2)
    heard.listen()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    assert dist.all_reduce is real and not heard.took
    monkeypatch.setattr(heard, "LIMIT", 8)
    monkeypatch.setattr(torch.Tensor, "clone", lambda *_: pytest.fail("it is too large to be copied"))
    heard.listen()
    dist.all_reduce(torch.ones(3))
    assert dist.all_reduce is real and not heard.took


def test_what_is_being_compiled_is_torch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    heard.listen()
    dist.all_reduce(torch.ones(1))
    assert not heard.took


def test_the_size_of_an_object_is_taken_from_a_whole_number_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for answers, wanted in (([], False), ([[]], False), ([[torch.ones(1)]], False), ([[torch.tensor([3])]], True)):
        monkeypatch.setattr(heard, "answers", answers)
        assert heard.sizes() is wanted
