"""What became of a child, in words: its stage, its last output, and what to do next."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.hardware.doctor import failed_probe
from ocrlab.hardware.doctor.probe_runner import ProbeResult

DUMP = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/site/packages/torch/nn/modules/conv.py", line 7 in forward
  File "/site/packages/torch/nn/modules/module.py", line 9 in _call
  File "<frozen importlib._bootstrap>", line 3 in _load
  File "/x/ocrlab/hardware/doctor/probe_child.py", line 4 in main
"""


def test_the_stack_is_that_of_the_program() -> None:
    assert failed_probe.stack(DUMP) == ["forward (nn/modules/conv.py:7)", "_call (nn/modules/module.py:9)"]
    assert failed_probe.stack("nothing") == []


def test_a_signal_with_its_stage_and_frame(ask: Any) -> None:
    ran = ProbeResult({"at": "a convolution"}, code=-11, errors=DUMP)
    [check] = failed_probe.checks(ask("answer", "smoke test"), ran)
    assert check.observed.startswith("died of SIGSEGV at a convolution")
    assert "forward (nn/modules/conv.py:7)" in check.observed


@pytest.mark.parametrize("cause", failed_probe.REMEDIES)
def test_a_hang_with_a_cause_has_its_remedy(cause: str, ask: Any) -> None:
    [check] = failed_probe.checks(ask("answer", hang=cause), ProbeResult(ended="deadline", seconds=9))
    assert (check.cause, check.do) == (cause, failed_probe.REMEDIES[cause])
