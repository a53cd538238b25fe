"""A hand-written loop: recorded, then run again from a snapshot, each loss equal bit for bit."""

# ruff: noqa: NPY002  # the global generator is what is tested
import io
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from ocrlab.debug.flight_record import program_info, ring_reader
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.errors import ShapeError
from tests.debug.recorder.recorded_runs import newest, replay


class Noisy(Dataset):
    """Every sample draws from all three generators, as an augmentation may."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return {"x": torch.randn(8) + random.random() + np.random.rand(), "y": index % 3, "name": f"page_{index}.png"}


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(22):
            yield torch.randn(8) + random.random(), index % 3


class Bad(Noisy):
    def __getitem__(self, index):
        if index == 13:
            raise ValueError("page 13 is broken")
        return super().__getitem__(index)


class Lines(list):
    def __iter__(self):
        for number in range(13):
            yield torch.full((4, 8), float(number)), torch.tensor([0, 1, 2, 0])
        raise ValueError("page 13 is broken")


class Ends(Noisy):
    def __getitem__(self, index):
        return os._exit(3) if index == 13 else super().__getitem__(index)


class Holes(Noisy):
    def __getitem__(self, index):
        return None if index == 13 else super().__getitem__(index)


def train(folder: Path, dataset, epochs: int = 2, accumulate: int = 1, check=lambda: None, **options) -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    workers = options.pop("workers", 0)
    shuffle = None if isinstance(dataset, IterableDataset) else True
    loader = dataset if isinstance(dataset, list) else DataLoader(dataset, 4, shuffle=shuffle, num_workers=workers)
    with recording(folder, net, optimizer, scheduler=scheduler, extra=average, **options) as rec:
        for _ in rec.epochs(epochs):
            for i, batch in enumerate(rec.batches(loader)):
                x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.cross_entropy(net(x), y) + average(x).square().mean().detach()
                (rec.loss(loss) / accumulate).backward()
                if (i + 1) % accumulate == 0:
                    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad()
                    average.update_parameters(net)
                    scheduler.step()
            with rec.validating():
                check()


@pytest.mark.parametrize(
    "dataset,options",
    [
        (Noisy(), {}), (Noisy(), {"workers": 2, "accumulate": 2}), (Subset(Noisy(), range(12)), {}),
        pytest.param(Stream(), {"workers": 2}, marks=pytest.mark.slow), (Stream(), {"batches": "raw"}),
        ([(torch.randn(4, 8), torch.tensor([0, 1, 2, 0])) for _ in range(8)], {}),
    ],
    ids=["in-line", "workers, accumulation", "subset", "stream", "raw", "list"],
)  # fmt: skip
def test_each_loss_is_equal_bit_for_bit(tmp_path, monkeypatch, dataset, options):
    options = {"snapshot_every": 3, **options}
    train(tmp_path, dataset, **options)
    recorded = newest(tmp_path)
    assert len(recorded.snapshots) == 2
    result = replay(tmp_path, monkeypatch, lambda: train(tmp_path, dataset, **options))
    assert result["finished"]
    assert len(result["steps"]) >= 4
    assert [s["equal"] for s in result["steps"]] == [True] * len(result["steps"])
    assert ring_reader.read_ring(tmp_path / "replay" / "ring.bin").now.micro == recorded.now.micro
    assert len(ring_reader.find_rings(tmp_path)) == 1, "a replay begins no record of its own"


@pytest.mark.parametrize(("data", "workers"), [(Bad(), 0), (Bad(), 2), (Lines(), 0)], ids=["map", "workers", "stream"])
def test_what_cannot_be_loaded_fails_again_in_the_replay(tmp_path, monkeypatch, data, workers):
    again = lambda: train(tmp_path, data, workers=workers, snapshot_every=2)  # noqa: E731
    with pytest.raises(ValueError, match="page 13"):
        again()
    flight = newest(tmp_path)
    assert flight.now.phase == "data"
    assert isinstance(data, Lines) or "13" in [worker.failed for worker in flight.workers]
    result = replay(tmp_path, monkeypatch, again, last=flight.now.number + 1)
    assert not result["finished"]
    assert all(s["equal"] for s in result["steps"])
    assert "page 13 is broken" in result["error"]["message"]


def test_a_step_in_which_the_program_leaves_its_loop_is_ended(tmp_path, monkeypatch):
    def walk():
        torch.manual_seed(0)
        net = nn.Linear(8, 3)
        data = [torch.randn(4, 8), torch.full((4, 8), float("nan")), torch.randn(4, 8)]
        with recording(tmp_path, net, torch.optim.SGD(net.parameters(), 0.1), snapshot_every=99) as rec:
            for _ in rec.epochs(2):
                for batch in rec.batches(data):
                    loss = rec.loss(net(batch).square().mean())
                    if loss != loss:
                        break
                    loss.backward()

    walk()
    result = replay(tmp_path, monkeypatch, walk, cell={"trace": True})
    assert [step["micro"] for step in result["steps"]] == [0, 1, 2, 3] and result["finished"]
    fault = json.loads((tmp_path / "replay" / "trace.json").read_text())["fault"]
    assert (fault["micro"], fault["tensor"]) == (1, "input batch")


class Scanned(Dataset):
    """Pages with the number of their scanner, of which one is not known."""

    def __init__(self, bad: int = -1) -> None:
        self.bad, self.names = bad, [f"scan_{index}.png" for index in range(12)]

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((8,), index / 12), torch.tensor(9 if index == self.bad else index % 3)


def scanned(folder: Path, *, inside: bool, same: bool = False, every: int | None = 99) -> None:
    """Train, and validate with one page that is wrong: after each epoch, or within it."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"source": nn.Embedding(3, 8), "head": nn.Linear(8, 3)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader, other = DataLoader(Scanned(), 4, shuffle=True), DataLoader(Scanned(7), 4, num_workers=1)
    with recording(folder, net, optimizer, snapshot_every=every) as rec:

        def validate():
            for x, source in rec.validation(loader if same else other):
                net["head"](x + net["source"](source))

        for _ in rec.epochs(2):
            for number, (x, y) in enumerate(rec.batches(loader)):
                rec.loss(nn.functional.cross_entropy(net["head"](x + net["source"](y)), y)).backward()
                optimizer.step()
                if inside and number == 1:
                    validate()
            validate()


@pytest.mark.parametrize("inside", [False, True])
def test_a_failed_validation_is_replayed_with_its_batch(tmp_path, monkeypatch, inside):
    with pytest.raises(IndexError, match="out of range"):
        scanned(tmp_path, inside=inside)
    flight = newest(tmp_path)
    assert flight.now.phase == "validation" and flight.now.micro == (1 if inside else 2)
    assert flight.sample == "validation batch 1: scan_4.png, scan_5.png, scan_6.png, scan_7.png"
    again = lambda: scanned(tmp_path, inside=inside)  # noqa: E731
    result = replay(tmp_path, monkeypatch, again, cell={"trace": True}, validate=1)
    assert len(result["steps"]) == flight.now.micro + 1 and all(step["equal"] for step in result["steps"])
    fault = json.loads((tmp_path / "replay" / "trace.json").read_text())["fault"]
    assert (fault["phase"], fault["path"], fault["names"]) == ("validation", "source", ["scan_7.png"])


def test_a_loader_may_train_and_validate(tmp_path):
    scanned(tmp_path, inside=True, same=True)
    flight = newest(tmp_path)
    assert [step.walk for step in flight.steps] == [0, 0, 0, 1, 1, 1]
    assert all(step.order["kind"] == "map" and len(step.samples) == 4 for step in flight.steps)
    assert flight.sample.startswith("validation batch 2: scan_")


def test_a_validation_is_the_same_without_a_record(tmp_path, capsys):
    (tmp_path / "flight").write_text("in the way")
    scanned(tmp_path, inside=True, same=True)
    assert "not started; training continues" in capsys.readouterr().err


def test_a_dead_worker_is_reported_with_its_sample(tmp_path, monkeypatch):
    again = lambda: train(tmp_path, Ends(), workers=2, snapshot_every=2)  # noqa: E731
    with pytest.raises((RuntimeError, OSError)):
        again()
    outcome = replay(tmp_path, monkeypatch, again, last=newest(tmp_path).now.number + 1)
    workers = ring_reader.read_ring(tmp_path / "replay" / "ring.bin").workers
    statuses = [
        worker
        for worker in workers
        if worker.pid in outcome["exited"] or str(worker.pid) in outcome["error"]["message"]
    ]
    assert [status.sample for status in statuses] == ["13"], "torch may have raised before it handed out its iterator"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_collated_is_named_by_the_replay(tmp_path, monkeypatch, workers):
    again = lambda: train(tmp_path, Holes(), workers=workers, snapshot_every=2)  # noqa: E731
    with pytest.raises((TypeError, AttributeError)):
        again()
    flight = newest(tmp_path)
    failed = [worker.failed for worker in flight.workers if worker.failed]
    assert len(failed) == 1 and "13" in failed[0].removeprefix("batch of ").split(", ")
    result = replay(tmp_path, monkeypatch, again, last=flight.now.number + 1)
    assert not result["finished"] and "error" in result
    statuses = ring_reader.read_ring(tmp_path / "replay" / "ring.bin").workers
    assert [worker.failed for worker in statuses if worker.failed] == ["13"]


def test_names_phases_and_rates_are_in_the_record(tmp_path):
    train(tmp_path, Noisy(), epochs=1)
    flight = newest(tmp_path)
    assert all(name.startswith("page_") for step in flight.steps for name in step.samples)
    assert [step.number for step in flight.steps] == list(range(6))
    assert flight.steps[3].lr == pytest.approx(0.009)
    assert flight.steps[1].loss_before == flight.steps[0].loss
    assert flight.steps[0].memory["rss"] > 1 << 20
    assert flight.now.stage == "", "the last stage of the forward is not reported for later phases"
    assert program_info.read(tmp_path)["kind"] == "loop"


def test_a_replay_saves_to_memory_and_writes_no_file(tmp_path, monkeypatch):
    def check():
        buffer = io.BytesIO()
        torch.save({"w": torch.ones(3)}, buffer)
        buffer.seek(0)
        assert torch.load(buffer)["w"].sum() == 3
        torch.save(torch.ones(3), tmp_path / "saved.pt")

    train(tmp_path, Noisy(), check=check)
    (tmp_path / "saved.pt").unlink()
    result = replay(tmp_path, monkeypatch, lambda: train(tmp_path, Noisy(), check=check))
    assert result["finished"] and result["error"] is None
    assert not (tmp_path / "saved.pt").exists()


def test_recording_changes_nothing(tmp_path):
    """The generators, and so the loss of every step, are as without it; all hooks are gone at the end."""

    def losses(folder):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        loader = DataLoader(Noisy(), 4, shuffle=True)
        values = []
        if folder is None:
            values = [net(batch["x"]).mean().item() for batch in loader]
        else:
            with recording(folder, net, snapshot_every=1) as rec:
                values = [float(rec.loss(net(batch["x"]).mean()).detach()) for batch in rec.batches(loader)]
            assert "_get_iterator" not in loader.__dict__
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
        return values

    random.seed(1)
    np.random.seed(1)
    without = losses(None)
    random.seed(1)
    np.random.seed(1)
    assert losses(tmp_path) == without


def test_what_is_no_model_is_refused_in_words(tmp_path):
    with pytest.raises(ShapeError, match="needs a torch model"), recording(tmp_path, None):
        pass


KILLED = """
import os, signal, sys, threading, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ocrlab.debug.recorder.loop_recorder import recording
class Slow(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.ones(4), i
def die():
    time.sleep(float(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
torch.set_num_threads(1)
net = nn.Linear(4, 1)
with recording(sys.argv[1], net) as rec:
    for x, y in rec.batches(DataLoader(Slow(), 4, num_workers=2)):
        if rec.micro == 3: threading.Thread(target=die).start()
        rec.loss(net(x).mean()).backward()
"""


def test_after_kill_9_the_record_has_the_last_step_and_each_workers_sample(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, "0.13"], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    flight = newest(tmp_path)
    assert flight.torn == 0
    assert flight.now.micro >= 3
    assert flight.now.samples == [str(4 * flight.now.micro + i) for i in range(4)]
    assert [worker.worker for worker in flight.workers] == [0, 1]
    assert all(int(worker.sample) // 4 % 2 == worker.worker for worker in flight.workers)


def test_a_training_that_ends_with_nan_or_an_error_ends_with_the_command_to_run(tmp_path):
    program = """
import torch, ocrlab
model = torch.nn.Linear(2, 1)
batches = [(torch.tensor([[1.0, float("nan")]]), torch.ones(1, 1))] * 3
for name in ("nan", "error"):
    with ocrlab.record(f"runs/{name}", model) as rec:
        for inputs, targets in rec.batches(batches):
            rec.loss(torch.nn.functional.mse_loss(model(inputs), targets)).backward()
            if name == "error":
                raise ValueError("no")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    for name in ("nan", "error"):
        assert f"`ocrlab replay runs/{name}`" in done.stderr, done.stderr
