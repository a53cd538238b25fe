"""One rank of several is replayed alone, however its program starts them; the one that failed is known by its word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ocrlab.flight import ranks, record_program
from ocrlab.recording import one_rank
from ocrlab.rerun.replay import replay

SPAWNED = """
import os, socket, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from ocrlab.train.recorder import Recorder, recording

class Pages(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return {"x": torch.full((4,), i / 32), "y": 9 if i == 21 else i % 3, "name": f"page_{i}.png"}

def train(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sampler = DistributedSampler(Pages(), 2, rank, shuffle=False)  # 21 is the second rank's
    with recording("run", net, optimizer) as rec:
        for batch in rec.batches(DataLoader(Pages(), 4, sampler=sampler)):
            loss = rec.loss(nn.functional.cross_entropy(net(batch["x"]), batch["y"]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

def lightning():
    import lightning
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
    lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, default_root_dir=".",
                      enable_checkpointing=False, enable_progress_bar=False, callbacks=[Recorder("run")]).fit(Lit())

if __name__ == "__main__":
    if sys.argv[1] == "lightning":
        lightning()
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(train, (port,), nprocs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["spawn", "lightning"])
def test_ranks_that_the_program_starts_itself(tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train.py", how], cwd=tmp_path, env=environment, capture_output=True, timeout=200, check=False
    )
    assert done.returncode != 0 and b"Target 9 is out of bounds" in done.stderr, done.stderr
    told = {one["rank"]: one["end"]["error"]["type"] for one in ranks.read(tmp_path / "run" / "flight") if one["end"]}
    assert "IndexError" in told.values(), told
    program = record_program.read(tmp_path / "run", 1)
    assert Path(program["argv"][1]).name == "train.py" and program["argv"][2:] == [how] and program["world"] == 2
    found = replay(tmp_path / "run", timeout=150)
    fault = found.record["fault"]
    assert (fault["names"], fault["value"], fault["kind"]) == (["page_21.png"], "9", "target"), found.sentence


def test_a_process_of_another_rank_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "init_process_group", dist.init_process_group)
    monkeypatch.setattr(dist.distributed_c10d, "init_process_group", dist.init_process_group)
    given = []
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **named: given.append((args, named)))
    real = dist.init_process_group
    one_rank.begin({"rank": 1})
    assert dist.init_process_group is real, "of one rank nothing is changed"
    one_rank.begin({"rank": 1, "world": 2})
    one_rank.begin({"rank": 1, "world": 2})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    dist.init_process_group("nccl", "tcp://10.0.0.1:29500", None, 2, 1)
    ((args, named),) = given
    assert args == ("gloo",) and (named["rank"], named["world_size"]) == (0, 1) and not ended
    monkeypatch.setattr(one_rank, "_is_child", lambda: True)
    dist.init_process_group("gloo", rank=0, world_size=2)
    assert ended == [0]


class Trainer:
    def __init__(self, **named: object) -> None:
        self.named = named


def test_a_trainer_of_one_rank_trains_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "__init__", Trainer.__init__)
    one_rank.trainers({"world": 4}, None, Trainer)
    named = Trainer(devices=4, num_nodes=2, strategy="ddp", max_epochs=3).named
    assert named == {"devices": 1, "num_nodes": 1, "strategy": "auto", "max_epochs": 3}
