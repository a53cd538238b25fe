"""TensorBoard's side of tracking, in the tracker's process: event files, for `tensorboard --logdir runs`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FOLDER = "tensorboard"


def begin(first: Mapping[str, Any]) -> Run:
    """Open an event file in the working folder; what an earlier one holds from that step on does not count any more."""
    import tensorboard  # noqa: F401  # torch's writer would say less of its absence
    from torch.utils.tensorboard import SummaryWriter

    again = first["step"] + 1 if os.path.isdir(FOLDER) else None
    return Run(SummaryWriter(FOLDER, purge_step=again), first)


class Run:
    """Event files in the run folder."""

    def __init__(self, writer: Any, first: Mapping[str, Any]) -> None:
        self.writer, self.first = writer, first
        self.sync: str | None = None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def pictures(self, files: Sequence[Mapping[str, Any]], step: int) -> None:
        """Write pictures, each under its caption."""
        for entry in files:
            with Image.open(entry["file"]) as picture:
                self.writer.add_image(f"val/{entry['caption']}", np.array(picture), step, dataformats="HWC")

    def artifact(self, file: Path, sha256: str, about: Mapping[str, Any]) -> None:
        """Write where the file lies and what it is; TensorBoard keeps no files."""
        self.writer.add_text("best checkpoint", f"{file.name}, SHA-256 {sha256}")

    def finish(self, status: str, name: str | None, metrics: Mapping[str, Any]) -> None:
        """Write settings and final metrics as hyperparameters, and close."""
        self.writer.add_text("run", f"{name or self.first['name']}, status:{status}")
        settings = dict(flat(self.first["config"]))
        good = {key: value for key, value in metrics.items() if value is not None}
        self.writer.add_hparams(settings | {"status": status}, good or {"steps": 0.0}, run_name=".")
        self.writer.close()


def flat(config: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Return nested settings as dotted ones, of the types that TensorBoard takes: numbers, truth and text."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            settings |= flat(value, f"{start}{key}.")
        else:
            settings[start + key] = value if isinstance(value, bool | int | float | str) else str(value)
    return settings
