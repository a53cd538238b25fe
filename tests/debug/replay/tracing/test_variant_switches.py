"""What a cell switches holds for the rest of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ocrlab.debug.replay.tracing import tracer

CODE = """
import torch
from ocrlab.debug.replay.tracing.tracer import prepare
prepare({"fp32": True, "threads": 1, "mkldnn": False, "anomaly": True})
with torch.autocast("cpu", torch.bfloat16):
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
assert torch.get_num_threads() == 1 and torch.is_anomaly_enabled()
assert not torch.backends.mkldnn.enabled
"""


def test_a_cell_is_switched() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run(
        [sys.executable, "-c", CODE], cwd=Path(__file__).parents[4], env=environment, check=True, timeout=120
    )


def test_nothing_is_switched_where_nothing_is_asked_for() -> None:
    before = __import__("torch").autocast.__init__
    tracer.prepare({})
    assert __import__("torch").autocast.__init__ is before
