"""Train a detector: from a config to a run folder with checkpoints, curves and a sentinel that tells the truth."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import lightning
import numpy as np
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch.utils.data import DataLoader

from ocrlab import redaction, run_folder
from ocrlab.config import schema as configuration
from ocrlab.config.schema import Config
from ocrlab.data.dataset import Crops, PageOrder, Pages, collate, name_at, readable_pages, worker_init
from ocrlab.data.formats.reader import Index, Sample, load
from ocrlab.debug.flight_record import program_info
from ocrlab.debug.recorder.lightning_callback import Recorder
from ocrlab.errors import ConfigError, RunError
from ocrlab.hardware import host, nvidia_driver
from ocrlab.inference import checkpoint, page_inference
from ocrlab.inference.checkpoint import save
from ocrlab.run_folder import watcher_link
from ocrlab.run_folder.launcher import Ranks, detect_ranks
from ocrlab.training import cuda_debug_info
from ocrlab.training.auto_settings import Machine, choose, keep_freed_memory
from ocrlab.training.distributed import collectives, shared_run_folder
from ocrlab.training.distributed.stop_together import WATCHED, StopDeadline
from ocrlab.training.lightning_module import Training, figures
from ocrlab.training.optimizer import shorten_warmup
from ocrlab.training.prediction_review import spread_samples
from ocrlab.training.run_callback import Progress, RunCallback, install_stop_handlers
from ocrlab.training.time_budget import make_budget
from ocrlab.training.tracking import client


class AtomicIO(TorchCheckpointIO):
    """Lightning's checkpoint reader and writer with `checkpoint.save` and `load` in place of its own."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        # To the host, whatever Lightning says: a state of a GPU that is not here any more can be read nowhere else, and
        # all ranks would read theirs into the memory of the GPU of rank 0.
        return checkpoint.load(Path(path))


def trainer_for(module: Training, callbacks: list[Any], folder: Path, sanity: int = 0) -> lightning.Trainer:
    """Return the trainer of a run, without Lightning's hints on devices: ocrlab reports what was chosen."""
    config, machine = module.config, module.machine
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    spread = collectives.strategy(module.ranks, machine.accelerator, folder)
    if config.trainer.sync_batchnorm and module.ranks.several:
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(module.detector, collectives.strategy_group(spread["strategy"]))
    trainer = lightning.Trainer(
        accelerator="gpu" if machine.accelerator == "cuda" else "cpu",
        **spread,
        precision="bf16-mixed" if machine.bf16 else "32-true",
        max_epochs=1,  # Lightning's epoch is the whole run; PageOrder counts those of the data
        max_steps=config.trainer.max_steps,
        max_time=timedelta(minutes=config.trainer.max_minutes) if config.trainer.max_minutes else None,
        accumulate_grad_batches=config.trainer.accumulate_grad_batches,
        gradient_clip_val=config.optim.grad_clip or None,
        val_check_interval=config.trainer.val_every * config.trainer.accumulate_grad_batches,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=sanity,
        callbacks=callbacks,
        plugins=[AtomicIO()],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        benchmark=True if machine.accelerator == "cuda" else None,
    )
    collectives.disable_lightning_signals(trainer, module.ranks)
    return trainer


@contextlib.contextmanager
def expected_warnings() -> Iterator[None]:
    """Ignore warnings about deliberate choices: see auto_settings.py, PageOrder, `averaged`."""
    patterns = "does not have many workers|not resumable|LeafSpec|module.s. in eval mode|val_check_interval"
    patterns += "|Grad strides do not match bucket view|find_unused_parameters"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*({patterns}).*")
        yield


@dataclass(frozen=True)
class RunResult:
    """How a run ended: its folder, `status` (success), the final metrics, the checkpoint to use, the training pages."""

    folder: Path
    status: str
    metrics: dict[str, float]
    checkpoint: Path | None
    pages: int = 0


def silent(_event: dict[str, Any]) -> None:
    """Progress for nobody."""


def _warn(progress: Progress, text: str) -> None:
    progress({"kind": "warning", "text": text})


def fit(
    config: Config,
    *,
    resume: Path | None = None,
    progress: Progress = silent,
    load_pages: Callable[..., Index] | None = None,
    callbacks: Sequence[lightning.Callback] = (),
) -> RunResult:
    """Train with `config`, or continue the run folder `resume` with the config of that run.

    `load_pages` reads a split of the data in place of `formats.load`; `callbacks` are Lightning's, added to those of a
    run. The folder is made before anything can fail; an error is written to `.FAILURE` and raised as it was.
    """
    if (job := program_info.job()) is not None:
        replay_steps(recorded_config(job))
    mine = detect_ranks()
    if resume is not None:
        config = configuration.of_run(resume)
        before, config.trainer.devices = config.trainer.devices, mine.on_node
        if before != mine.on_node and mine.first:
            change = f"This run had {before} rank(s) on a machine and continues with {mine.on_node}"
            _warn(progress, f"{change}, so each optimizer step sees another number of crops than before")
    slug = config.name or f"{config.encoder}-{config.decoder}"
    with (
        collectives.join_ranks(mine) as member,
        shared_run_folder.open_shared(member, config.runs, slug, resume) as folder,
    ):
        shown = progress if mine.first else silent
        return _fit(config, folder, mine, resume is not None, shown, load_pages or load, callbacks)


def resume(run: Path | str, *, progress: Progress = silent) -> RunResult:
    """Continue the training of a run folder, with its own config; raises ConfigError if there is no such run."""
    folder = Path(run)
    return fit(configuration.of_run(folder), resume=folder, progress=progress)


def _fit(
    config: Config,
    folder: run_folder.RunFolder,
    mine: Ranks,
    again: bool,
    progress: Progress,
    load_pages: Callable[..., Index],
    callbacks: Sequence[lightning.Callback],
) -> RunResult:
    started = time.perf_counter()
    last = folder.checkpoints / "last.ckpt"
    before = checkpoint.to_resume(last, config) if again and last.is_file() else None
    if mine.first:
        checkpoint.remove_torn_files(folder.checkpoints)
        folder.write_config(configuration.dump(config))  # also when the next line fails
    keep_freed_memory()
    lightning.seed_everything(config.seed, verbose=False)
    train, val = load_data(config, mine, progress, load_pages)
    collectives.require_same(mine, "settings", hashlib.sha256(configuration.dump(config).encode()).hexdigest()[:8])
    # Of several ranks the first one measures, alone, and all do the same.
    machine: Machine = collectives.broadcast(mine, choose(config, mine.on_node) if mine.first else None)
    torch.set_num_threads(machine.threads)
    config = settle_config(config, machine, len(train.samples), mine)
    if before is None:  # one that goes on keeps its schedule, also where fewer steps were planned since
        config.optim.warmup_steps = shorten_warmup(config.optim.warmup_steps, config.trainer.max_steps)
    if mine.first:
        folder.write_config(configuration.dump(config))
        environment = {"schema": 1, **host.environment(), "gpu": nvidia_driver.present(Path("/"))}
        environment |= {"machine": asdict(machine), "ranks": asdict(mine)}
        run_folder.write_json(folder.environment_file, redaction.clean_record(environment))
    _announce(config, machine, mine, before, progress)
    facts = (config.tracking.user, config.encoder, config.decoder, config.batch_size, config.optim.lr)
    name = partial(client.run_name, *facts)
    tracked = config.tracking if mine.first else config.tracking.model_copy(update={"mode": "disabled"})
    step = before["step"] if before else 0
    tracker = client.start(tracked, name(), folder.path, config.model_dump(mode="json"), step)
    status, metrics = "failed", {}
    try:
        module, watcher = Training(config, machine, mine), RunCallback(config, folder, tracker, progress, mine)
        if before is None and config.weights not in (None, "imagenet"):
            checkpoint.load_initial_weights(config.weights, module.detector, module.averaged)
        module.finish_batch = watcher.finish_batch
        _run(module, watcher, train, val, before, last if before else None, callbacks)
        metrics = final_metrics(module, watcher, val, progress)
        metrics |= {"seconds": time.perf_counter() - started, **watcher.spent()}
        metrics["steps"] = float(module.trainer.global_step)
        if watcher.numbers.count:
            metrics["not_finite"] = float(watcher.numbers.count)
        status = "completed"
        client.send_best(tracker, watcher.best_path, metrics)
    finally:
        score = metrics["hmean@0.5"] if status == "completed" else None
        if status != "completed" and mine.several:  # the others wait for this rank, and the launcher not for long
            tracker.deadline = min(tracker.deadline, collectives.LAST_WORDS)
        tracker.finish(status, name(score=score), metrics)
    if mine.first:
        folder.succeed(metrics)
    progress({"kind": "end", "step": int(metrics["steps"]), "total": config.trainer.max_steps, **metrics})
    return RunResult(folder.path, "success", metrics, watcher.best_path, len(train.samples))


def load_data(config: Config, mine: Ranks, progress: Progress, load_pages: Callable[..., Index]) -> tuple[Index, Index]:
    """Return the pages to learn from and to measure on; raises DataError, also where ranks see other pages."""
    splits = (config.train_split, config.val_split)
    train, val = (load_pages(config.data, split, exif=config.exif, strict=config.runtime.strict) for split in splits)
    val.samples, unreadable = readable_pages(val.samples, config)
    val.problems += unreadable
    for index in (train, val):
        if mine.several:
            some = np.linspace(0, len(index.samples) - 1, min(1000, len(index.samples)))  # there may be a million
            names = "\n".join(name_at(index.samples, int(i)) for i in some)
            fingerprint = f"{len(index.samples)} pages, names {hashlib.sha256(names.encode()).hexdigest()[:8]}"
            collectives.require_same(mine, f"pages in {index.split}", fingerprint)
        dropped = {reason: count for reason, count in index.dropped.items() if count}
        if dropped:
            _warn(progress, f"{index.split}: boxes left out: {dropped}")
        for problem in index.problems[:5]:
            _warn(progress, f"{index.split}: {problem}")
        if len(index.problems) > 5:
            _warn(progress, f"{index.split}: {len(index.problems) - 5} more pages with problems")
    return train, val


def recorded_config(job: Mapping[str, Any]) -> Config:
    """Return the settled config of a run, with the settings of a replay over it."""
    return configuration.apply(configuration.of_run(Path(job["run"])), (job.get("cell") or {}).get("config") or {})


def replay_steps(config: Config) -> NoReturn:
    """Run recorded steps of a training again, as OCRLAB_REPLAY says: no run folder, no tracker, no checkpoint.

    The process ends when the last of them is done; raises what the training raises.
    """
    config.trainer.max_minutes = None  # the minutes were spent in the recorded run
    keep_freed_memory()
    lightning.seed_everything(config.seed, verbose=False)
    train, val = (load(config.data, split, exif=config.exif) for split in (config.train_split, config.val_split))
    module = Training(config, choose(config))
    if config.weights not in (None, "imagenet"):
        checkpoint.load_initial_weights(str(config.weights), module.detector, module.averaged)
    with expected_warnings():
        recorders = [recorder(config, Path(config.runs), len(train.samples), lambda _micro: 0)]
        trainer = trainer_for(module, recorders, Path(config.runs))
        trainer.fit(module, loader(train, config, None), validation_loader(val, config))
    raise RunError("The replay ended before its last step", need="the data and the settings of the run")


def recorder(config: Config, folder: Path, page_count: int, position_of: Callable[[int], int]) -> Recorder:
    """Return the flight recorder of a run; `position_of` says where in the walk over the pages a micro-batch begins."""
    wanted = config.recorder
    return Recorder(
        folder,
        batches=wanted.batches,
        snapshot_every=wanted.snapshot_every and wanted.snapshot_every * config.trainer.accumulate_grad_batches,
        steps=wanted.steps,
        kind="ocrlab train",
        epoch_of=lambda micro: position_of(micro) // page_count,
        model_of=lambda module: module.detector,
    )


def settle_config(config: Config, machine: Machine, page_count: int, mine: Ranks | None = None) -> Config:
    """Return the config with every choice made for this machine written in, so that the same file runs it again."""
    mine = mine or Ranks()
    configuration.check(config)
    config = config.model_copy(deep=True)
    trainer, runtime = config.trainer, config.runtime
    if trainer.devices > 1 and not mine.launcher:
        what, got = "One process trains on one device", f"trainer.devices={trainer.devices}"
        do = f"Start it with ocrlab train --nproc {trainer.devices}, with torchrun, or with srun"
        raise ConfigError(what, got=got, need="a process for each", do=do)
    if trainer.sync_batchnorm and machine.accelerator == "cpu":
        got = "training on the CPU, for which torch has no SyncBatchNorm"
        do = "Leave it out: batch statistics are then those of each rank"
        raise ConfigError("trainer.sync_batchnorm=true needs GPUs", got=got, do=do)
    trainer.devices = mine.on_node
    if trainer.max_epochs is not None:
        pages_a_step = mine.world * config.batch_size * trainer.accumulate_grad_batches
        trainer.max_steps, trainer.max_epochs = math.ceil(trainer.max_epochs * page_count / pages_a_step), None
    trainer.accelerator = machine.accelerator  # type: ignore[assignment]
    trainer.precision = "bf16" if machine.bf16 else "fp32"
    trainer.val_every = min(trainer.val_every, trainer.max_steps)
    runtime.threads, runtime.workers, runtime.channels_last = machine.threads, machine.workers, machine.channels_last
    config.data = str(Path(config.data).absolute())
    if config.weights and config.weights.endswith(".ckpt"):
        config.weights = str(Path(config.weights).absolute())
    return config


def _announce(config: Config, machine: Machine, mine: Ranks, before: dict[str, Any] | None, progress: Progress) -> None:
    """Print the loud lines: how many ranks, GPUs that are not used or not there, and CUDA facts when asked for."""
    if mine.several:
        _warn(progress, collectives.ranks_text(config, mine))
    reason = machine.reasons["accelerator"]
    if machine.accelerator == "cpu" and "smoke" in reason:
        _warn(progress, f"TRAINING ON THE CPU: {reason}")
    here = torch.cuda.device_count() if machine.accelerator == "cuda" else 0
    if before and before["gpus"] != here:
        text = f"last.ckpt holds the random states of {before['gpus']} GPU(s), and {here} are used here"
        _warn(progress, f"{text}: random numbers of a GPU differ from those of the run; weights do not")
    if cuda_debug_info.wanted(config):
        for line in cuda_debug_info.lines():
            print(line, file=sys.stderr, flush=True)


def _run(
    module: Training,
    watcher: RunCallback,
    train: Index,
    val: Index,
    before: dict[str, Any] | None,
    last: Path | None,
    others: Sequence[lightning.Callback],
) -> None:
    """Build loaders and trainer, and fit."""
    config, folder, mine = module.config, watcher.folder, module.ranks
    old = install_stop_handlers(watcher)

    def position_of(micro_batch: int) -> int:  # `module.crops_done` is that of `module.micro`
        return module.crops_done + ((micro_batch - module.micro) * mine.world + mine.rank) * config.batch_size

    black_box = recorder(config, folder.path, len(train.samples), position_of) if config.recorder.on else None
    budget = make_budget(config, folder, watcher.progress, black_box, before["step"] if before else 0)
    callbacks = [*(callback for callback in (watcher, black_box, budget) if callback is not None), *others]
    who, more = f"rank {mine.rank}: " if mine.several else "", WATCHED * watcher_link.watched()
    try:
        trainer = trainer_for(module, callbacks, folder.path, min(2, len(val.samples)))
        watcher.stop_deadline = StopDeadline(watcher.until_stopped, folder.fail if mine.first else silent, who, more)
        with expected_warnings(), watcher.stop_deadline:
            pages = validation_loader(val, config, mine)
            trainer.fit(module, loader(train, config, before, mine), pages, ckpt_path=last)
        watcher.settle()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    if watcher.stop_signal is not None:
        raise SystemExit(128 + watcher.stop_signal)
    if trainer.global_step == 0:
        raise RunError(
            "Training did not reach its first step", need="trainer.max_steps or trainer.max_minutes long enough for one"
        )


def loader(train: Index, config: Config, before: dict[str, Any] | None, mine: Ranks | None = None) -> DataLoader[Any]:
    """Return the loader of a rank's training crops, starting after what a resumed run has done.

    The run may have had another number of ranks: all go on where those have stopped in the walk over the pages.
    """
    mine = mine or Ranks()
    batch, count = config.batch_size, len(train.samples)
    total = config.trainer.max_steps * config.trainer.accumulate_grad_batches * batch
    start = before["micro"] * batch if before else 0
    walk = {"rank": mine.rank, "world": mine.world, "first_position": before.get("seen", start) if before else 0}
    order = PageOrder(count, config.seed, total, start, batch=batch, **walk)
    workers = config.runtime.workers or 0
    return DataLoader(
        Crops(train.samples, config),
        batch_size=batch,
        sampler=order,
        num_workers=workers,
        collate_fn=collate,
        worker_init_fn=worker_init() if workers else None,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        pin_memory=config.trainer.accelerator == "cuda",
    )


def validated_pages(val: Index, config: Config) -> Sequence[Sample]:
    """Return the pages that training is validated on: `val_pages` of the split, spread evenly, or all of it."""
    count = config.trainer.val_pages
    return val.samples if count is None or count >= len(val.samples) else spread_samples(val.samples, count)


def validation_loader(val: Index, config: Config, mine: Ranks | None = None) -> DataLoader[Any]:
    """Return the loader of a rank's whole pages: its share of those that training is validated on."""
    samples = validated_pages(val, config)
    turns: Any = collectives.page_share(len(samples), mine or Ranks())
    return DataLoader(Pages(samples, config), batch_size=None, sampler=turns, num_workers=0)


def final_metrics(module: Training, watcher: RunCallback, val: Index, progress: Progress) -> dict[str, float]:
    """Return the figures of the best weights on all pages of `val`.

    The last weights compete with the best checkpoint on the pages, and the device, that training was validated on:
    figures of other pages say nothing about which weights are the better ones.
    """
    config, step = module.config, module.trainer.global_step
    module.averaged.to(module.trainer.strategy.root_device)  # Lightning has moved all weights to the host
    some = validated_pages(val, config)
    last = module.scores
    if module.scored != step:  # no validation was due at the last step, or it was left
        last = measure_pages(module, some, progress)
        watcher.write({"step": step, **last}, step)
    if watcher.best_path is None or last["hmean@0.5"] >= watcher.best:
        watcher.best, best = last["hmean@0.5"], last
        watcher.save_best(module, last)
    else:
        saved = collectives.broadcast(module.ranks, checkpoint.load(watcher.best_path) if module.ranks.first else None)
        best = saved["ocrlab"]["metrics"]
        module.averaged.load_state_dict(saved["detector"])
    return dict(best) if len(some) == len(val.samples) else measure_pages(module, val.samples, progress)


def measure_pages(module: Training, samples: Sequence[Sample], progress: Progress) -> dict[str, float]:
    """Return the figures of the averaged weights over every one of `samples`, of which each rank judges its share."""
    config, mine = module.config, module.ranks
    module.averaged.eval()
    dataset, judged = Pages(samples, config), {}
    for turn, i in enumerate(collectives.page_share(len(dataset), mine)):
        if i is not None:
            page = dataset.page(i)
            judged[i] = page_inference.judge(module.averaged, page, config, bf16=module.machine.bf16).counts
        progress({"kind": "measure", "step": min((turn + 1) * mine.world, len(dataset)), "total": len(dataset)})
    return figures(collectives.sum_scores(mine, judged, len(dataset)))
