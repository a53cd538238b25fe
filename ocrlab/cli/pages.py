"""What `evaluate` and `predict` share: the settings that a finished detector still takes, and opening it with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab import config as configs
from ocrlab.errors import ConfigError
from ocrlab.settings.names import resolve
from ocrlab.settings.overrides import from_lines

if TYPE_CHECKING:
    from ocrlab.predict import Detector

OPEN = ("post.", "evaluate.", "exif", "runs", "trainer.accelerator", "runtime.threads")


def check(words: Sequence[str], also: Sequence[str] = ()) -> configs.Config:
    """Return the settings of `words` over the defaults; raises ConfigError for those that training has fixed."""
    said = resolve(from_lines(words), configs.keys())
    for key, setting in said.items():
        if key not in also and not key.startswith(OPEN):
            names = ", ".join([*also, *(f"{name}*" if name.endswith(".") else name for name in OPEN)])
            what = f"{setting.key} has no effect on a finished detector"
            raise ConfigError(what, got=f"{setting.key}={setting.shown}", need=f"one of {names}")
    return configs.apply(configs.Config(), words)


def open_detector(checkpoint: Path | None, words: Sequence[str], asked: configs.Config) -> Detector:
    """Load a checkpoint, or that of the newest run, and lay `words` over its settings; `asked` is what `check` made."""
    from ocrlab import predict
    from ocrlab.train.machine import accelerator_for

    predict.threads(asked.runtime.threads)
    device, _ = accelerator_for(asked.trainer.accelerator)
    detector = predict.Detector.load(checkpoint, runs=asked.runs, device=device)
    detector.config = configs.apply(detector.config, words)
    return detector
