"""Runs whose record does not reach back to their beginning are made again from there, with all that they keep."""

import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.debug.replay.replay_job import replay
from ocrlab.errors import ConfigError

PROGRAM = """
import random, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ocrlab.debug.recorder.loop_recorder import recording

what, out = sys.argv[1:]

class Pages(Dataset):
    def __init__(self):
        self.calls = []  # in a worker nobody sees it
    def __len__(self):
        return 12
    def __getitem__(self, i):
        self.calls.append(i)
        if what == "worker" and len(self.calls) == 70:
            raise OSError(f"page {i} is gone")
        return torch.full((4,), i / 12 + random.random()), i % 3

def main():
    net, steps = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2)), []
    loader = DataLoader(Pages(), batch_size=3, shuffle=True, num_workers=1, persistent_workers=True)
    with recording(out, net, snapshot_every=4, steps=20) as rec:
        for epoch in range(8):
            for x, y in rec.batches(loader):
                steps.append(epoch)
                loss = rec.loss(nn.functional.cross_entropy(net(x), y) * len(steps))
                net.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for parameter in net.parameters():
                        parameter -= 0.1 * parameter.grad
                if what == "torn" and len(steps) == 30:
                    net(x[:, :3])

if __name__ == "__main__":
    main()
"""


def run(tmp_path: Path, what: str) -> Path:
    program, folder = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program, what, folder], capture_output=True, timeout=120, check=False)
    assert done.returncode == 1
    return folder


def test_what_a_data_set_keeps_in_its_worker_is_there_again(tmp_path: Path) -> None:
    """Python's random numbers, that nobody has seeded, too."""
    answer = replay(run(tmp_path, "worker"))
    assert "first fault at step 23, data" in answer.sentence and "is gone; sample `" in answer.sentence
    cell = answer.record["cells"][-1]
    assert cell["cell"] == "traced, from the beginning"
    assert len(cell["steps"]) == 20 and all(step["equal"] for step in cell["steps"])
    assert answer.record["equal"] is True and not answer.record["warnings"]


@pytest.mark.slow
def test_without_a_snapshot_a_run_is_rerun_from_its_beginning(tmp_path: Path) -> None:
    folder = run(tmp_path, "torn")
    for path in folder.glob("flight/snapshot*"):
        path.unlink()
    answer = replay(folder)
    assert "first fault at step 29, forward, `0` (Linear 4->3, call 2), op `aten::addmm`" in answer.sentence
    assert [row[0] for row in answer.rows[1:]] == ["traced, from the beginning", "samples alone"]
    assert answer.record["equal"] is True
    with pytest.raises(ConfigError, match=r"time is too short.*run from the beginning.*--timeout \d+"):
        replay(folder, timeout=0.01)
