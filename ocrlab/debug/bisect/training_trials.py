"""The short runs of `ocrlab train` that a bisect makes: what can be flipped in its config, and how they are started."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ocrlab import run_folder, safe_read
from ocrlab.config import schema as configs
from ocrlab.config.fields import flat
from ocrlab.config.schema import Config
from ocrlab.debug.bisect.factors import DATA, Factor
from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.trials.trial import Command, Start
from ocrlab.errors import ConfigError, DataError

SMALL_CROP = 256  # pixels
LOW_RATE, CLIP = 1e-4, 1.0  # of a training that is sure not to explode by itself
START_METHOD = "spawn"
STEPS = 20  # optimizer steps where nobody knows at which one it failed
MARGIN = 2  # optimizer steps beyond the one that failed: a loader is ahead of them
NAMES = "pages.json"  # in the folder of all runs: the names of the training pages, in their order
QUIET = {"tracking.mode": "disabled", "recorder.on": False, "trainer.max_minutes": None, "runtime.debug_cuda": False}
QUIET |= {"trainer.devices": 1, "trainer.sync_batchnorm": False}  # a trial is one process
SYNTHETIC = "synthetic"


def config_factors(config: Config) -> list[Factor]:
    """Return what can be flipped in a training: only what is not at its safe value already."""
    cuda, workers = config.trainer.accelerator != "cpu", config.runtime.workers
    crop = max(64, min(SMALL_CROP, config.crop // 64 * 32))
    decoder = "unet" if config.decoder == "fpn" else "fpn"
    rows: list[tuple[str, bool, str, Any]] = [
        ("workers", workers != 0, "runtime.workers", 0),
        ("precision", config.trainer.precision != "fp32", "trainer.precision", "fp32"),
        ("compile", config.runtime.compile, "runtime.compile", False),
        ("channels last", config.runtime.channels_last is not False, "runtime.channels_last", False),
        ("batch size", config.batch_size > 1, "batch_size", 1),
        ("threads", config.runtime.threads != 1, "runtime.threads", 1),
        ("decoder", True, "decoder", decoder),
        ("crop", crop < config.crop, "crop", crop),
        ("learning rate", config.optim.lr > LOW_RATE, "optim.lr", LOW_RATE),
        ("gradient clipping", config.optim.grad_clip == 0, "optim.grad_clip", CLIP),
    ]
    factors = [_setting(name, key, config, good) for name, there, key, good in rows if there]
    others: list[tuple[str, bool, str, str, dict[str, Any]]] = [
        ("pin memory", cuda, "on", "off", {"pin_memory": False}),
        ("start method", workers != 0, "as usual", START_METHOD, {"start_method": START_METHOD}),
        ("cudnn", cuda, "on", "off", {"cudnn": False}),
        ("opencv threads", True, "as usual", "1", {"opencv_threads": 1}),
        (DATA, True, config.data, "synthetic pages", {"synthetic": True}),
    ]
    return factors + [Factor(name, bad, good, job=job) for name, there, bad, good, job in others if there]


def factors_against(config: Config, words: Sequence[str]) -> list[Factor]:
    """Return as factors what `key=value` words would change in a config; raises ConfigError where nothing changes."""
    other = configs.apply(config, words)
    factors = [_setting(key, key, config, good) for key, (_, good) in configs.differences(config, other).items()]
    if not factors:
        raise ConfigError("--against changes nothing", got=" ".join(words), need="settings other than those of the run")
    return factors


def find_failed_step(run: Path) -> tuple[int, list[str]] | None:
    """Return the optimizer step at which a run ended, from 0, and the samples of its batch; None where nothing says."""
    for path in ring_reader.find_rings(run):
        try:
            now = ring_reader.read_ring(path).now
        except (OSError, ValueError, DataError):
            continue
        if now is not None:
            return now.number, list(now.samples)
    return None


def starter(config: Config, factors: Sequence[Factor], folder: Path, steps: int) -> Start:
    """Return how a short training is started: `steps` optimizer steps as it was, and as many crops where flipped.

    The config is written into `folder`, whose runs all read it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "config.yaml"
    run_folder.write_text(file, configs.dump(config), private=True)
    crops = steps * config.trainer.accumulate_grad_batches * config.batch_size

    def start(run: int, pages: list[int] | None, place: Path) -> Command:
        flipped = [factor for index, factor in enumerate(factors) if not run >> index & 1]
        job: dict[str, Any] = {"schema": 1, "config": str(file), "names": str(folder / NAMES), "pages": pages}
        job["overrides"] = {**QUIET, "runs": str(place / "runs"), "name": "probe"}
        for factor in flipped:
            job |= factor.job
            job["overrides"] |= dict(word.split("=", 1) for word in factor.overrides)
        if job.get(SYNTHETIC):
            job[SYNTHETIC] = str(folder / SYNTHETIC)
            job["names"] = None  # those of the synthetic pages are not names of the user's
        job["crops"] = crops if pages is None else rounds(crops, folder) * len(pages)
        batch = int(job["overrides"].get("batch_size", config.batch_size)) * config.trainer.accumulate_grad_batches
        needed = math.ceil(job["crops"] / batch)
        if needed > config.trainer.max_steps:  # or smaller batches would end before the page that fails
            job["overrides"].setdefault("trainer.max_steps", needed)
        run_folder.write_json(place / "job.json", job, private=True)
        return [sys.executable, "-m", "ocrlab.training.jobs.bisect_trial", str(place / "job.json")], {}

    return start


def read_page_names(folder: Path) -> list[str]:
    """Return the names of the training pages, as the first run has written them down; none if it did not get so far."""
    try:
        names_read = json.loads(safe_read.read(folder / NAMES)).get("names")
    except (OSError, ValueError, AttributeError):
        return []
    return [str(name) for name in names_read or ()]


def rounds(crops: int, folder: Path) -> int:
    """Return how often each page was seen in a run of all pages, rounded up."""
    return max(1, math.ceil(crops / max(1, len(read_page_names(folder)))))


def _setting(name: str, key: str, config: Config, good: Any) -> Factor:
    bad = _spoken(flat(config)[key])
    return Factor(name, f"{key}={bad}", f"{key}={_spoken(good)}", (f"{key}={_spoken(good)}",))


def _spoken(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
