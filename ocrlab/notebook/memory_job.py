"""What the memory notebook does in its child: steps whose memory is followed, an estimate, a leak that is planted.

All of it in one child, as most of a short one's time goes into importing torch.
"""

from __future__ import annotations

import os
import runpy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.debug.instruments.leaks.leak_report import Leak
from ocrlab.debug.instruments.memory.timeline import Row, Step
from ocrlab.errors import ConfigError

HEAD = """\
import torch
from torch import nn

from ocrlab.debug.instruments.leaks import leak_watch as leaks

model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
optimiser = torch.optim.AdamW(model.parameters())
kept = []
"""
BODY = """

def train(steps):
    {before}
    for step in range(steps):
        images = torch.rand(1, 3, 256, 256)
        output = model(images)
        loss = (output - 0.5).square().mean()
        optimiser.zero_grad()
        loss.backward({retain})
        optimiser.step()
        {after}


with leaks.watch(model) as report:
    train(40)
"""
PLANTS = {  # what is done before the loop, how backward is called, what is done in each step
    "graph": ("total = 0", "retain_graph=True", "total = total + loss"),
    "outputs": ("", "", "kept.append(output)"),
    "hook": ("model[2].register_forward_hook(lambda module, inputs, output: kept.append(output))", "", ""),
    "validation": ("total = 0", "", "total += (model.eval()(images) - 0.5).abs().mean()"),
    "none": ("", "", ""),
}


@dataclass
class FollowedSteps:
    """What some training steps used, as plain data: reading it needs no torch."""

    step: Step
    rows: list[Row]
    finding: str
    summary: str
    device: str
    batch: tuple[int, int]  # crops, pixels of a side
    processes: dict[str, Any] = field(default_factory=dict)
    share: float = 0.0  # of the process's high-water mark that is accounted for


@dataclass
class MemoryReport:
    """All that the notebook shows: steps that were followed, what a whole training needs, and the planted leak."""

    followed: FollowedSteps
    needed: dict[str, Any]
    planted: PlantedLeak


def look(
    config: Config, workers: int, count: int, leak: str, progress: Callable[[dict[str, Any]], None]
) -> MemoryReport:
    """Follow steps, estimate a training, and look for a planted leak; raises ConfigError, DataError."""
    program(leak)  # a wrong name is refused before anything else is done
    parts = (lambda: steps(config, workers, count), lambda: needed(config), lambda: planted(leak))
    results: list[Any] = []
    progress({"kind": "start", "step": 0, "total": len(parts)})
    for number, part in enumerate(parts, 1):
        results.append(part())
        progress({"kind": "measure", "unit": "part", "step": number, "total": len(parts)})
    progress({"kind": "end", "unit": "part", "step": len(parts), "total": len(parts)})
    return MemoryReport(*results)


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
    config = loop.settle_config(config, choose(config), len(index.samples))
    config = configs.apply(config, {"runtime.workers": workers, "trainer.max_steps": count + 1})
    model, optimiser, step = training_step(config)
    batches = islice(iter(loop.loader(index, config, None)), count)
    processes: dict[str, Any] = {}
    with memory_watch.watch(model, optimiser) as watched:
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
        memory_watch.summary(),
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


@dataclass
class PlantedLeak:
    """A leak that was planted and what was reported of it: the program, the line that leaks, the leaks."""

    name: str
    program: str
    line: int  # of the program; 0 where nothing leaks
    leaks: list[Leak]
    finding: str
    ticks: int

    @property
    def right(self) -> bool:
        """True if the one leak was reported with its line, or none where there is none."""
        lines = [leak.location.rpartition(":")[2] for leak in self.leaks]
        return lines == ([str(self.line)] if self.line else [])


def program(name: str) -> tuple[str, int]:
    """Return a small training that leaks as `name` says, and the line that leaks, 0 for none; raises ConfigError."""
    if name not in PLANTS:
        raise ConfigError(f"There is no leak {name!r}", need=f"one of {', '.join(PLANTS)}")
    before, retain, after = PLANTS[name]
    text = HEAD + BODY.format(before=before or "model.train()", retain=retain, after=after or "model.train()")
    leaking = "" if name == "none" else (after or before)
    return text, next((at for at, line in enumerate(text.splitlines(), 1) if leaking and leaking in line), 0)


def planted(name: str) -> PlantedLeak:
    """Run a small training that leaks as `name` says, and return what was reported of it; raises ConfigError."""
    text, line = program(name)
    with tempfile.TemporaryDirectory(prefix="ocrlab-leak-") as folder:
        path = Path(folder) / "planted.py"
        path.write_text(text, encoding="utf-8")
        report = runpy.run_path(str(path))["report"]
    return PlantedLeak(name, text, line, report.leaks, report.finding(), report.ticks)
