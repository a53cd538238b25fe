"""Validation: which pages, where their pixels are kept, and the figures that a run ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from ocrlab.config.schema import Config
from ocrlab.data.dataset import Pages
from ocrlab.data.formats.reader import Index, Sample
from ocrlab.inference import checkpoint, page_inference
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training.distributed import collectives
from ocrlab.training.lightning_module import Training, figures
from ocrlab.training.run_callback import Progress, Watcher


def cache_folder(config: Config) -> Path:
    """Return where decoded pages are kept when `runtime.cache=disk`."""
    return Path(config.runs).absolute() / ".cache"


def looked_at(val: Index, config: Config) -> Sequence[Sample]:
    """Return the pages that training is validated on: `val_pages` of the split, spread evenly, or all of it."""
    count = config.trainer.val_pages
    if count is None or count >= len(val.samples):
        return val.samples
    return [val.samples[int(i)] for i in np.linspace(0, len(val.samples) - 1, count)]


def loader(val: Index, config: Config, mine: Ranks | None = None) -> DataLoader[Any]:
    """Return the loader of a rank's whole pages: its share of those that training is validated on."""
    samples = looked_at(val, config)
    turns: Any = collectives.share(len(samples), mine or Ranks())
    return DataLoader(Pages(samples, config, cache_folder(config)), batch_size=None, sampler=turns, num_workers=0)


def final(module: Training, watcher: Watcher, val: Index, progress: Progress) -> dict[str, float]:
    """Return the figures of the best weights on all pages of `val`.

    The last weights compete with the best checkpoint on the pages, and the device, that training was validated on:
    figures of other pages say nothing about which weights are the better ones.
    """
    config, step = module.config, module.trainer.global_step
    module.averaged.to(module.trainer.strategy.root_device)  # Lightning has moved all weights to the host
    some = looked_at(val, config)
    last = module.scores
    if module.scored != step:  # no validation was due at the last step, or it was left
        last = measure(module, some, progress)
        watcher.write({"step": step, **last}, step)
    if watcher.best_path is None or last["hmean@0.5"] >= watcher.best:
        watcher.best, best = last["hmean@0.5"], last
        watcher.save_best(module, last)
    else:
        saved = collectives.of_rank_0(module.ranks, checkpoint.load(watcher.best_path) if module.ranks.first else None)
        best = saved["ocrlab"]["metrics"]
        module.averaged.load_state_dict(saved["detector"])
    if len(some) == len(val.samples):
        return dict(best)
    return measure(module, val.samples, progress)


def measure(module: Training, samples: Sequence[Sample], progress: Progress) -> dict[str, float]:
    """Return the figures of the averaged weights over every one of `samples`, of which each rank judges its share."""
    config, mine = module.config, module.ranks
    module.averaged.eval()
    dataset, judged = Pages(samples, config, cache_folder(config)), {}
    for turn, i in enumerate(collectives.share(len(dataset), mine)):
        if i is not None:
            page = dataset.page(i)
            judged[i] = page_inference.judge(module.averaged, page, config, bf16=module.machine.bf16).counts
        progress({"kind": "measure", "step": min((turn + 1) * mine.world, len(dataset)), "total": len(dataset)})
    return figures(collectives.added(mine, judged, len(dataset)))
