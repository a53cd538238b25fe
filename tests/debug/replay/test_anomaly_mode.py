"""What anomaly mode says is read off the output of a real program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ocrlab.debug.replay import replay_summary, tool_reports, variants
from ocrlab.debug.replay.trial import TrialResult

PROGRAM = """
import torch

def length(x):
    return torch.where(x > 0, x.sqrt(), x)

x = torch.zeros(2, requires_grad=True)
with torch.autograd.set_detect_anomaly(True):
    length(x).sum().backward()
"""


def test_the_line_of_the_forward_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    (tmp_path / "output.txt").write_text(ended.stderr)
    fault = {"kind": "nonfinite", "phase": "backward", "tensor": "gradient", "value": "NaN"}
    outcome = tool_reports.add_forward_line(TrialResult(variants.ANOMALY, dict(fault)), tmp_path)
    assert outcome.fault is not None and outcome.fault["forward"] == f"{program}:5 length", ended.stderr
    (sentence,) = replay_summary._apart([TrialResult(variants.TRACED, fault), outcome])
    assert sentence == f"anomaly mode names `SqrtBackward0`, made in the forward at `{program}:5 length`"
    (tmp_path / "output.txt").write_text("RuntimeError: Function 'SqrtBackward0' returned nan values")
    silent = tool_reports.add_forward_line(TrialResult(variants.ANOMALY, dict(fault)), tmp_path)
    assert replay_summary._apart([TrialResult(variants.TRACED, fault), silent]) == ["still happens under anomaly mode"]
    assert tool_reports.add_forward_line(TrialResult(variants.TRACED, dict(fault)), tmp_path).fault == fault
