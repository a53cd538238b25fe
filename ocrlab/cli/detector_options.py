"""What `evaluate`, `predict` and `export` share: the settings a finished detector still takes, opening it with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.config.aliases import resolve
from ocrlab.config.overrides import from_lines
from ocrlab.errors import ConfigError, escape_name
from ocrlab.inference import pretrained

if TYPE_CHECKING:
    from ocrlab.config.schema import Config
    from ocrlab.inference import Detector

OPEN = ("post.", "evaluate.", "exif", "runs", "trainer.accelerator", "runtime.threads")
NEWEST = "checkpoint file, or `receipts` for the included detector (default: best of the newest run, else receipts)"


def check_checkpoint(path: Path | None) -> None:
    """Raise CheckpointError for a file that is missing or no checkpoint, before anybody waits for torch."""
    if path is not None and (str(path) != pretrained.NAME or path.is_file()):
        pretrained.check_file(path)


def check(words: Sequence[str], also: Sequence[str] = ()) -> Config:
    """Return the settings of `words` over the defaults; raises ConfigError for those that training has fixed."""
    from ocrlab.config import schema as configs

    settings = resolve(from_lines(words), configs.keys())
    for key, setting in settings.items():
        if key not in also and not key.startswith(OPEN):
            names = ", ".join([*also, *(f"{name}*" if name.endswith(".") else name for name in OPEN)])
            what = f"{setting.key} has no effect on a finished detector"
            raise ConfigError(what, got=f"{setting.key}={setting.shown}", need=f"one of {names}")
    return configs.apply(configs.Config(), words)


def open_detector(checkpoint: Path | None, words: Sequence[str], asked: Config, device: str | None = None) -> Detector:
    """Load a checkpoint, apply `words` over its settings and print which one it is; `asked` is what `check` made.

    `device` is auto, cpu or cuda, and without it what `trainer.accelerator` says.
    """
    from ocrlab.config import schema as configs
    from ocrlab.inference.detector import Detector, threads
    from ocrlab.training.auto_settings import accelerator_for

    threads(asked.runtime.threads)
    device, why = accelerator_for(device or asked.trainer.accelerator)
    detector = Detector.load(checkpoint, runs=asked.runs, device=device)
    detector.config = configs.apply(detector.config, words)
    reason = "" if why == "set in the config" else f" ({why})"
    print(f"detector: {escape_name(detector.origin)}, on the {device}{reason}", file=sys.stderr)
    return detector


def about(detector: Detector) -> dict[str, str | None]:
    """Return which detector it is, for the record of an answer."""
    return {"checkpoint": str(detector.checkpoint) if detector.checkpoint else None, "detector": detector.origin}
