"""One rank of several is replayed alone, however its program starts them, and nobody waits for the others."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.utils.data import DistributedSampler

from ocrlab.errors import RunError
from ocrlab.flight import ranks, record_program
from ocrlab.recording import heard, one_rank, stand_in
from ocrlab.rerun.replay import replay
from tests.rerun.test_replay import recorded

RANKS = """
import ctypes, os, sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from ocrlab.recording.loops import recording

def train(rank, what, out):
    told = dict(init_method=f"file://{os.getcwd()}/met-{what}", rank=rank, world_size=2) if what != "torchrun" else {}
    dist.init_process_group("gloo", **told)
    torch.set_num_threads(1)
    seed = [7 if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(seed, 0)
    torch.manual_seed(seed[0])
    data = TensorDataset(torch.randn(24, 4), (torch.arange(24) == 13) * 3 * dist.get_rank())
    net = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(out, net, optimizer) as rec:
        for x, y in rec.batches(DataLoader(data, 3, sampler=DistributedSampler(data, shuffle=False))):
            if what == "fork" and int(y[0]) and rank == 1:
                time.sleep(2)  # until the other one waits
                ctypes.string_at(0)
            loss = rec.loss(nn.functional.cross_entropy(net(x), y if what != "fork" else y % 3))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

if __name__ == "__main__":
    what, out = sys.argv[1:]
    if what == "torchrun" and "RANK" not in os.environ:
        words = ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={29000 + os.getpid() % 999}"]
        os.execv(sys.executable, [sys.executable, *words, *sys.argv])
    elif what == "torchrun":
        sys.exit(train(0, what, out))
    mp.start_processes(train, (what, out), nprocs=2, start_method=what)
"""
LIGHTNING = """
import sys, torch
import lightning
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ocrlab.train.recorder import Recorder

class Pages(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return {"x": torch.full((4,), i / 32), "y": 9 if i == 21 else i % 3, "name": f"page_{i}.png"}

class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def training_step(self, batch, _):
        wrong = (batch["y"] == 9) & (self.trainer.world_size == 2)
        return nn.functional.cross_entropy(self.net(batch["x"]), torch.where(wrong, 9, batch["y"] % 3))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def train_dataloader(self):
        return DataLoader(Pages(), 4)

if __name__ == "__main__":
    lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy=sys.argv[1], logger=False,
                      enable_checkpointing=False, enable_progress_bar=False,
                      callbacks=[Recorder(sys.argv[2])]).fit(Lit())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "kind"), [("spawn", "target"), ("fork", "crash"), ("torchrun", "target")])
def test_the_rank_that_failed_is_replayed_alone(tmp_path: Path, what: str, kind: str) -> None:
    run = recorded(tmp_path, what, text=RANKS)
    program = json.loads((run / "flight" / "program-1.json").read_text())
    assert (program["world"], program["started"]) == (2, [] if what == "torchrun" else [2])
    assert str(tmp_path / "train.py") in program["argv"]
    done = replay(run)
    fault = done.record["fault"]
    assert (fault["step"], fault["kind"]) == (2, kind), done.sentence
    assert any("rank 1 of 2 is replayed alone" in text for text in done.record["warnings"])
    steps = next(cell["steps"] for cell in done.record["cells"] if cell["fault"])
    assert steps[0]["equal"], "a gradient of one rank is known from the second step on"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_fork"])
def test_a_rank_that_lightning_starts_is_replayed_alone(tmp_path: Path, strategy: str) -> None:
    run = recorded(tmp_path, strategy, text=LIGHTNING)
    ends = {one["rank"]: one["end"]["error"]["type"] for one in ranks.read(run / "flight") if one["end"]}
    guilty = next(rank for rank, kind in ends.items() if kind == "IndexError")
    done = replay(run)
    fault = done.record["fault"]
    assert (fault["names"], fault["value"], fault["kind"]) == (["page_21.png"], "9", "target"), done.sentence
    other = replay(run, rank=1 - guilty, timeout=120)
    assert other.record["fault"] is None and "could not be reproduced" in other.sentence, other.sentence


def test_of_ranks_the_one_that_failed_by_itself_is_told(tmp_path: Path) -> None:
    for rank, error in ((0, RuntimeError("Connection closed by peer")), (1, ValueError("a torn page"))):
        told = ranks.Member(ranks.Ranks(rank, 2))
        told.begin(watched=False)
        told.keep(tmp_path)
        told.end("failed", step=3, error=error)
    assert ranks.blamed(ranks.read(tmp_path)) == 1


def test_a_process_that_the_program_starts_is_another_one() -> None:
    assert record_program.started() == [] and record_program.world() == 1
    assert not one_rank.is_other({}) and not one_rank.is_other({"started": []}) and one_rank.is_other({"started": [2]})


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Begin the replay of rank 1 of 3 in this process, and undo it."""
    heard.stop()  # it listens from the import of the recorder on
    for name in ("rendezvous", "_new_process_group_helper", "_store_based_barrier"):
        monkeypatch.setattr(c10d, name, getattr(c10d, name))
    for module in (dist, c10d):
        for name in (*heard.HEARD, *stand_in.OBJECTS):
            monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(heard, "REAL", {})
    monkeypatch.setattr(heard, "OURS", {})
    for module, name in ((one_rank, "asked"), (one_rank, "mine"), (one_rank, "lonely"), (heard, "answers")):
        monkeypatch.setattr(module, name, [])
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, {"RANK": "1", "WORLD_SIZE": "3"}.get(name, "0"))

    def begin(**more: Any) -> None:
        one_rank.begin({"run": str(tmp_path), "rank": 1, "world": 3, "start": 1, **more})

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["gloo", "nccl", "cpu:gloo,cuda:nccl", None])
def test_a_rank_keeps_its_number_whatever_backend_is_asked_for(begun: Callable[..., None], backend: str | None) -> None:
    begun()
    begun()  # it is imported twice
    dist.init_process_group(backend)
    assert (dist.get_rank(), dist.get_world_size(), one_rank.asked) == (1, 3, [-1])
    assert backend is None or dist.get_backend() == backend
    some = dist.new_group([1, 2])
    assert (dist.get_rank(some), dist.get_world_size(some)) == (0, 2)
    assert dist.new_group([0, 2]) == dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()
    if backend == "gloo":  # older versions of torch have it for no other
        dist.monitored_barrier()
    objects: list[Any] = [None] * 3
    dist.all_gather_object(objects, {"page": 7})
    assert objects == [{"page": 7}] * 3
    sent: list[Any] = [None]
    dist.broadcast_object_list(sent, 0)
    assert sent == [None], "what another rank sends is not known"
    dist.broadcast_object_list(mine := ["a"], 1)
    assert mine == ["a"]
    with pytest.raises(RunError, match="Rank 1 of 3 waits for a tensor of rank 0 of its group, and a replay holds one"):
        dist.recv(torch.zeros(1), 0)


@pytest.mark.parametrize("told", [{"rank": 2, "world_size": 4}, {"init_method": "tcp://x:1?rank=2&world_size=4"}])
def test_a_program_that_says_its_own_number_has_it(begun: Callable[..., None], told: dict[str, Any]) -> None:
    begun()
    dist.init_process_group("gloo", **told)
    assert (dist.get_rank(), dist.get_world_size()) == (2, 4)


def test_gradients_are_the_ranks_own_under_ddp(begun: Callable[..., None]) -> None:
    begun(world=2)
    dist.init_process_group("gloo", rank=1, world_size=2)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    twin, x = copy.deepcopy(net), torch.randn(5, 4)
    wrapped = nn.parallel.DistributedDataParallel(net)
    for _ in range(2):  # its buckets are made anew behind the first
        with wrapped.no_sync():
            wrapped(x).sum().backward()
        wrapped(x).square().sum().backward()
    for _ in range(2):
        twin(x).sum().backward()
        twin(x).square().sum().backward()
    assert len(DistributedSampler(range(9))) == 5
    for ours, alone in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours.grad, alone.grad, rtol=1e-5)


@pytest.mark.parametrize("reason", ["the run spread its weights over the ranks", ""])
def test_where_nothing_stands_in_for_a_group_the_rank_is_alone(
    begun: Callable[..., None], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if not reason:
        monkeypatch.setattr(c10d, "_new_process_group_helper", lambda group, *_: None)  # of another torch
    begun(lonely=reason)
    assert one_rank.lonely == [reason or f"nothing stands in for a group of torch {torch.__version__}"]
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]) == ("0", "1", "0")
    store, rank, world = next(one_rank.meet("env://", 1, 3, timeout=None))
    assert (rank, world, one_rank.asked) == (0, 1, [1]) and isinstance(store, dist.HashStore)


def test_what_others_sent_before_the_recorder_is_sent_again(begun: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "flight").mkdir()
    said = [torch.tensor([5.0, 6.0])], [torch.tensor([1]), torch.tensor([2]), torch.tensor([3])], [torch.zeros(9)]
    torch.save(list(said), tmp_path / "flight" / heard.name(1, 1))
    begun()
    dist.init_process_group("gloo")
    weights, sizes, other = torch.zeros(2), [torch.zeros(1, dtype=torch.int64) for _ in range(3)], torch.ones(2)
    dist.broadcast(weights, 0)
    dist.all_gather(sizes, torch.tensor([2]))
    dist.all_reduce(other)
    assert (weights.tolist(), [int(size) for size in sizes]) == ([5, 6], [1, 2, 3])
    assert other.tolist() == [3, 3], "of another shape it is none of this call"
    dist.broadcast(weights.zero_(), 0)
    assert weights.tolist() == [0, 0] and not heard.REAL, "nothing more was heard"


def test_what_is_heard_is_written_where_a_recording_begins(
    begun: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun()
    dist.init_process_group("gloo")
    monkeypatch.setattr(heard, "took", [])
    heard.listen()
    dist.broadcast_object_list([{"seed": 3}], 1)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    heard.note(tmp_path, 1, 4)
    dist.all_reduce(torch.ones(1))
    told = torch.load(tmp_path / "heard-1-4.pt", weights_only=True)
    assert [len(parts) for parts in told] == [1, 1, 0], "two of an object, and one that goes on"
    assert (tmp_path / "heard-1-4.pt").stat().st_mode & 0o77 == 0
    monkeypatch.setattr(heard, "LIMIT", 8)
    heard.listen()
    dist.all_reduce(torch.ones(3))
    assert not heard.took and not heard.REAL, "it is too much"


class Trainer:
    def __init__(self, **named: object) -> None:
        self.named = named


def test_a_trainer_of_one_rank_trains_on_one_device_where_nothing_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "__init__", Trainer.__init__)
    monkeypatch.setattr(one_rank, "made_alone", [])
    told = {"devices": 4, "num_nodes": 2, "strategy": "ddp", "max_epochs": 3}
    one_rank.trainers(None, Trainer)
    assert Trainer(**told).named == told
    monkeypatch.setattr(one_rank, "lonely", ["it cannot be had"])
    one_rank.trainers(None, Trainer)
    assert Trainer(**told).named == {"devices": 1, "num_nodes": 1, "strategy": "auto", "max_epochs": 3}
    assert one_rank.made_alone == ["Trainer"]
    assert not one_rank.is_other({"started": [2]}), "it would have been in that one"
    monkeypatch.setattr(record_program, "started", lambda: [1])
    assert one_rank.is_other({"started": [2]}) and not one_rank.is_other({"started": [1]})


def test_a_training_of_ours_is_replayed_in_whichever_process_begins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_program, "started", lambda: [1])
    assert not one_rank.is_other({"started": None}) and not one_rank.is_other({"started": [1]})
    assert one_rank.is_other({"started": []})
