"""What torch's anomaly mode says of a replay: which call of the forward has made the node that returned NaN.

Source: torch.autograd.detect_anomaly, which warns with the stack of that call.
"""

from __future__ import annotations

import re
from pathlib import Path

from ocrlab.debug.replay import variants
from ocrlab.debug.replay.trial import TrialResult, own_lines

DETECTED = re.compile(
    r"Error detected in (?P<node>\w+)\. +Traceback of forward call that caused the error:\n(?P<stack>(?: {2}.*\n)+)"
)


def add_forward_line(outcome: TrialResult, place: Path) -> TrialResult:
    """Take the line of the forward into the fault of the cell with anomaly mode; other outcomes stay as they are."""
    if outcome.variant.name == variants.ANOMALY.name and outcome.fault is not None:
        text = (place / "output.txt").read_text(encoding="utf-8", errors="replace")
        match = DETECTED.search(text)
        lines = own_lines(match["stack"]) if match else []
        if match and lines:
            outcome.fault = {**outcome.fault, "forward": lines[-1], "node": match["node"]}
    return outcome
