"""A run folder that is recorded into twice: what was found out about the first start is not read as of the second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ocrlab.reports import list_runs

PROGRAM = """
import sys, torch, ocrlab
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
with ocrlab.record("run", model, optimizer) as rec:
    for _ in rec.epochs(6):
        for inputs, wanted in rec.batches(torch.utils.data.DataLoader(data, batch_size=8)):
            optimizer.zero_grad()
            loss = ((model(inputs) - wanted) ** 2).mean()
            loss.backward()
            optimizer.step()
            rec.loss(loss)
"""


def python(tmp_path: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_start_is_kept_and_does_not_speak_for_the_second(tmp_path: Path) -> None:
    run = tmp_path / "run"
    python(tmp_path, "-c", PROGRAM, "1e30")
    [listed] = list_runs(run)
    assert listed.status == "diverged" and listed.why.startswith("the loss is nan")
    answer = {"schema": 1, "answer": "first fault at step 1: NaN", "fault": {"kind": "nonfinite"}}
    (run / "incident").mkdir()
    (run / "incident/replay.json").write_text(json.dumps(answer))
    first = python(tmp_path, "-m", "ocrlab", "diagnose", "run")
    assert "first fault at step 1: NaN" in first and "the loss is nan" in first

    python(tmp_path, "-c", PROGRAM, "0.01")
    second = python(tmp_path, "-m", "ocrlab", "diagnose", "run")
    assert "NaN" not in second and "the loss is nan" not in second
    assert list_runs(run)[0].status == "recorded"
    aside = run / "flight/start-0"
    assert "the loss is nan" in (aside / "learned-0.json").read_text()
    assert json.loads((aside / "incident-replay.json").read_text()) == answer
