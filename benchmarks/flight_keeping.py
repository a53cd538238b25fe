"""Is a fault named that depends on what the program itself keeps, when the record reaches back to no beginning?

Each program trains for more than 600 steps, of which the record keeps the last 512. It fails because of a value that
was not passed to recording(): an epoch of `range`, a list, an average, a data set in its worker. A row of flight.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flight_replays

BEGIN = """
import collections, copy, itertools, os, queue, random, sys, threading, time
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from tqdm import tqdm
from ocrlab.debug.recorder.lightning_callback import Recorder, recording

X, Y = torch.randn(160, 8), torch.from_numpy(np.random.randn(160, 1).astype("f"))  # nobody has seeded them
class Pages(Dataset):
    def __init__(self):
        self.calls = []
    def __len__(self):
        return 160
    def __getitem__(self, i):
        self.calls.append(i)
        return X[i], Y[i]
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
mse = nn.functional.mse_loss
def step(rec, x, y, more=0.0):
    loss = rec.loss(mse(net(x), y) + more)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
def rate(value):
    optimizer.param_groups[0]["lr"] = value
def fail():
    net(torch.ones(2, 7))
loader = DataLoader(Pages(), 4, shuffle=True)
"""
LOOPS = {  # name: what is written inside of recording()
    "epochs of range": """
    for epoch in range(30):
        rate(0.01 * 0.95 ** epoch)
        for i, (x, y) in enumerate(rec.batches(loader)):
            if epoch == 17 and i == 3:
                fail()
            step(rec, x, y)
""",
    "steps of range": """
    batches = iter(rec.batches(loader))
    for number in range(2000):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(rec.batches(loader))
            x, y = next(batches)
        rate(0.01 / (1 + number / 100))
        step(rec, x, y)
        if number == 683:
            fail()
""",
    "zip with range": """
    def stream():
        while True:
            chosen = torch.randint(160, (4,))
            yield X[chosen], Y[chosen]
    for number, (x, y) in zip(range(2000), rec.batches(stream())):
        rate(0.01 / (1 + number / 100))
        step(rec, x, y)
        if number == 683:
            fail()
""",
    "tqdm of range": """
    for epoch in tqdm(range(30)):
        for i, (x, y) in tqdm(enumerate(rec.batches(loader)), total=40):
            rate(0.01 / (1 + epoch * 40 + i))
            step(rec, x, y)
            if epoch * 40 + i == 683:
                fail()
""",
    "count": """
    numbers = itertools.count()
    for epoch in itertools.count():
        for x, y in rec.batches(loader):
            number = next(numbers)
            rate(0.01 / (1 + number))
            step(rec, x, y)
            if number == 683:
                fail()
""",
    "scheduler": """
    schedule, number = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n)), 0
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            step(rec, x, y)
            schedule.step()
            if schedule.last_epoch == 684:
                fail()
""",
    "teacher": """
    teacher, number = copy.deepcopy(net).eval(), 0
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            with torch.no_grad():
                wanted = teacher(x)
                for average, new in zip(teacher.parameters(), net.parameters()):
                    average.mul_(0.99).add_(new, alpha=0.01)
            step(rec, x, y, mse(net(x), wanted))
            number += 1
            if number == 684:
                fail()
""",
    "window of losses": """
    window = collections.deque(maxlen=50)
    history = []
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            mean = sum(window) / max(1, len(window))
            window.append(step(rec, x, y, 0.01 * mean))
            history.append(window[-1])
            if len(history) == 684:
                fail()
""",
    "list of a closure": """
    weights = [1.0]
    def weight():
        weights.append(weights[-1] * 1.002)
        return float("inf") if len(weights) == 685 else weights[-1]
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            if not np.isfinite(step(rec, x * weight(), y)):
                sys.exit("the loss is not finite")
""",
    "own generators": """
    dice, noise, number = random.Random(5), np.random.default_rng(5), 0
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            x = x * dice.random() + float(noise.normal())
            step(rec, x, y)
            number += 1
            if number > 600 and dice.random() > 0.98:
                fail()
""",
    "data set": """
    class Counting(Pages):
        def __getitem__(self, i):
            if len(self.calls) == 2733:
                raise OSError(f"page {i} is gone")
            return super().__getitem__(i)
    loader = DataLoader(Counting(), 4, shuffle=True)
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            step(rec, x, y)
""",
    "data set in workers": """
    class Counting(Pages):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x, y * float("nan") if len(self.calls) == 1367 else y
    loader = DataLoader(Counting(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            if not np.isfinite(step(rec, x, y)):
                sys.exit("the loss is not finite")
""",
    "stream": """
    class Stream(IterableDataset):
        number = 0
        def __iter__(self):
            for i in torch.randperm(160).tolist():
                Stream.number += 1
                yield X[i], Y[i] * float("nan") if Stream.number == 2735 else Y[i]
    for epoch in rec.epochs(30):
        for x, y in rec.batches(DataLoader(Stream(), 4)):
            if not np.isfinite(step(rec, x, y)):
                sys.exit("the loss is not finite")
""",
    "killed": """
    history = []
    class Counting(nn.Module):
        def forward(self, x):
            history.append(1)
            if len(history) == 684:
                os.kill(os.getpid(), 11)
            return x
    net.append(Counting())
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            step(rec, x, y)
""",
    "validation": """
    scores = []
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            step(rec, x, y)
        for x, y in rec.validation(DataLoader(Pages(), 16)):
            scores.append(mse(net(x), y).item())
            if len(scores) == 173:
                fail()
""",
    "after the loop": """
    means = []
    for epoch in rec.epochs(30):
        means.append(sum(step(rec, x, y) for x, y in rec.batches(loader)) / 40)
        if len(means) == 17:
            raise RuntimeError("no better in three epochs")
""",
    "accumulation": """
    history = []
    for epoch in rec.epochs(30):
        for i, (x, y) in enumerate(rec.batches(loader)):
            loss = rec.loss(mse(net(x), y) / 4)
            loss.backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
                history.append(loss.item())
                if len(history) == 171:
                    fail()
""",
    "another folder": """
    history = []
    for epoch in rec.epochs(30):
        for x, y in rec.batches(loader):
            history.append(step(rec, x, y))
            if len(history) == 684:
                fail()
""",
}
LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import EarlyStopping
from torch.optim.lr_scheduler import ReduceLROnPlateau

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.history = net, []
    def training_step(self, batch, index):
        self.history.append(1)
        if len(self.history) == 684:
            fail()
        return mse(self.net(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.log("score", mse(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "score"}}

if __name__ == "__main__":
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=30, callbacks=[Recorder("run"), EarlyStopping("score", patience=99)],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Model(), loader, DataLoader(Pages(), 16))
"""
PHASES = {"data set": "data", "validation": "validation", "after the loop": "after the last batch"}  # as recorded
STEPS: dict[str, int | None] = {"validation": 719, "after the loop": 679, "accumulation": 170}  # of others 683
STEPS |= {"own generators": None, "data set in workers": None}  # nobody knows before
AWAY = 'os.makedirs("there", exist_ok=True)\nos.chdir("there")  # as Hydra does\nwith recording("../run"'


def programs() -> dict[str, str]:
    """Return the programs by name."""
    loops = {name: f'{BEGIN}\nwith recording("run", net, optimizer) as rec:{body}' for name, body in LOOPS.items()}
    loops["another folder"] = loops["another folder"].replace('with recording("run"', AWAY)
    return {**loops, "lightning": BEGIN + LIGHTNING}


def once(name: str, text: str) -> dict[str, Any]:
    """Run one program until it fails, and replay it; returns the record of the replay, empty where there is none."""
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        Path(folder, "train.py").write_text(text)
        options: Any = {"cwd": folder, "capture_output": True, "timeout": 280, "check": False}
        environment = {**flight_replays.environment(), "OMP_NUM_THREADS": "1", "PWD": folder}
        subprocess.run([sys.executable, "train.py"], env=environment, **options)
        done = subprocess.run([*flight_replays.COMMAND, "replay", "run"], env=environment, text=True, **options)
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(Path(folder, "run/incident/replay.json").read_text()))
        print(f"{name}: {done.stdout[-300:]}{done.stderr[-600:]}", file=sys.stderr)
    return {}


def right(name: str, record: Mapping[str, Any]) -> bool:
    """Return whether the fault came again, at its step and in its phase, in the same computation."""
    fault, number = record.get("fault") or {}, STEPS.get(name, 683)
    placed = bool(fault) and number in (None, fault.get("step")) and PHASES.get(name) in (None, fault.get("phase"))
    return placed and record.get("equal") is True


def row(smoke: bool, details: list[str]) -> tuple[str, str, str, bool | None]:
    """Return the row of the table."""
    examples = list(programs().items())[: 2 if smoke else None]
    wrong, short, seconds = [], 0, []
    for name, text in examples:
        record = once(name, text)
        cells = [cell["cell"] for cell in record.get("cells") or ()]
        short += right(name, record) and not any("from the beginning" in cell for cell in cells)
        seconds.append(float(record.get("seconds") or 0.0))
        if not right(name, record):
            wrong.append(f"{name}: {record.get('answer') or 'no answer'}")
        print(f"{name}: {right(name, record)}, {seconds[-1]:.0f} s, {', '.join(cells)}", file=sys.stderr, flush=True)
    details += [f"Not named: {'; '.join(wrong)}"] if wrong else []
    count = len(examples) - len(wrong)
    summary = f"{count} of {len(examples)}, {short} of them from a snapshot, the rest from the beginning; slowest"
    what = "faults that depend on what the program keeps, after 600 steps and more: the fault, the losses bit for bit"
    return what, "all", f"{summary} {max(seconds):.0f} s", not wrong


if __name__ == "__main__":
    print(row(os.environ.get("SMOKE") == "1", []))
