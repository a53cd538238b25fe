"""What the loader's notebook does in a child: a real training is watched, profiled, and tried with other settings."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config

ENDLESS = 10_000_000  # steps that the loader has in store
PROFILED = (2, 3)  # steps before the profile, and in it
OPERATORS, SLOWEST = 8, 3  # rows and pages that are shown

Progress = Callable[[dict[str, Any]], None]
Rows = list[dict[str, Any]]


@dataclass
class LoaderReport:
    """What was seen of loading and computing, as plain values: reading them needs no torch. Seconds and shares."""

    finding: str = ""
    more: list[str] = field(default_factory=list)
    waiting: float = 0.0
    steps: Rows = field(default_factory=list)
    workers: Rows = field(default_factory=list)
    slowest: Rows = field(default_factory=list)
    profile: str = ""
    operators: Rows = field(default_factory=list)
    waits: Rows = field(default_factory=list)
    trace: str = ""
    device: str = ""
    recommended: str = ""
    trials: Rows = field(default_factory=list)
    best: tuple[int, int] = (0, 0)  # workers, threads
    used: tuple[int, int] = (0, 0)
    speed: float = float("nan")  # of the settings in use, of the recommended one's
    turns: int = 0


def measure_loading(
    config: Config, workers: Sequence[int], threads: Sequence[int], seconds: float, turns: int, progress: Progress
) -> LoaderReport:
    """Return what a training with `config` waits for, and which of the settings is fastest; raises DataError."""
    from ocrlab.data.formats import reader
    from ocrlab.training import loop
    from ocrlab.training.auto_settings import choose

    samples = reader.load(config.data, config.train_split, exif=config.exif)
    machine = choose(config)
    config = loop.settle_config(configs.apply(config, {"trainer.max_steps": ENDLESS}), machine, len(samples.samples))
    _, _, step = training_step(config)
    settings = len(dict.fromkeys([machine.workers, *workers])) * max(1, len(threads))
    tick = _ticker(progress, sum(PROFILED) + 1 + 10 + turns * settings)

    def make(count: int) -> Any:
        return loop.loader(samples, configs.apply(config, {"runtime.workers": count}), None)

    report = LoaderReport(used=(machine.workers, machine.threads), turns=turns)
    _profile(report, make(machine.workers), step, Path(config.runs) / "profiles", tick)
    _watch(report, make(machine.workers), step, 3 * seconds, tick)
    _measure(report, make, step, (workers, threads or [machine.threads], seconds, turns), tick)
    tick(ended=True)
    return report


def training_step(config: Config) -> tuple[Any, Any, Callable[[Any], None]]:
    """Return model, optimiser, and what does a whole training step of them with a batch, as `ocrlab train` does."""
    import torch

    from ocrlab.losses.db_loss import TargetMaps, db_loss
    from ocrlab.model.dbnet import Detector
    from ocrlab.training.optimizer import adamw

    device = torch.device(config.trainer.accelerator)
    layout = torch.channels_last if config.runtime.channels_last is True else torch.contiguous_format
    model: Any = Detector(config.encoder, config.decoder, config.width).to(device)
    model = model.to(memory_format=layout).train()
    optimiser = adamw(model, config.optim)
    weights, ratio = (config.loss.bce, config.loss.dice, config.loss.l1), config.loss.negative_ratio

    def step(batch: Any) -> None:
        images = batch.images.to(device, non_blocking=True)
        targets = TargetMaps(*(each.to(device, non_blocking=True) for each in batch.maps))
        with torch.autocast(device.type, torch.bfloat16, enabled=config.trainer.precision == "bf16"):
            maps = model(images)
        logits = maps.probability_logits, maps.threshold_logits
        loss = db_loss(*logits, targets, weights=weights, negative_ratio=ratio).total
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if config.optim.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip)
        optimiser.step()

    return model, optimiser, step


def _profile(
    report: LoaderReport, loader: Any, step: Callable[[Any], None], folder: Path, tick: Callable[[], None]
) -> None:
    from ocrlab.debug.instruments.profiler import step_profiler

    skip, count = PROFILED
    with step_profiler.steps(skip, count, folder) as profiler:
        for _, batch in zip(range(skip + count + 1), loader, strict=False):
            step(batch)
            profiler.step()
            tick()
    report.profile, report.device = profiler.finding(), profiler.device
    report.operators, report.waits = _rows(profiler.table(OPERATORS)), _rows(profiler.waits())
    report.trace = str(profiler.trace or "")


def _watch(
    report: LoaderReport, loader: Any, step: Callable[[Any], None], seconds: float, tick: Callable[[], None]
) -> None:
    from ocrlab.debug.instruments.dataloader import loader_watch as instrument

    with instrument.watch(loader) as watched:
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
        report.waiting = watched.waiting()
        report.steps, report.workers, report.slowest = (
            _rows(t) for t in (watched.steps(), watched.table(), watched.slowest(SLOWEST))
        )


def _measure(
    report: LoaderReport,
    make: Callable[[int], Any],
    step: Callable[[Any], None],
    plan: tuple[Sequence[int], Sequence[int], float, int],
    tick: Callable[[], None],
) -> None:
    from ocrlab.debug.instruments.dataloader import loader_watch as instrument

    workers, threads, seconds, turns = plan
    used = instrument.Setting(*report.used)
    measured = instrument.measure(
        make, step, workers, threads, used=used, seconds=seconds, turns=turns, progress=lambda _: tick()
    )
    report.recommended, report.trials, report.speed = measured.finding(), _rows(measured.table()), measured.share
    best = measured.best
    report.best = dataclasses.astuple(best.setting) if best else report.used


def _rows(table: Any) -> Rows:
    """Return a table as plain rows, without numbers that are none."""
    return [
        {str(name): None if value != value else value for name, value in row.items()}
        for row in table.astype(object).to_dict("records")
    ]


def _ticker(progress: Progress, total: int) -> Callable[..., None]:
    counts: Iterator[int] = iter(range(1, 1_000_000))

    def tick(ended: bool = False) -> None:
        step = total if ended else min(next(counts), total)
        progress({"kind": "end" if ended else "train", "step": step, "total": total})

    return tick
