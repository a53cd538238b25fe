"""Experiments as one can type them: the watched program's own command and run in place of COMMAND and RUN."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ocrlab.records import Verdict

REPLAY = re.compile(r"ocrlab replay RUN[^;]*(?:; (?:else )?)?")
OF_REPLAY = re.compile(
    r"the first: it names module, operator and sample, where the run has a flight record; (?:then )?"
)
COMMAND = re.compile(r"\bCOMMAND\b")
LONGEST = 160  # characters of a command that still make a line that can be read


def recorded(*runs: Path | None) -> Path | None:
    """Return the first of some run folders that holds a flight record."""
    return next((run for run in runs if run and next(run.glob("flight/ring-*.bin"), None)), None)


def fitted(verdict: Verdict, command: Sequence[str], run: str = "") -> Verdict:
    """Return a verdict whose experiments name the command, and the run to replay; without one no replay is proposed.

    No command, one of several lines and a very long one stay the word COMMAND.
    """
    typed = shlex.join(command)
    typed = typed if 0 < len(typed) <= LONGEST and typed.isprintable() else "COMMAND"

    def fit(experiment: str) -> str:
        if not run:
            experiment = OF_REPLAY.sub("", REPLAY.sub("", experiment))
        return COMMAND.sub(lambda _: typed, experiment.replace("replay RUN", f"replay {shlex.quote(run)}"))

    return replace(verdict, causes=[replace(cause, experiment=fit(cause.experiment)) for cause in verdict.causes])
