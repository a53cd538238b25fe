"""`ocrlab watch --record` adds the flight recorder to a script in memory; without it the edits are printed."""

import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.watch import recording_edits

TRAINER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 17:
            raise ValueError(f"bad record {index}")
        return torch.rand(4), index % 3

class Trainer:
    def __init__(self, model, loader):
        self.model = model
        self.loader = loader
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu")
    def fit(self, epochs):
        for epoch in range(epochs):
            for i, batch in enumerate(self.loader):
                self.step(batch)
    def step(self, batch):
        images, labels = batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    Trainer(nn.Linear(4, 3), loader).fit(2)
"""
FUNCTIONS = """
import torch
from torch import nn

def train_epoch(model, loader, optimizer):
    for images, labels in loader:
        loss = model(images).sum()
        loss.backward()
        optimizer.step()

def main(loader, wide):
    net = nn.Linear(4, 3)
    trained = filter(lambda p: p.requires_grad, net.parameters())
    if wide:
        optimizer = torch.optim.Adam(trained)
    else:
        optimizer = torch.optim.SGD(trained, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    average = Average(net.parameters())
    for epoch in range(10):
        train_epoch(net, loader, optimizer)
        scheduler.step()
"""
TWO = """
import torch
G, D = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())
count = sum(p.numel() for p in G.parameters())
bar = tqdm(enumerate(loader), total=5)
for step, real in bar:
    D(real).mean().backward()
    opt_d.step()
    (-D(G(noise))).mean().backward()
    opt_g.step()
"""
CLOSURE = """
import torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(net.parameters())
for it in range(10):
    def closure():
        loss = net(x).mean()
        loss.backward()
        return loss
    optimizer.step(closure)
"""
EDITS = {
    "a trainer class": (
        TRAINER,
        [
            "after line 4: import ocrlab",
            'after line 19: self.rec = ocrlab.record("runs/script", self.model, self.optimizer, scaler=self.scaler)',
            ":21: for epoch in self.rec.epochs(range(epochs)):",
            ":22: for i, batch in enumerate(self.rec.batches(self.loader)):",
            ":28: self.scaler.scale(self.rec.loss(loss)).backward()",
        ],
    ),
    "functions": (
        FUNCTIONS,
        [
            "after line 3: import ocrlab",
            ":6: for images, labels in rec.batches(loader):",
            ":8: rec.loss(loss).backward()",
            'after line 18: global rec; rec = ocrlab.record("runs/script", net, optimizer, scheduler=scheduler)',
            ":20: for epoch in rec.epochs(range(10)):",
        ],
    ),
    "two models": (
        TWO,
        [
            "after line 2: import ocrlab",
            'after line 5: rec = ocrlab.record("runs/script", [G, D], [opt_g, opt_d])',
            ":7: bar = tqdm(enumerate(rec.batches(loader)), total=5)",
        ],
    ),
    "a closure": (
        CLOSURE,
        [
            "after line 2: import ocrlab",
            'after line 4: rec = ocrlab.record("runs/script", net, optimizer)',
            ":5: for it in rec.steps(range(10)):",
            ":8: rec.loss(loss).backward()",
        ],
    ),
}
UNCLEAR = {
    "no optimizer": ("for x in loader:\n    f(x).backward()\n", "optimizer"),
    "no loop": ("opt = SGD(net.parameters())\nf(x).backward()\n", "no loop"),
    "made in the loop": ("net = f()\nfor x in y:\n    opt = SGD(net.parameters())\n    x.backward()\n", "inside of"),
    "models of a list": ("opt = SGD([p for m in models for p in m.parameters()])\nfor x in y: x.backward()", "optim"),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", EDITS)
def test_the_edits_name_model_optimizer_and_loader(name: str, tmp_path: Path) -> None:
    text, lines = EDITS[name]
    source = recording_edits.read_script(write(tmp_path, text))
    assert source is not None
    edits = recording_edits.find_edits(source)
    assert isinstance(edits, recording_edits.RecordingEdits), edits
    assert edits.lines() == [f"script.py{'' if line.startswith(':') else ', '}{line}" for line in lines]


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_script_that_is_not_clear_gets_no_edit(name: str, tmp_path: Path) -> None:
    text, words = UNCLEAR[name]
    source = recording_edits.read_script(write(tmp_path, text))
    assert source is not None
    edits = recording_edits.find_edits(source)
    assert isinstance(edits, str)
    assert words in edits


def test_a_recorded_crash_names_its_replay_and_a_plain_one_the_edits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = write(tmp_path, TRAINER)
    plain = run(tmp_path, "-m", "ocrlab", "watch", "--run-dir", "plain", "--", sys.executable, "script.py")
    assert "`ocrlab watch --record -- " in plain.stderr
    assert "self.rec.batches(self.loader)" in plain.stderr
    recorded = run(
        tmp_path, "-m", "ocrlab", "watch", "--record", "--run-dir", "recorded", "--", sys.executable, "script.py"
    )
    assert recorded.returncode == plain.returncode == 1
    assert recorded.stdout == plain.stdout
    assert "ValueError: bad record 17" in recorded.stderr
    assert "recorded_script.py" not in recorded.stderr
    assert "ocrlab replay recorded" in recorded.stderr
    assert "--record" not in recorded.stderr
    assert len(ring_reader.read_ring(ring_reader.find_rings(tmp_path / "recorded")[0]).steps) == 4
    assert script.read_text() == TRAINER


@pytest.mark.parametrize(("text", "status"), [
    ("import sys\nprint(__name__, __file__, sys.argv, sys.path[0])\nsys.exit(7)\n", 7),
    ("def f():\n    raise ValueError('x')\nf()\n", 1),
    ("x = = 1\n", 1),
    ("raise KeyboardInterrupt\n", -2),
])  # fmt: skip
def test_a_script_that_cannot_be_recorded_runs_as_it_is(text: str, status: int, tmp_path: Path) -> None:
    write(tmp_path, text)
    plain = run(tmp_path, "script.py", "--epochs", "2")
    recorded = run(tmp_path, str(recording_edits.RUNNER), "out", "script.py", "--epochs", "2")
    first, _, rest = recorded.stderr.partition("\n")
    assert first.startswith("ocrlab watch: not recorded: ")
    assert (recorded.stdout, rest, recorded.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    assert plain.returncode == status


@pytest.mark.parametrize(("call", "after"), [
    ("Trainer()", "Trainer(callbacks=[ocrlab.Recorder()])"),
    ("Trainer(max_epochs=3)", "Trainer(max_epochs=3, callbacks=[ocrlab.Recorder()])"),
    ("L.Trainer(callbacks=[Stop()])", "L.Trainer(callbacks=[ocrlab.Recorder(), Stop()])"),
])  # fmt: skip
def test_a_lightning_script_gets_the_callback(call: str, after: str, tmp_path: Path) -> None:
    script = write(tmp_path, f"import lightning as L\ntrainer = {call}\ntrainer.fit(model)\n")
    lines, by_watch = recording_edits.advice(["python", str(script)], [(str(script), 3)])
    assert not by_watch
    assert lines == [f"script.py:2: {after}  (and `import ocrlab`)"]
