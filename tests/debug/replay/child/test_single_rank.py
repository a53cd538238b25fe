"""One rank of several is replayed alone, however its program starts them, and nobody waits for the others."""

import copy
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed import fake_pg
from torch.utils.data import DistributedSampler

from ocrlab.debug.replay.child import single_rank
from ocrlab.debug.replay.replay_job import replay
from ocrlab.errors import RunError
from ocrlab.run_folder import launcher
from tests.debug.replay.test_replay_job import recorded

RANKS = """
import ctypes, os, sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from ocrlab.debug.recorder.loop_recorder import recording

def train(rank, what, out):
    group = dict(init_method=f"file://{os.getcwd()}/met-{what}", rank=rank, world_size=2) if what != "torchrun" else {}
    dist.init_process_group("gloo", **group)
    torch.set_num_threads(1)
    seed = [7 if dist.get_rank() == 0 or what != "seed" else None]
    if what == "seed":
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
    mp.start_processes(train, (what, out), nprocs=2, start_method="fork" if what == "fork" else "spawn")
"""
LIGHTNING = """
import sys, torch
import lightning
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ocrlab.debug.recorder.lightning_callback import Recorder

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
def test_a_rank_that_needs_what_another_rank_sends_is_explained(tmp_path: Path) -> None:
    done = replay(recorded(tmp_path, "seed", text=RANKS))
    assert done.record["fault"] is None and not done.reproduced
    assert "rank 1 of 2 takes values of other ranks (broadcast_object_list)" in done.sentence, done.sentence
    assert launcher.HOLDS in done.sentence


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_fork"])
def test_a_rank_that_lightning_starts_is_replayed_alone(tmp_path: Path, strategy: str) -> None:
    run = recorded(tmp_path, strategy, text=LIGHTNING)
    ends = {record["rank"]: record["end"]["error"]["type"] for record in launcher.read(run / "flight") if record["end"]}
    failed_rank = next(rank for rank, kind in ends.items() if kind == "IndexError")
    done = replay(run)
    fault = done.record["fault"]
    assert (fault["names"], fault["value"], fault["kind"]) == (["page_21.png"], "9", "target"), done.sentence
    other = replay(run, rank=1 - failed_rank, timeout=120)
    assert other.record["fault"] is None and "could not be reproduced" in other.sentence, other.sentence


def test_of_ranks_the_rank_that_failed_by_itself_is_reported(tmp_path: Path) -> None:
    for rank, error in ((0, RuntimeError("Connection closed by peer")), (1, ValueError("a torn page"))):
        member = launcher.RankRecord(launcher.Ranks(rank, 2))
        member.begin(watched=False)
        member.keep(tmp_path)
        member.end("failed", step=3, error=error)
    assert launcher.blamed(launcher.read(tmp_path)) == 1


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Begin the replay of rank 1 of 3 in this process, and undo it."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, {"RANK": "1", "WORLD_SIZE": "3"}.get(name, "0"))
    ddp = nn.parallel.DistributedDataParallel
    monkeypatch.setattr(ddp, "__init__", ddp.__init__)

    def begin(**more: Any) -> None:
        single_rank.begin({"run": str(tmp_path), "rank": 1, "world": 3, "start": 1, **more})

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()
    single_rank.undo()
    single_rank.asked.clear()
    single_rank.from_others.clear()


@pytest.mark.parametrize("backend", ["gloo", "nccl", "cpu:gloo,cuda:nccl", None])
def test_a_rank_keeps_its_number_whatever_backend_is_asked_for(begun: Callable[..., None], backend: str | None) -> None:
    begun()
    begun()  # it is imported twice
    dist.init_process_group(backend)
    assert (dist.get_rank(), dist.get_world_size(), single_rank.asked) == (1, 3, [1])
    some = dist.new_group([1, 2], backend="gloo")
    assert (dist.get_rank(some), dist.get_world_size(some)) == (0, 2)
    dist.barrier()
    dist.monitored_barrier()
    objects: list[Any] = [None] * 3
    dist.all_gather_object(objects, {"page": 7})
    assert objects == [{"page": 7}] * 3 and not single_rank.from_others
    sent: list[Any] = [None]
    dist.broadcast_object_list(sent, 0)
    assert sent == [None], "what another rank sends is not known"
    assert [*single_rank.from_others] == ["broadcast_object_list"]
    dist.broadcast_object_list(mine := ["a"], 1)
    assert mine == ["a"]


@pytest.mark.parametrize("how", ["recv", "irecv", "batch_isend_irecv"])
def test_a_tensor_of_another_rank_is_refused(begun: Callable[..., None], how: str) -> None:
    begun()
    dist.init_process_group("gloo")
    dist.send(torch.ones(1), 0)
    with pytest.raises(RunError, match="Rank 1 of 3 waits for a tensor of another rank in i?recv, and a replay holds"):
        if how == "batch_isend_irecv":
            dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(1), 0)])
        else:
            getattr(dist, how)(torch.zeros(1), 0)


def test_functions_that_a_program_had_imported_already_are_replaced_and_put_back(begun, monkeypatch):
    program: Any = types.ModuleType("program")
    program.recv = torchs = dist.recv
    monkeypatch.setitem(sys.modules, "program", program)
    begun()
    assert program.recv is dist.recv is not torchs
    single_rank.undo()
    assert program.recv is dist.recv is torchs


@pytest.mark.parametrize("torch_is_older", [False, True])
def test_gradients_are_the_ranks_own_under_ddp(begun, monkeypatch, torch_is_older):
    if torch_is_older:  # its fake backend has no options
        real = fake_pg.FakeProcessGroup
        stub = SimpleNamespace(_create_internal=lambda rank, size, _options: real._create_internal(rank, size, None))
        monkeypatch.setattr(fake_pg, "FakeProcessGroup", stub)
    begun(world=2)
    dist.init_process_group("gloo", rank=1, world_size=2)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    twin, x = copy.deepcopy(net), torch.randn(5, 4)
    wrapped = nn.parallel.DistributedDataParallel(net)
    for _ in range(2):  # its buckets are built again after the first
        with wrapped.no_sync():
            wrapped(x).sum().backward()
        wrapped(x).square().sum().backward()
    for _ in range(2):
        twin(x).sum().backward()
        twin(x).square().sum().backward()
    assert len(DistributedSampler(range(9))) == 5
    for ours, alone in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours.grad, alone.grad, rtol=1e-5)
