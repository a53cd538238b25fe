"""What users train: scaler, several optimizers, dict batches, models that return dicts, compiled models."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ocrlab.debug.recorder.loop_recorder import recording
from tests.debug.recorder.recorded_runs import newest, replay


class Tokens(Dataset):
    """As of `datasets`: a dict of tensors for a row, asked for in whole batches."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"input_ids": torch.full((6,), index), "labels": torch.tensor(index % 2)}

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Bag(nn.Module):
    """Returns a dict, as transformers do."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 2))

    def forward(self, input_ids, labels):
        logits = self.classifier(self.embedding(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def tokens(folder: Path) -> None:
    """Two optimizers, each with a schedule, a scaler, and the loss in a dict."""
    torch.manual_seed(0)
    model = Bag()
    both = [torch.optim.SGD(part.parameters(), 0.1) for part in (model.embedding, model.classifier)]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in both]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    loader = DataLoader(Tokens(), 4, shuffle=True)
    with recording(folder, model, both, scheduler=schedules, scaler=scaler, snapshot_every=3) as rec:
        for _ in rec.epochs(2):
            for batch in rec.batches(loader):
                out = model(**batch)
                rec.loss(out["loss"])
                scaler.scale(out["loss"]).backward()
                for optimizer, schedule in zip(both, schedules, strict=True):
                    scaler.step(optimizer)
                    schedule.step()
                scaler.update()
                for optimizer in both:
                    optimizer.zero_grad()


def test_scaler_two_optimizers_and_dict_batches_replay_bit_for_bit(tmp_path, monkeypatch):
    tokens(tmp_path)
    recorded = newest(tmp_path)
    assert [step.number for step in recorded.steps] == list(range(10)), "two optimizers make one step"
    assert sorted(int(name) for step in recorded.steps[:5] for name in step.samples) == list(range(20))
    result = replay(tmp_path, monkeypatch, lambda: tokens(tmp_path))
    assert result["finished"]
    assert len(result["steps"]) >= 3
    assert all(step["equal"] for step in result["steps"])


def compiled(folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    fast = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(folder, fast, optimizer, snapshot_every=2) as rec:
        for (x,) in rec.batches(DataLoader(TensorDataset(torch.randn(20, 8)), 4, shuffle=True)):
            rec.loss(fast(x).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.slow
def test_a_compiled_model_is_recorded_and_replayed(tmp_path, monkeypatch):
    compiled(tmp_path)
    result = replay(tmp_path, monkeypatch, lambda: compiled(tmp_path))
    assert result["finished"]
    assert all(step["equal"] for step in result["steps"])


def test_what_has_no_state_is_named_by_the_replay(tmp_path, monkeypatch):
    def train():
        net = nn.Linear(2, 1)
        extra = {"bank": [1.0, 2.0], "average": torch.optim.swa_utils.AveragedModel(net)}
        with recording(tmp_path, net, torch.optim.SGD(net.parameters(), 0.1), extra=extra) as rec:
            for (x,) in rec.batches(DataLoader(TensorDataset(torch.ones(4, 2)), 2)):
                rec.loss(net(x).mean()).backward()

    train()
    assert replay(tmp_path, monkeypatch, train)["warnings"] == [
        "not in the snapshot: extra.bank: list has no state_dict"
    ]
