"""How a program is started again without the files written since its run began, and what has changed since."""

import json
import time
from importlib import metadata

import pytest
import torch
from torch import nn

from ocrlab.debug.replay import recorded_step
from ocrlab.debug.replay.replay_job import replay
from tests.debug.replay.test_replay_job import recorded

RESUMING = """
import glob, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ocrlab.debug.recorder.loop_recorder import recording
what, out = sys.argv[1:]
torch.manual_seed(0)
net, first = nn.Linear(4, 3), 0
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if what != "newest" and os.path.exists("last.pt") or what == "newest" and glob.glob("*.pt"):
    checkpoint = torch.load(max(glob.glob("*.pt")))
    net.load_state_dict(checkpoint["net"])
    first = checkpoint["epoch"] + 1
data = DataLoader(TensorDataset(torch.randn(24, 4)), 4, shuffle=True)
with recording(out, net, optimizer) as rec:
    for epoch in range(first, 4):
        for i, (x,) in enumerate(rec.batches(data)):
            target = torch.full((4,), 3 if epoch == 3 and i == 2 else 1)
            optimizer.zero_grad()
            rec.loss(nn.functional.cross_entropy(net(x), target)).backward()
            optimizer.step()
        name = f"epoch-{epoch}.pt" if what == "newest" else "last.pt"
        torch.save({"net": net.state_dict(), "epoch": epoch}, name)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["last", "newest", "last, gone on from"])
def test_a_program_that_goes_on_from_its_checkpoint_begins_without_it(tmp_path, what, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if what == "last, gone on from":
        torch.save({"net": nn.Linear(4, 3).state_dict(), "epoch": 0}, "last.pt")
    done = replay(recorded(tmp_path, what, text=RESUMING))
    fault = done.record["fault"]
    assert (fault["step"], fault["kind"], done.record["equal"]) == (14 if "," in what else 20, "target", True), (
        done.sentence
    )
    assert [cell["cell"] for cell in done.record["cells"]] == ["traced", "traced, without later files"]
    name = "epoch-2.pt" if what == "newest" else "last.pt"
    assert done.record["cells"][0]["not_done"] == f"it began with {name}, written since the run began"
    assert (tmp_path / name).is_file()


OLD = time.time() - 1000


def test_a_page_and_a_package_that_changed_are_reported(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_text("new")
    (tmp_path / "config.yaml").write_text(f"schema: 1\ndata: {tmp_path}/data\n")
    versions = {"numpy": "0.1", "pytest": metadata.version("pytest"), "no-such-package": "1"}
    (tmp_path / "environment.json").write_text(json.dumps({"packages": versions}))
    changes = recorded_step.find_changes(
        tmp_path, {"time": OLD, "cwd": str(tmp_path)}, ["a.png", "b.png", "x" * 300, "\0"]
    )
    assert changes[0] == "written after the run began: a.png"
    assert (
        changes[1].startswith("packages have changed: numpy 0.1 is ") and "no-such-package 1 is none now" in changes[1]
    )
    assert "pytest" not in changes[1]


def test_what_is_as_it_was_or_unknown_is_not_reported(tmp_path) -> None:
    (tmp_path / "a.png").write_text("old")
    (tmp_path / "environment.json").write_text("{torn")
    assert recorded_step.find_changes(tmp_path, {"time": time.time() + 10, "cwd": str(tmp_path)}, ["a.png"]) == []
    assert recorded_step.find_changes(tmp_path, {}, ["a.png"]) == []


def test_a_script_that_is_gone_or_edited_is_reported(tmp_path) -> None:
    (tmp_path / "x.py").write_text("new")
    program = {"time": OLD, "cwd": str(tmp_path), "argv": ["python", "x.py", "gone.yaml"]}
    expected = ["x.py has changed since the run began", "gone.yaml is gone: it was started with it"]
    assert recorded_step.find_changes(tmp_path, program, []) == expected
