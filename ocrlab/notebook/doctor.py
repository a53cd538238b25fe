"""The sections of the doctor's notebook: the ladder with its ten steps, the table of findings, and their share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ocrlab.config import Config
from ocrlab.doctor import ladder as doctor
from ocrlab.doctor.ask import Options, interpreter
from ocrlab.notebook.lab import Block
from ocrlab.records import Check
from ocrlab.report import ladder
from ocrlab.report.view import View, together


def climb(config: Config, python: str = "") -> list[Check]:
    """Return the findings of all ten steps, shown live; every check runs in a child, so that no check ends the kernel.

    `python` is an interpreter by path or by name, empty for the kernel's own; raises ConfigError where there is none.
    """
    options = Options(interpreter(python or sys.executable), Path(config.runs))
    return doctor.run(options, ladder.Climb(Block().update))


def findings(checks: Sequence[Check]) -> View:
    """Return the table of findings, and what is true where many guides are wrong."""
    return together([ladder.table(checks), ladder.notes()])


def share(checks: Sequence[Check]) -> float:
    """Return the share of the ten steps in which nothing fails."""
    failed = {check.step for check in checks if check.judgement == "fail"}
    return 1 - len(failed) / len(doctor.STEPS)
