"""What `ocrlab train` checks before anybody waits for torch: the run to go on with, the data and the weights.

Only files and names are checked here; the child reports what is wrong inside a page or a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.config.aliases import SAMPLES
from ocrlab.config.overrides import Setting, from_lines, from_yaml, is_nothing
from ocrlab.data import folder_layouts
from ocrlab.errors import DataError
from ocrlab.inference import pretrained
from ocrlab.run_folder.folder import resumable

if TYPE_CHECKING:
    from ocrlab.config.schema import Config

DEFAULTS = {"data": SAMPLES, "train_split": "train", "val_split": "val", "weights": "", "runs": "runs"}


def read_places(file: Path | None, words: list[str]) -> dict[str, str]:
    """Return where a new run finds and puts things, by file and words as by the config; raises ConfigError.

    To read the whole config takes a third of a second, and the child does.
    """
    asked = {setting.key: setting for setting in _settings(file, words) if setting.key in DEFAULTS}
    filled = {key: each.value if isinstance(each.value, str) and not each.empty else "" for key, each in asked.items()}
    return {**DEFAULTS, **filled}


def wanted_ranks(file: Path | None, words: list[str]) -> int:
    """Return how many ranks `trainer.devices` asks for, 1 where it has an unusable value."""
    asked = {setting.key: setting.value for setting in _settings(file, words)}.get("trainer.devices")
    return max(1, int(asked)) if isinstance(asked, str) and asked.isdecimal() else 1


def _settings(file: Path | None, words: list[str]) -> list[Setting]:
    return [*(from_yaml(file) if file else []), *from_lines(words)]


def check_places(places: Mapping[str, str]) -> None:
    """Raise DataError for a missing split, and CheckpointError for weights that are missing or not a checkpoint."""
    data = places["data"]
    if data == SAMPLES and not os.path.exists(SAMPLES):
        raise DataError(
            f"data= is not set, and there is no {SAMPLES} in this folder",
            need=f"data=DIR with your own pages, or a checkout of ocrlab, which contains {SAMPLES}",
            do="To begin with synthetic pages: ocrlab samples make receipts, then ocrlab train data=receipts",
            missing=True,
        )
    for split in filter(None, (places["train_split"], places["val_split"])) if data else ():
        folder = Path(data).expanduser()
        try:
            folder_layouts.find(folder, split)
        except DataError:
            from ocrlab.data.shards import dataset  # late: NumPy and OpenCV take as long as all the rest

            if not folder.exists() or not dataset.find(folder, split):
                raise
    if places["weights"].endswith(".ckpt"):  # the child checks any other word
        pretrained.check_file(Path(places["weights"]))


def check_config(config: Config, *, begun: bool = False) -> None:
    """Raise what `check_places` raises, of a config; a training that has begun needs no first weights."""
    weights = "" if begun or is_nothing(config.weights or "") else str(config.weights)
    splits = {"train_split": config.train_split, "val_split": config.val_split}
    check_places({"data": config.data, **splits, "weights": weights})


def check_resume(run: Path, config: Config) -> None:
    """Raise RunError for a run that cannot go on, DataError and CheckpointError where its data or last step is gone."""
    resumable(run)
    last = run / "checkpoints" / "last.ckpt"
    if begun := last.is_file():
        pretrained.check_file(last)
    check_config(config, begun=begun)
