"""The memory that a training needs at one batch size, measured for `ocrlab memory`.

`python -m ocrlab.training.jobs.measure_memory JOB.json`: it is the training itself, a few steps of it, on the pages
that need most, with validation, checkpoints and the final measurement. What of the image cache would fill up later is
allocated from the beginning. A training that goes over its limit ends with status 0 and says so: that is an answer. The
job names a config, settings over it, the limit, and whether to train for longer: a heap that is kept goes on growing
for some dozen steps, as its holes settle.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch

from ocrlab.config import schema as configs
from ocrlab.config.fields import flat
from ocrlab.config.schema import Config
from ocrlab.data.formats.reader import Index, Sample, load
from ocrlab.errors import DataError
from ocrlab.records import from_json
from ocrlab.training import loop
from ocrlab.training.jobs import memory_meter

NOWHERE = Path(os.devnull)
STEPS = (3, 10)  # optimizer steps, least and most: the first makes the optimizer's state, later ones find its holes
CROPS = 96  # that are enough
LONG, LONGEST = 60, 1.5  # optimizer steps of a long measurement, and the most minutes of them
SETTLED = ("trainer.accelerator", "trainer.precision", "runtime.threads", "runtime.workers", "runtime.channels_last")


def main(path: Path) -> None:
    """Measure as the job says, and write the answer to its `out`; raises what training raises."""
    job, config = load_job(path)
    measure(config, Path(job["out"]), job.get("usable"), job.get("kind", "resident"), long=job.get("long", False))


def load_job(path: Path) -> tuple[dict[str, Any], Config]:
    """Return a job and its config, in a process that is ready to be weighed."""
    job: dict[str, Any] = from_json(path.read_bytes(), source=str(path))
    with contextlib.suppress(OSError):  # where memory ends, the kernel shall choose this process
        Path("/proc/self/oom_score_adj").write_text("1000")
    memory_meter.import_late_modules()
    return job, configs.load(job["config"], job["overrides"])


def measure(config: Config, out: Path, usable: int | None, kind: str, *, long: bool = False) -> None:
    """Train some steps and write what they needed; `usable` are the bytes that it may need, None for no limit."""
    scales = memory_meter.MemoryMeter(out, usable, kind)
    needed = later_pages(config)

    def worst_only(*args: Any, **options: Any) -> Index:
        index = load(*args, **options)
        index.samples = worst_pages(index.samples)
        return index

    crops = config.batch_size * config.trainer.accumulate_grad_batches
    config.trainer.max_steps = max(STEPS[0], min(STEPS[1], CROPS // crops))
    config.trainer.val_every = config.recorder.snapshot_every = 1  # what they leave makes holes for the next steps
    config.trainer.max_epochs = config.trainer.max_minutes = None
    if long:
        config.trainer.max_steps, config.trainer.max_minutes = LONG, LONGEST
        config.trainer.val_every = config.recorder.snapshot_every = LONG // 10
    with scales:
        ballast = np.full(needed, 1, np.uint8)
        scales.later_pages = needed
        loop.fit(config, load_pages=worst_only, callbacks=[PhaseMarks(scales)])
        del ballast
        scales.mark("final")


class PhaseMarks(lightning.Callback):
    """Tells the meter which part of a training runs."""

    def __init__(self, scales: memory_meter.MemoryMeter) -> None:
        self.scales = scales
        self.seconds: list[float] = []
        self.began = time.perf_counter()

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self.scales.settled = {key: flat(module.config)[key] for key in SETTLED}
        self.scales.limit_device(module.machine.accelerator)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.scales.mark("check")  # Lightning has just tried validation
        self.scales.phase = "train"

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self.scales.phase = "train"
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, index: int) -> None:
        if module.machine.accelerator == "cuda":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began)
        self.scales.crops_a_second = len(batch.pages) / min(self.seconds)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.scales.mark("train")
            self.scales.phase = "validate"

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.scales.mark("validate")
            self.scales.phase = "final"


def worst_pages(samples: Sequence[Sample]) -> list[Sample]:
    """Return the pages that need most memory: the largest, the longest and the widest, and that of most points."""
    if not len(samples):
        raise DataError("There is no page to measure with", need="annotated pages")
    orders = (
        lambda s: s.width * s.height,
        lambda s: s.height / max(1, s.width),
        lambda s: s.width / max(1, s.height),
        lambda s: len(s.polygons),
        lambda s: sum(len(polygon) for polygon in s.polygons),
    )
    chosen = [samples[0]] * len(orders)
    for sample in samples:  # once: of shards each look at a page reads it
        chosen = [max(first, sample, key=order) for first, order in zip(chosen, orders, strict=True)]
    return list({sample.name: sample for sample in chosen}.values())


def resident_pages(config: Config) -> int:
    """Return the bytes of decoded pages that a measurement holds itself: those of the worst pages."""
    splits = (config.train_split, config.val_split)
    pages = [s for split in splits for s in worst_pages(load(config.data, split, exif=config.exif).samples)]
    return sum(3 * s.width * s.height for s in pages)


def later_pages(config: Config) -> int:
    """Return the bytes of decoded pages that the image caches will hold, but for those that are measured anyway."""
    if config.runtime.cache != "memory":
        return 0
    total = 0
    for split, copies in ((config.train_split, max(1, config.runtime.workers or 0)), (config.val_split, 1)):
        samples = load(config.data, split, exif=config.exif).samples
        measured = {sample.name for sample in worst_pages(samples)}
        rest = sum(3 * s.width * s.height for s in samples if s.name not in measured)
        total += min(int(config.runtime.cache_gb * 1e9), rest * copies)
    return total


def end_process() -> None:
    """End this process at once: what ends threads and libraries could take longer than the job."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_process()
