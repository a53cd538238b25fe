"""`ocrlab.record` as a plain object and as a context, in programs of their own: what is recorded however they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ocrlab
from ocrlab.debug.flight_record import program_info
from ocrlab.debug.recorder import loop_recorder
from tests.debug.recorder.recorded_runs import newest

ROOT = Path(__file__).parents[3]
# The shape of nanoGPT's train.py: no data set, no loader, no function around the loop; two added lines.
TRAIN = """
import os, signal, sys, torch
from torch import nn
import ocrlab
torch.manual_seed(1337)
how, when = sys.argv[1], int(sys.argv[2])

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.block, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50)
    def forward(self, idx, targets):
        logits = self.head(self.block(self.wte(idx)).relu())
        return logits, nn.functional.cross_entropy(logits.view(-1, 50), targets.view(-1))

data = {split: torch.randint(0, 50, (4000,)) for split in ("train", "val")}
drawn = {"train": 0, "val": 0}
def get_batch(split):
    drawn[split] += 1
    begin = torch.randint(3990, (4,))
    x = torch.stack([data[split][i : i + 8] for i in begin])
    y = torch.stack([data[split][i + 1 : i + 9] for i in begin])
    if split == how and drawn[split] == when:
        x[2, 3] = 99  # a token out of range
    if how == "data" and drawn["train"] == when:
        raise OSError("a shard is gone")
    return x, y

model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rec = ocrlab.record("run", model, optimizer)

@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {split: sum(model(*get_batch(split))[1].item() for _ in range(2)) for split in ("train", "val")}
    model.train()
    return out

x, y = get_batch("train")
step = 0
while True:
    if step % 10 == 0:
        estimate_loss()
    for micro in range(2):
        logits, loss = model(x, y)
        x, y = get_batch("train")
        (loss / 2).backward()
    if step == when and how == "exit":
        sys.exit(3)
    if step == when and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    if step > 30:
        break
"""


BLOCKED = """
import sys
sys.modules |= dict.fromkeys(["lightning", "pandas", "matplotlib", "wandb", "torchvision", "cv2"])  # None: not there
exec(compile(open("train.py").read(), "train.py", "exec"))
"""


def train(folder: Path, how: str, when: int) -> subprocess.CompletedProcess[str]:
    """Run the program to whatever end it takes; without a fault, without Lightning and others too."""
    (folder / "train.py").write_text(TRAIN)
    return ran(folder, *(["-c", BLOCKED] if how == "none" else ["train.py"]), how, str(when))


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with this tree's ocrlab."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False, env=environment
    )


# What is drawn, and when, was counted in the program: two batches of each split at steps 0, 10, 20 and 30.
ENDS = {
    "finished": ("none", 0, 0, (30, "data", "")),
    "an error of the training": ("train", 40, 1, (17, "forward", "wte")),
    "an error of the first validation": ("val", 1, 1, (0, "validation", "wte")),
    "an error of a later validation": ("val", 4, 1, (10, "validation", "wte")),
    "an error while a batch is drawn": ("data", 40, 1, (17, "loss", "head")),
    "sys.exit": ("exit", 12, 3, (12, "backward", "")),
    "SIGKILL": ("kill", 12, -signal.SIGKILL, (12, "backward", "")),
}


MANY = {"an error of the first validation", "an error of the training", "an error while a batch is drawn", "sys.exit"}


@pytest.mark.parametrize("end", [pytest.param(end, marks=[pytest.mark.slow] * (end in MANY)) for end in ENDS])
def test_a_program_with_two_more_lines_is_recorded_however_it_ends(tmp_path: Path, end: str) -> None:
    how, when, status, place = ENDS[end]
    done = train(tmp_path, how, when)
    assert done.returncode == status, done.stderr
    assert status != 1 or done.stderr.count("Traceback") == 1
    assert "in train mode" not in done.stderr, "the validation is in eval mode, the training after it is not"
    flight = newest(tmp_path / "run")
    assert flight.now is not None and flight.torn == 0
    assert (flight.now.number, flight.now.phase, flight.now.stage) == place
    assert [step.number for step in flight.steps] == [*range(place[0] + 1)]
    assert all(step.loss is not None for step in flight.steps[:-1])
    assert program_info.read(tmp_path / "run")["from_start"] is True


class Net(nn.Module):
    """A model with dropout that knows its own number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(nn.functional.dropout(self.a(x), 0.1, self.training))


def test_steps_may_be_a_number_parts_or_endless(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with ocrlab.record(tmp_path, model, optimizer) as rec:
        assert [*rec.steps(3)] == [0, 1, 2]
        assert [*rec.steps("ab")] == ["a", "b"]
        for step in rec.steps():
            if step == 4:
                break
    assert [s.number for s in newest(tmp_path).steps] == [*range(10)]


def test_a_call_of_the_model_before_the_loop_is_no_step(tmp_path: Path) -> None:
    """Its shapes are looked at, say; then `rec.batches` says where steps begin, and snapshots are taken."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rec = ocrlab.record(tmp_path, model, optimizer, snapshot_every=2)
    model(torch.ones(1, 4)).sum()
    for batch in rec.batches([torch.ones(2, 4)] * 5):
        rec.loss(model(batch).sum()).backward()
        optimizer.step()
    rec.close()
    flight = newest(tmp_path)
    assert [(s.number, s.micro) for s in flight.steps] == [(i, i) for i in range(5)] and flight.snapshots
    assert not program_info.read(tmp_path).get("from_start")


def everything(*parts: object) -> list[object]:
    """Return what somebody could have left in a process, and in the parts of a training."""
    values: list[object] = [sys.excepthook, dict(os.environ), sys.gettrace(), sys.getprofile(), torch.save]
    values += [signal.getsignal(number) for number in signal.valid_signals()]
    for part in parts:
        inner = [part, *part.modules()] if isinstance(part, nn.Module) else [part]
        for module in inner:
            values.append(type(module))
            values.append(
                {n: len(v) if isinstance(v, dict) else id(v) for n, v in vars(module).items() if n != "_step_count"}
            )
        if isinstance(part, nn.Module):
            values += [(len(p._backward_hooks or ()), p.requires_grad) for p in part.parameters()]
    return values


@pytest.mark.parametrize("how", ["context", "object", "plain", "steps", "error"])
def test_after_its_end_nothing_is_left(tmp_path: Path, how: str) -> None:
    model, other = Net(), TensorDataset(torch.randn(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(other, 3, num_workers=2, persistent_workers=True)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert len([*DataLoader(other, 3, num_workers=1)]) == 4  # torch sets a handler of SIGCHLD for the first workers
    before = everything(model, optimizer, loader, other)
    outputs: list[torch.Tensor] = []

    def step(rec: loop_recorder.LoopRecorder, batch: torch.Tensor) -> None:
        outputs.append(model(batch))
        loss = outputs[-1].sum() if how == "plain" else rec.loss(outputs[-1].sum())
        loss.backward()
        optimizer.step()

    rec = ocrlab.record(tmp_path, model, optimizer, snapshot_every=2)
    if how in ("context", "error"):
        try:
            with rec:
                for (batch,) in rec.batches(loader):
                    step(rec, batch)
                    assert how == "context" or len(outputs) < 3
        except AssertionError:
            assert how == "error"
    elif how == "object":
        for (batch,) in rec.batches(loader):
            step(rec, batch)
        for _ in rec.validation(loader):
            pass
    else:
        for number in rec.steps(4) if how == "steps" else range(4):
            step(rec, torch.full((2, 4), float(number)))
    rec.close()
    assert everything(model, optimizer, loader, other) == before
    assert all(not tensor._backward_hooks for tensor in outputs)
    assert not loop_recorder.OPEN_LOOPS
    assert rec.step_recorder is not None and not rec.step_recorder.on
    assert len([*loader]) == 4


def test_a_cell_that_is_executed_again_ends_the_recording_before(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    first = ocrlab.record(tmp_path / "a", model, optimizer)
    second = ocrlab.record(tmp_path / "b", model, optimizer)
    assert first.is_closed and not second.is_closed
    second.close()
    assert not model._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks
