"""The sections of the doctor's notebook: the ten steps, the table of findings, and their share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ocrlab.config.schema import Config
from ocrlab.hardware.doctor import doctor_job as doctor
from ocrlab.hardware.doctor.check_spec import Options, interpreter
from ocrlab.notebook.lab_session import Block
from ocrlab.records import Check
from ocrlab.reports import doctor_view, progress_view
from ocrlab.reports.view import View, join_views


def climb(config: Config, python: str = "") -> list[Check]:
    """Return the findings of all ten steps, shown live; every check runs in a child, so that no check ends the kernel.

    `python` is an interpreter by path or by name, empty for the kernel's own; raises ConfigError where there is none.
    """
    options = Options(interpreter(python or sys.executable), Path(config.runs))
    live, total = progress_view.Live("Ten steps check this machine", Block().update), len(doctor.STEPS)
    checks = doctor.run(
        options,
        lambda complete, _: live({"kind": "measure", "unit": "step", "step": len(complete), "total": total}),
    )
    live({"kind": "end", "unit": "step", "step": total, "total": total})
    return checks


def findings(checks: Sequence[Check]) -> View:
    """Return the table of findings, and what is true where many guides are wrong."""
    return join_views([doctor_view.table(checks), doctor_view.notes()])


def share(checks: Sequence[Check]) -> float:
    """Return the share of the ten steps in which nothing fails."""
    failed = {check.step for check in checks if check.judgement == "fail"}
    return 1 - len(failed) / len(doctor.STEPS)
