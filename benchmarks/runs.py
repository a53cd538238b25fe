"""Trainings for benchmarks: start `ocrlab train` as a child process, and read a finished run folder."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.errors import RunError
from ocrlab.records import from_json

# Written into config.yaml by the run itself, from where it ran and from what it measured there.
SETTLED = (
    "data",
    "runs",
    "trainer.accelerator",
    "trainer.precision",
    "runtime.threads",
    "runtime.workers",
    "runtime.channels_last",
)


@dataclass(frozen=True)
class Run:
    """A finished run: `rows` are those of metrics.csv as numbers, without empty cells."""

    folder: Path
    config: Config
    rows: list[dict[str, float]]
    metrics: dict[str, float]
    environment: dict[str, Any]
    ended: str  # ISO 8601, UTC

    def figure(self, name: str) -> float | None:
        """Return a final figure, or the last one that metrics.csv has of it; None where it was not recorded."""
        last = [row[name] for row in self.rows if name in row]
        return self.metrics.get(name, last[-1] if last else None)


def train(settings: Sequence[str]) -> Run:
    """Run `ocrlab train` with `settings` in a child process and read what it leaves; raises RunError if it fails."""
    command = [sys.executable, "-m", "ocrlab", "train", *settings, "--json"]
    print("$ ocrlab", *command[3:], file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        output = done.stdout.strip() or "no word"
        raise RunError("A training of this benchmark failed", got=f"exit status {done.returncode}: {output}")
    return read(Path(json.loads(done.stdout)["run"]))


def read(folder: Path) -> Run:
    """Return a finished run from its folder; raises RunError unless it ended well."""
    record = run_folder.status(folder)
    if record.status != "success":
        raise RunError(f"{folder} is not a finished run", got=record.status, need="a run folder with .SUCCESS")
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    environment = from_json((folder / "environment.json").read_bytes(), source="environment.json")
    config = configs.load(folder / "config.yaml")
    return Run(folder, config, rows, record.metrics, environment, record.ended or record.started)


def command(run: Run, data: str) -> str:
    """Return the shortest command that trains as `run` did; what it chose for its machine is left to the next one's."""
    changed = configs.differences(Config(), run.config)
    words = [f"{key}={spoken(value)}" for key, (_, value) in changed.items() if key not in (*SETTLED, "name")]
    return " ".join(["ocrlab train", f"data={data}", *words])


def choices(run: Run) -> str:
    """Return what the run chose for its machine, as text."""
    trainer, runtime = run.config.trainer, run.config.runtime
    layout = "channels_last" if runtime.channels_last is True else "contiguous"
    return f"{trainer.accelerator}, {trainer.precision}, {layout}, {runtime.threads} threads, {runtime.workers} workers"


def spoken(value: object) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
