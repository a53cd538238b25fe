"""What the memory notebook does in its child: steps whose memory is followed, and an estimate.

All of it in one child, as most of a short one's time goes into importing torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.debug.instruments.memory.timeline import Row, Step
from ocrlab.errors import ConfigError


@dataclass
class FollowedSteps:
    """What some training steps used, as plain data: reading it needs no torch."""

    step: Step
    rows: list[Row]
    finding: str
    device: str
    batch: tuple[int, int]  # crops, pixels of a side
    processes: dict[str, Any] = field(default_factory=dict)
    share: float = 0.0  # of the process's high-water mark that is accounted for


@dataclass
class MemoryReport:
    """All that the notebook shows: steps that were followed, and what a whole training needs."""

    followed: FollowedSteps
    needed: dict[str, Any]


def look(config: Config, workers: int, count: int, progress: Callable[[dict[str, Any]], None]) -> MemoryReport:
    """Follow steps and estimate a training; raises ConfigError, DataError."""
    progress({"kind": "start", "step": 0, "total": 2})
    followed = steps(config, workers, count)
    progress({"kind": "measure", "unit": "part", "step": 1, "total": 2})
    report = MemoryReport(followed, needed(config))
    progress({"kind": "end", "unit": "part", "step": 2, "total": 2})
    return report


def steps(config: Config, workers: int, count: int) -> FollowedSteps:
    """Return what `count` training steps with `config` hold, with as many loader workers; raises DataError."""
    import torch

    from ocrlab.data.formats import reader
    from ocrlab.debug.instruments.memory import memory_watch
    from ocrlab.hardware.process_memory import process
    from ocrlab.notebook.dataloader_job import training_step
    from ocrlab.training import loop
    from ocrlab.training.auto_settings import choose

    if not torch.cuda.is_available():  # what is fastest here is not the question, and takes long to measure
        fixed: dict[str, Any] = {"trainer.precision": "fp32"} if config.trainer.precision == "auto" else {}
        fixed |= {"runtime.channels_last": True} if config.runtime.channels_last == "auto" else {}
        config = configs.apply(config, fixed)
    index = reader.load(config.data, config.train_split, exif=config.exif)
    machine = choose(config)
    config = loop.settle_config(config, machine, len(index.samples))
    config = configs.apply(config, {"runtime.workers": workers, "trainer.max_steps": count + 1})
    model, optimizer, step = training_step(config, machine)
    batches = islice(iter(loop.loader(index, config, None)), count)
    processes: dict[str, Any] = {}
    with memory_watch.watch(model, optimizer) as watched:
        for number, batch in enumerate(batches, 1):
            step(batch)
            if number == count:
                processes = process(os.getpid())
    highest = watched.highest
    if highest is None:
        raise ConfigError("No step was run", got=f"{count} steps of {len(index.samples)} pages")
    accounted = highest.process.before + highest.peak.bytes
    return FollowedSteps(
        highest,
        watched.table(),
        watched.finding(),
        str(watched.device),
        (config.batch_size, config.crop),
        processes,
        min(accounted / highest.process.highest, 1.0) if highest.process.highest else 0.0,
    )


def needed(config: Config) -> dict[str, Any]:
    """Return what a training with `config` will need, part by part, from a step of fake tensors; raises DataError."""
    import torch

    from ocrlab.training.jobs import estimate_memory

    if not torch.cuda.is_available():
        config = configs.apply(config, {"trainer.precision": "fp32", "runtime.channels_last": True})
    return estimate_memory.estimate_config(config)
