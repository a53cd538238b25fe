"""What the recorder costs: rows of flight.py. One training, out of which the recorder is taken, and put in again.

Two trainings in one process lie in other places of its memory, which alone is worth 50 us a step, and whole blocks of
steps differ by more than the recorder costs. So the same weights are trained in turns with it, without it, and without
it again: the last two should not differ, and what they do is the error. The first steps of a turn do not count.

A machine that shares its cores takes 16 or 20 ms for the same step. One of the two turns without the recorder shows
whether a round is quiet, and the other one is compared. If the same turn did both, the recorder would look 50 us slower
than it is on a noisy machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flight_pages import Net
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from ocrlab.debug.instruments.call_hook import CallHook

AROUND = 12  # steps before a snapshot lies on the disk, in which it is taken and written
SPIN = 0.015  # seconds that a step waits for, which makes it one of 20 ms
NEVER = 10**9
WARM = 70  # steps at the beginning, in which the recorder looks often at what is learned
TURN, SETTLE = 8, 2  # steps of a turn, and how many of them do not count
QUIET = 1.05  # times the fastest tenth: what turns without the recorder take in a quiet round
FEW = 0.1  # of the rounds: fewer quiet ones tell nothing
OUTLIERS = 0.05  # of the rounds at either end, in which the machine did something else
WITH, WITHOUT, AGAIN = range(3)


class Cost(NamedTuple):
    """What the recorder adds to a step, in seconds: median and mean without outliers, the latter's standard error.

    `nothing` is the median by which turns without it differ; `cpu` the median of the processor's time.
    """

    rounds: int
    step: float  # without the recorder
    median: float
    mean: float
    error: float
    cpu: float
    nothing: float


Figures = tuple[float, float]  # seconds of a step, and of the CPU


def recorder(rounds: int) -> tuple[Cost, Cost]:
    """Return what the recorder costs without snapshots: in quiet rounds, and in all; raises ValueError for too few."""
    rounds_figures = switched(rounds)
    typical = sorted(figures[AGAIN][0] for figures in rounds_figures)[len(rounds_figures) // 10]
    quiet = [figures for figures in rounds_figures if figures[AGAIN][0] <= QUIET * typical]
    if len(quiet) < FEW * rounds:
        raise ValueError(f"the machine was busy: {len(quiet)} of {rounds} rounds were quiet, {FEW:.0%} are needed")
    return cost(quiet, [WITHOUT]), cost(rounds_figures, [WITHOUT, AGAIN])


def cost(rounds: Sequence[Sequence[Figures]], against: Sequence[int] = (1, 2)) -> Cost:
    """Return what rounds of turns with, without, and without the recorder again tell; `against` are compared with."""
    plain = [[statistics.fmean(figures[turn][i] for turn in against) for i in (0, 1)] for figures in rounds]
    wall = [figures[WITH][0] - rest[0] for figures, rest in zip(rounds, plain, strict=True)]
    cpu = statistics.median(figures[WITH][1] - rest[1] for figures, rest in zip(rounds, plain, strict=True))
    nothing = statistics.median(figures[WITHOUT][0] - figures[AGAIN][0] for figures in rounds)
    steps = trimmed(wall)
    error = statistics.pstdev(steps) / math.sqrt(len(steps))
    step = statistics.median(rest[0] for rest in plain)
    return Cost(len(rounds), step, statistics.median(wall), statistics.fmean(steps), error, cpu, nothing)


def trimmed(values: Sequence[float]) -> list[float]:
    """Return what is left without the outliers at both ends."""
    out = int(OUTLIERS * len(values))
    return sorted(values)[out : len(values) - out]


def switched(rounds: int, workers: int | None = None) -> list[list[Figures]]:
    """Train in rounds of three turns; returns the mean step of each turn: with the recorder, without, and again.

    The batches are those of a list, or come from a DataLoader with so many workers.
    """
    from ocrlab.debug.recorder.loop_recorder import recording

    figures: list[list[Figures]] = []
    model, optimizer, batches = parts()
    with (
        tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder,
        recording(Path(folder), model, optimizer, snapshot_every=NEVER) as rec,
    ):
        plain: Iterator[Any] = itertools.cycle(batches) if workers is None else iter(loader(batches, workers))
        recorded = iter(rec.batches(itertools.cycle(batches) if workers is None else loader(batches, workers)))
        mean_step(model, optimizer, recorded, WARM, rec)
        for number in range(rounds):
            turns: list[Figures] = [(0.0, 0.0)] * 3
            for side in (*range(number % 3, 3), *range(number % 3)):
                switch(rec, model, side == WITH)
                source, recorder = (recorded, rec) if side == WITH else (plain, None)
                turns[side] = mean_step(model, optimizer, source, TURN, recorder)
            figures.append(turns)
        switch(rec, model, True)
    return figures


def switch(rec: Any, model: torch.nn.Module, on: bool) -> None:
    """Take out of a program what the recorder has put into it, or put it in."""
    rec.stop()
    rec.step_recorder.stages.detach()
    scales = rec.step_recorder.monitor.scales
    scales.close()
    if on:
        rec._hook_steps(rec.training.optimizers)
        rec.step_recorder.hook_stages(model)
        scales.handles = [model.register_forward_pre_hook(CallHook(scales._hook), with_kwargs=True)]


class Samples(Dataset[Any]):
    """As many samples as anybody asks for, out of a few batches."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> Any:
        return tuple(part[index % 2] for part in self.batches[index % len(self.batches)])


def loader(batches: Sequence[Any], workers: int) -> DataLoader[Any]:
    """Return a loader of batches like those that are given."""
    return DataLoader(Samples(batches), batch_size=2, num_workers=workers)


def mean_step(model: Any, optimizer: Any, batches: Iterator[Any], steps: int, rec: Any) -> Figures:
    """Make some steps, and return the mean of those that count."""
    taken = []
    for _ in range(steps):
        begun = time.perf_counter(), time.process_time()
        run_step(model, optimizer, next(batches), rec, SPIN)
        taken.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    return statistics.fmean(figures[0] for figures in taken[SETTLE:]), statistics.fmean(
        figures[1] for figures in taken[SETTLE:]
    )


def snapshots(steps: int) -> tuple[float, int]:
    """Return by which share of its time adaptive snapshots lengthen a run, and how many there were.

    What the steps around a snapshot take above the median step, less what as many steps far from any do: whole runs
    differ by more than one per cent from each other.
    """
    wall: list[float] = []
    written: list[int] = []  # the steps after which a snapshot lay on the disk
    count = 0
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        for _ in training(Path(folder), False, 30):
            pass  # the first step of a process prepares its kernels, beside the first snapshot
        for at, seconds in enumerate(training(run := Path(folder), True, steps)):
            wall.append(seconds)
            if (stamp := newest(run)) != count:
                count = stamp
                written.append(at)
    near = {place for at in written for place in range(at - AROUND, at + 3) if 0 <= place < len(wall)}
    typical = statistics.median(wall)
    far = [seconds - typical for place, seconds in enumerate(wall) if place not in near]
    rest = statistics.fmean(far) if far else 0.0
    return sum(wall[place] - typical - rest for place in near) / sum(wall), len(written)


def training(folder: Path, on: bool, steps: int) -> Iterator[float]:
    """Train with or without adaptive snapshots, some megabytes each; yields the seconds of each step."""
    from ocrlab.debug.recorder.loop_recorder import recording

    model, optimizer, batches = parts(2_000_000)
    with recording(folder, model, optimizer, snapshot_every=None if on else NEVER) as rec:
        last = time.perf_counter()
        for batch in rec.batches(itertools.islice(itertools.cycle(batches), steps)):
            run_step(model, optimizer, batch, rec, 0.0)
            now = time.perf_counter()
            yield now - last
            last = time.perf_counter()


def parts(ballast: int = 250_000) -> tuple[Any, Any, list[Any]]:
    """Return a network, `ballast` weights larger than it needs, its optimizer, and made-up batches."""
    torch.manual_seed(0)
    model, batches = Net(), [sample() for _ in range(4)]
    model.register_parameter("ballast", torch.nn.Parameter(torch.zeros(ballast)))  # a detector has millions
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), batches


def run_step(model: Any, optimizer: Any, batch: Any, rec: Any, spin: float) -> None:
    """Make a step, with a recorder or None."""
    loss = cross_entropy(model(batch[0], batch[2]), batch[1])
    if rec is not None:
        rec.loss(loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    until = time.perf_counter() + spin
    while time.perf_counter() < until:
        pass


def newest(run: Path) -> int:
    """Return when the newest snapshot of a run was finished, in nanoseconds; 0 where there is none."""
    return max((path.stat().st_mtime_ns for path in (run / "flight").glob("snapshot-*.pt")), default=0)


def sample() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return one made-up batch."""
    return torch.rand(2, 3, 64, 64), torch.zeros(2, 64, 64, dtype=torch.long), torch.zeros(2, dtype=torch.long)
