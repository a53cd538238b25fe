"""How a program is started again: what was written since its run began is not there when it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

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
def test_a_program_that_goes_on_from_its_checkpoint_begins_without_it(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
