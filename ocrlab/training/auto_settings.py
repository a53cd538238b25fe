"""Choices that depend on the machine: device, threads, workers, number format, memory format. Measured, not guessed."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ocrlab.config.schema import Config
from ocrlab.errors import ConfigError
from ocrlab.hardware import host
from ocrlab.losses.db_loss import TargetMaps, db_loss
from ocrlab.model.dbnet import Detector
from ocrlab.model.inference_graph import packable

SIZES = ((128, 1), (256, 3))  # pixels of a crop that formats are tried on, and how often
CLOSE = 1.5  # times the fastest at the smaller size: what is slower is not tried at the larger one
SMOKE_DEADLINE = 180  # seconds; the first CUDA context of a cold machine can take a minute


@dataclass(frozen=True)
class Machine:
    """What a run computes on, and why."""

    accelerator: str
    threads: int
    workers: int
    bf16: bool
    channels_last: bool
    reasons: dict[str, str]


def choose(config: Config, ranks: int = 1) -> Machine:
    """Return the choices for this machine; what the config fixes is kept, the rest is measured (2-4 s on a CPU).

    Of `ranks` processes that train on it each gets an equal part of the cores: more threads than cores make each step
    ten times slower.
    """
    reasons: dict[str, str] = {}
    accelerator, reasons["accelerator"] = accelerator_for(config.trainer.accelerator)
    cores = max(1, host.cores() // ranks)
    wanted = host.wanted_threads()
    if config.runtime.threads:
        threads, reasons["threads"] = config.runtime.threads, "set in the config"
    elif wanted:
        threads, reasons["threads"] = wanted, "set by OMP_NUM_THREADS"
    else:
        threads = max(1, min(cores, (host.physical_cores() or cores) // ranks))
        reasons["threads"] = f"{cores} usable cores" + (f" for each of {ranks} ranks" if ranks > 1 else "")
    workers = config.runtime.workers
    if workers is None:
        # On few cores a busy loader worker takes a core from the step's own threads: loading in line is faster.
        workers = 0 if accelerator == "cpu" and cores <= 4 else min(8, max(1, cores - 2))
        reasons["workers"] = f"{cores} usable cores, training on the {accelerator}"
    torch.set_num_threads(threads)
    bf16, channels_last = formats(config, accelerator, reasons)
    return Machine(accelerator, threads, workers, bf16, channels_last, reasons)


def accelerator_for(wanted: str) -> tuple[str, str]:
    """Return the accelerator to use and why; `auto` takes the GPU only when a training step survives in a child.

    Raises ConfigError when `cuda` was asked for and there is none.
    """
    if wanted == "cpu":
        return "cpu", "set in the config"
    if not torch.cuda.is_available():
        if wanted == "cuda":
            what, do = "trainer.accelerator=cuda needs a CUDA device", "Use trainer.accelerator=cpu"
            raise ConfigError(what, got="torch sees none", do=do)
        return "cpu", "torch sees no CUDA device"
    if wanted == "cuda":
        return "cuda", "set in the config"
    fault = smoke("cuda")
    return ("cpu", f"the GPU failed its smoke test: {fault}") if fault else ("cuda", "the smoke test passed")


def smoke(device: str) -> str | None:
    """Run one training step on `device` in a child process; return None when it passed, else what happened."""
    command = [sys.executable, "-m", "ocrlab.training.jobs.replay_step", "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMOKE_DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {SMOKE_DEADLINE} s"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    end = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return f"{end}: {lines[-1] if lines else 'no word'}"


def formats(config: Config, accelerator: str, reasons: dict[str, str]) -> tuple[bool, bool]:
    """Return (bf16, channels_last): as configured, else whichever made a short training step fastest on this device."""
    fixed_bf16 = None if config.trainer.precision == "auto" else config.trainer.precision == "bf16"
    fixed_last = None if config.runtime.channels_last == "auto" else bool(config.runtime.channels_last)
    kinds = (True, False) if accelerator != "cpu" or packable(torch.bfloat16) else (False,)
    bf16_kinds = kinds if fixed_bf16 is None else (fixed_bf16,)
    choices = list(itertools.product(bf16_kinds, (True, False) if fixed_last is None else (fixed_last,)))
    if fixed_bf16 is None and True not in kinds:
        reasons["precision"] = "fp32: oneDNN has no bf16 for this processor, and torch's own is several times slower"
    if len(choices) == 1:
        reasons["formats"] = "set in the config"
        return choices[0]
    words = {c: f"{'bf16' if c[0] else 'fp32'} {'channels_last' if c[1] else 'contiguous'}" for c in choices}
    models = {last: _model(config, accelerator, last) for _, last in choices}
    seconds: dict[tuple[bool, bool], float] = {}
    for most, rounds in SIZES:
        side = min(most, config.crop)  # what is tried must not need more memory than the training
        steps = {(bf16, last): _step(models[last], accelerator, side, bf16) for bf16, last in choices}
        for step in steps.values():
            step()  # compiles kernels and takes memory
        taken = [{choice: step() for choice, step in steps.items()} for _ in range(rounds)]
        seconds = {choice: min(times[choice] for times in taken) for choice in choices}
        timings = json.dumps({words[c]: f"{1000 * s:.0f} ms" for c, s in seconds.items()})
        reasons["formats"] = "; ".join(filter(None, (reasons.get("formats"), f"step at {side} px: {timings}")))
        choices = [choice for choice in choices if seconds[choice] <= CLOSE * min(seconds.values())]
    return min(seconds, key=lambda choice: seconds[choice])


def _model(config: Config, accelerator: str, channels_last: bool) -> Detector:
    """Return the configured network, from random numbers that nothing else is made of."""
    with torch.random.fork_rng(devices=[]):
        model = Detector(config.encoder, config.decoder, config.width).to(accelerator)
    return model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def _step(model: Detector, accelerator: str, side: int, bf16: bool) -> Callable[[], float]:
    """Return a function that makes a training step on two small crops and returns its seconds; it drops gradients."""
    images = torch.zeros(2, 3, side, side, dtype=torch.uint8, device=accelerator)
    maps = TargetMaps(*(torch.ones(2, 1, side, side, device=accelerator) for _ in range(4)))

    def step() -> float:
        start = time.perf_counter()
        with torch.autocast(accelerator, torch.bfloat16) if bf16 else contextlib.nullcontext():
            out = model(images)
        db_loss(out.probability_logits, out.threshold_logits, maps).total.backward()
        if accelerator == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        model.zero_grad()
        return seconds

    return step


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: a training step frees and takes the same gigabyte, and page faults cost 10%.

    Without effect where there is no glibc (mallopt(3): M_TRIM_THRESHOLD -1, M_TOP_PAD -2, M_MMAP_MAX -4).
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20)):
            mallopt(option, value)


def spread(seconds: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile of step times."""
    ordered = sorted(seconds)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
