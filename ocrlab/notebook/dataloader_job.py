"""What the loader's notebook does in a child: a real training is watched, and tried with other settings."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config

if TYPE_CHECKING:
    from ocrlab.training.auto_settings import Machine

ENDLESS = 10_000_000  # steps that the loader has in store
SLOWEST = 3  # samples that are shown

Progress = Callable[[dict[str, Any]], None]
Rows = list[dict[str, Any]]
Step = Callable[[Any], Any]


@dataclass
class LoaderReport:
    """Loading and computing as plain values: reading them needs no torch. Seconds and shares."""

    finding: str = ""
    more: list[str] = field(default_factory=list)
    steps: Rows = field(default_factory=list)
    workers: Rows = field(default_factory=list)
    slowest: Rows = field(default_factory=list)
    recommended: str = ""
    trials: Rows = field(default_factory=list)
    best: tuple[int, int] = (0, 0)  # workers, threads
    used: tuple[int, int] = (0, 0)
    speed: float = float("nan")  # of the settings in use, as a share of the recommended ones'


def measure_loading(
    config: Config, workers: Sequence[int], threads: Sequence[int], seconds: float, turns: int, progress: Progress
) -> LoaderReport:
    """Return what a training with `config` waits for, and which of the settings is fastest; raises DataError."""
    from ocrlab.data.formats import reader
    from ocrlab.debug.instruments.dataloader import loader_watch
    from ocrlab.training import loop
    from ocrlab.training.auto_settings import choose

    samples = reader.load(config.data, config.train_split, exif=config.exif)
    machine = choose(config)
    config = loop.settle_config(configs.apply(config, {"trainer.max_steps": ENDLESS}), machine, len(samples.samples))
    _, _, step = training_step(config, machine)
    settings = len(dict.fromkeys([machine.workers, *workers])) * max(1, len(threads))
    total, counts = 10 + turns * settings, itertools.count(1)

    def tick(*_: object) -> None:
        progress({"kind": "train", "step": min(next(counts), total), "total": total})

    def make(count: int) -> Any:
        return loop.loader(samples, configs.apply(config, {"runtime.workers": count}), None)

    report = LoaderReport(used=(machine.workers, machine.threads))
    _watch(report, make(machine.workers), step, 3 * seconds, tick)
    used = loader_watch.Setting(*report.used)
    measured = loader_watch.measure(
        make, step, workers, threads or [machine.threads], used=used, seconds=seconds, turns=turns, progress=tick
    )
    report.recommended, report.trials, report.speed = measured.finding(), plain_rows(measured.table()), measured.share
    report.best = dataclasses.astuple(measured.best.setting) if measured.best else report.used
    progress({"kind": "end", "step": total, "total": total})
    return report


def training_step(config: Config, machine: Machine) -> tuple[Any, Any, Step]:
    """Return model, optimizer, and what does a whole training step of them with a batch and returns its loss."""
    import torch

    from ocrlab.training.lightning_module import Training

    device = torch.device(machine.accelerator)
    training = Training(config, machine).to(device)
    wired = training.configure_optimizers()
    optimizer, schedule = wired["optimizer"], wired["lr_scheduler"]["scheduler"]

    def step(batch: Any) -> Any:
        batch = training.transfer_batch_to_device(batch, device, 0)
        with torch.autocast(device.type, torch.bfloat16, enabled=config.trainer.precision == "bf16"):
            loss = training.training_step(batch, 0)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        training.configure_gradient_clipping(optimizer, config.optim.grad_clip)
        optimizer.step()
        schedule.step()
        return loss.detach()

    return training.detector, optimizer, step


def _watch(report: LoaderReport, loader: Any, step: Step, seconds: float, tick: Callable[[], None]) -> None:
    from ocrlab.debug.instruments.dataloader import loader_watch

    with loader_watch.watch(loader) as watched:
        began = time.monotonic()
        ticks = 0
        for batch in watched:
            step(batch)
            share = (time.monotonic() - began) / seconds
            while ticks < min(10, int(10 * share)):
                ticks += 1
                tick()
            if share > 3 or (share > 1 and len(watched.step_records) > 8):  # on a busy machine fewer steps must do
                break
        report.finding, *report.more = watched.findings()
        report.steps, report.workers = plain_rows(watched.steps()), plain_rows(watched.table())
        report.slowest = plain_rows(watched.slowest(SLOWEST))


def plain_rows(table: Any) -> Rows:
    """Return a table as plain rows, None in place of NaN."""
    return [
        {str(name): None if value != value else value for name, value in row.items()}
        for row in table.astype(object).to_dict("records")
    ]
