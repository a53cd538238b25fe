"""One rank of several is replayed alone, however its program starts them, and nobody waits for the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ocrlab.flight import ranks, record_program
from ocrlab.recording import one_rank
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
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4), (torch.arange(24) == 13) * 3)
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
        return nn.functional.cross_entropy(self.net(batch["x"]), batch["y"])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def train_dataloader(self):
        return DataLoader(Pages(), 4)

if __name__ == "__main__":
    lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
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
def test_a_rank_that_lightning_starts_is_replayed_alone(tmp_path: Path) -> None:
    done = replay(recorded(tmp_path, "ddp", text=LIGHTNING))
    fault = done.record["fault"]
    assert (fault["names"], fault["value"], fault["kind"]) == (["page_21.png"], "9", "target"), done.sentence


def test_of_ranks_the_one_that_failed_by_itself_is_told(tmp_path: Path) -> None:
    for rank, error in ((0, RuntimeError("Connection closed by peer")), (1, ValueError("a torn page"))):
        told = ranks.Member(ranks.Ranks(rank, 2))
        told.begin(watched=False)
        told.keep(tmp_path)
        told.end("failed", step=3, error=error)
    assert ranks.blamed(ranks.read(tmp_path)) == 1


def test_a_process_that_the_program_starts_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert record_program.started() == [] and record_program.world() == 1
    assert not one_rank.is_other({}) and not one_rank.is_other({"started": []}) and one_rank.is_other({"started": [2]})
    monkeypatch.setattr(one_rank, "asked", [])
    store, rank, world = next(one_rank.meet("env://", 1, 2, timeout=None))
    assert (rank, world, one_rank.asked) == (0, 1, [1]) and isinstance(store, torch.distributed.HashStore)


class Trainer:
    def __init__(self, **named: object) -> None:
        self.named = named


def test_a_trainer_of_one_rank_trains_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "__init__", Trainer.__init__)
    one_rank.trainers({"world": 4}, None, Trainer)
    named = Trainer(devices=4, num_nodes=2, strategy="ddp", max_epochs=3).named
    assert named == {"devices": 1, "num_nodes": 1, "strategy": "auto", "max_epochs": 3}


def test_a_training_of_ours_is_replayed_in_whichever_process_begins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_program, "started", lambda: [1])
    assert not one_rank.is_other({"started": None}) and not one_rank.is_other({"started": [1]})
    assert one_rank.is_other({"started": []})
