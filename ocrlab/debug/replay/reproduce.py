"""The whole command of a failure run again, under watch and with a deadline: does the same failure come?"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ocrlab.debug.trials.trial import Command, RunResult, is_same_failure, recorded_failure, run_trial

SHELL = 'cd "$1" && shift && exec "$@"'


def rerun_command(
    run: Path,
    command: Sequence[str],
    folder: str | None,
    *,
    count: int,
    timeout: float,
    report: Callable[[str], None] = lambda _text: None,
) -> dict[str, Any]:
    """Run `command` `count` times, each at most `timeout` seconds, and compare each end with the failure of `run`.

    Returns {"wanted", "same", "runs": [{"same", "told", "seconds"}]}; without runs {"why"} says why not. An `ocrlab
    train` writes its runs into a folder of its own, which is removed. A signal that reached us ends it: it goes on.
    """
    wanted = recorded_failure(run)
    if wanted is None:
        return {"why": "the folder holds no failure to compare with", "runs": []}
    if folder is not None and not Path(folder).is_dir():
        return {"why": "the folder in which it was started is not there", "runs": []}
    runs: list[dict[str, Any]] = []
    place = Path(tempfile.mkdtemp(prefix="ocrlab-again-"))
    try:
        for number in range(1, count + 1):
            report(f"run {number} of {count}: {' '.join(command)[:120]}")
            result = run_trial(lambda inside: _start(run, command, folder, inside), place / str(number), timeout)
            runs.append(_row(result, wanted[0]))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {"wanted": wanted[1], "same": sum(result["same"] for result in runs), "runs": runs}


def _row(result: RunResult, wanted: str) -> dict[str, Any]:
    return {
        "same": bool(result.fingerprint) and is_same_failure(result.fingerprint, wanted),
        "told": result.description,
        "seconds": round(result.seconds, 1),
    }


def _start(run: Path, command: Sequence[str], folder: str | None, inside: Path) -> Command:
    """Return the command as it is started: in its folder, and an `ocrlab train` with its own config and a new place."""
    words = list(command)
    if words[:1] == ["ocrlab"]:
        words = [sys.executable, "-m", "ocrlab", *words[1:]]
        if words[3:4] == ["train"] and (run / "config.yaml").is_file():
            words = [
                *words[:4],
                "--config",
                str((run / "config.yaml").absolute()),
                f"runs={inside.absolute() / 'runs'}",
            ]
            words += ["tracking=disabled"]
    return ["sh", "-c", SHELL, "sh", folder or os.getcwd(), *words], {}
