"""A short training with some things set otherwise, for `ocrlab bisect`.

`python -m ocrlab.training.jobs.bisect_trial JOB.json`: the job names a config, settings over it, and what no setting
says: page-locked memory, how workers are started, cuDNN, OpenCV's threads, which pages are seen. It ends with status
0 after so many crops; a loss that is not finite fails.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader

from ocrlab import run_folder, safe_read
from ocrlab.config import schema as configs
from ocrlab.data.dataset import PageOrder
from ocrlab.data.formats.reader import Index
from ocrlab.data.synthetic import generate
from ocrlab.records import from_json
from ocrlab.run_folder import watcher_link
from ocrlab.training import loop
from ocrlab.training.run_callback import RunCallback

VAL_PAGES = 2  # that are looked at: what is searched for happens in training
SYNTHETIC = 8  # pages that are known to be good


def main(path: Path) -> None:
    """Train as the job says; raises what training raises."""
    job = from_json(safe_read.read(path), source=str(path))
    config = configs.load(job["config"], job["overrides"])
    if job.get("synthetic"):
        folder = Path(job["synthetic"])
        if not (folder / "README.md").exists():
            generate.make(folder, train=SYNTHETIC, val=VAL_PAGES)
        config = configs.apply(config, {"data": str(folder), "train_split": "train", "val_split": "val"})
    watcher_link.report_runs(config.runs)
    patch_loaders(pin_memory=job.get("pin_memory"), start_method=job.get("start_method"))
    if job.get("cudnn") is False:
        torch.backends.cudnn.enabled = False
    if job.get("opencv_threads") is not None:
        cv2.setNumThreads(job["opencv_threads"])
    patch_pages(job.get("pages"), job.get("names"))
    patch_ending(job["crops"], config.batch_size)
    loop.fit(config)


def patch_loaders(*, pin_memory: bool | None, start_method: str | None) -> None:
    """Let every loader made from now on pin no memory, or start its workers in another way."""
    original = DataLoader.__init__

    def make(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        if pin_memory is not None:
            kwargs["pin_memory"] = pin_memory
        if start_method is not None and kwargs.get("num_workers"):
            kwargs["multiprocessing_context"] = start_method
        original(self, *args, **kwargs)

    DataLoader.__init__ = make  # type: ignore[method-assign]


def patch_pages(chosen: Sequence[int] | None, names: str | None) -> None:
    """Let training see the chosen pages only, in their order and as they would be cut; write all names to a file.

    A page keeps its number, from which its crops are derived.
    """
    load, walk = loop.load, PageOrder.__iter__
    split_of = iter(("train", "val"))

    def shorter(*args: Any, **kwargs: Any) -> Index:
        index = load(*args, **kwargs)
        if next(split_of, "val") == "val":
            index.samples = index.samples[:VAL_PAGES]
        elif names:
            run_folder.write_json(names, {"schema": 1, "names": [sample.name for sample in index.samples]})
        return index

    def some(self: PageOrder) -> Iterator[tuple[int, int]]:
        return (place for place in walk(self) if place[1] in wanted)

    loop.load = shorter
    if chosen is not None:
        wanted = frozenset(chosen)
        PageOrder.__iter__ = some  # type: ignore[method-assign]


def patch_ending(crops: int, batch_size: int) -> None:
    """Let training end with status 0 once it has seen so many crops, and fail at a loss that is not finite."""
    finish = RunCallback.finish_batch

    def finish_batch(self: RunCallback, trainer: Any) -> None:
        finish(self, trainer)
        module: Any = trainer.lightning_module
        loss = float(module.parts.total.detach())
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss}")
        if module.micro * batch_size >= crops:
            raise SystemExit(0)

    RunCallback.finish_batch = finish_batch  # type: ignore[method-assign]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
