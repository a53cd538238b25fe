"""What the recorder costs: rows of flight.py. Two trainings in one process, some steps of each in turn.

A step of one side is compared with the step of the other beside it, so that what else the machine does takes part in
both; whole blocks of steps differ by more than the recorder costs. The first steps of a turn find the caches full of
the other training, which a training that runs alone never does, and are left out.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from flight_pages import Net
from torch.nn.functional import cross_entropy

STEP = 0.020  # seconds of a step
AROUND = 12  # steps before a snapshot lies on the disk, in which it is taken and written
SPIN = 0.012  # of it, beside a small network
NEVER = 10**9
WARM = 70  # steps at the beginning, in which the recorder looks often at what is learned
TURN, SETTLE = 8, 2  # steps of a side in turn, and how many of them do not count
OUTLIERS = 0.05  # of the steps at either end, in which the machine did something else


class Cost(NamedTuple):
    """Seconds of a step without the recorder, and what it adds to one: median, mean without outliers, CPU (median).

    What is done in one of many steps is in the mean alone.
    """

    step: float
    median: float
    mean: float
    cpu: float


def recorder(steps: int) -> Cost:
    """Return what the recorder costs without snapshots.

    Which side lies where in memory is worth 50 us: half of the steps are made by networks of which the recorded one was
    made first.
    """
    wall, mean, cpu, whole = [], [], [], []
    for first in (False, True):
        with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
            both = (
                training(Path(folder), on, (steps // 2 + WARM) * TURN // (TURN - SETTLE), NEVER)
                for on in (first, not first)
            )
            found = in_turn(*both)
        alone, recorded = found[::-1] if first else found
        added = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(alone, recorded, strict=True)][WARM:]
        wall.append(statistics.median(seconds for seconds, _ in added))
        mean.append(trimmed([seconds for seconds, _ in added]))
        cpu.append(statistics.median(seconds for _, seconds in added))
        whole.append(statistics.median(seconds for seconds, _ in alone))
    return Cost(*map(statistics.fmean, (whole, wall, mean, cpu)))


def trimmed(values: Sequence[float]) -> float:
    """Return the mean of what is left without the outliers at both ends."""
    out = int(OUTLIERS * len(values))
    return statistics.fmean(sorted(values)[out : len(values) - out])


def snapshots(steps: int) -> tuple[float, int]:
    """Return by which share of its time adaptive snapshots lengthen a run, and how many there were.

    What the steps around a snapshot take above the median step, less what as many steps far from any do: whole runs
    differ by more than one per cent from each other.
    """
    wall: list[float] = []
    made: list[int] = []  # the steps after which a snapshot lay on the disk
    seen = 0
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        for _ in training(Path(folder), False, 30, None, 2_000_000, spin=0.0):
            pass  # the first step of a process prepares its kernels, beside the first snapshot
        for at, (seconds, _) in enumerate(training(run := Path(folder), True, steps, None, 2_000_000, spin=0.0)):
            wall.append(seconds)
            if (stamp := newest(run)) != seen:
                seen = stamp
                made.append(at)
    near = {place for at in made for place in range(at - AROUND, at + 3) if 0 <= place < len(wall)}
    usual = statistics.median(wall)
    far = [seconds - usual for place, seconds in enumerate(wall) if place not in near]
    rest = statistics.fmean(far) if far else 0.0
    return sum(wall[place] - usual - rest for place in near) / sum(wall), len(made)


Figures = tuple[float, float]  # seconds of a step, and of the CPU


def in_turn(one: Iterator[Figures], two: Iterator[Figures]) -> tuple[list[Figures], list[Figures]]:
    """Take turns of both sides' steps, in every second pair the other side first; returns their figures."""
    found: tuple[list[Figures], list[Figures]] = ([], [])
    sides = ((one, found[0]), (two, found[1]))
    with contextlib.suppress(StopIteration):
        for number in itertools.count():
            for side, figures in sides if number % 2 == 0 else sides[::-1]:
                figures.extend([next(side) for _ in range(TURN)][SETTLE:])
    for side in (one, two):
        for _ in side:  # what no whole turn was left of
            pass
    return found


def training(
    folder: Path, on: bool, steps: int, every: int | None, ballast: int = 250_000, *, spin: float = SPIN
) -> Iterator[Figures]:
    """Train with or without a recorder, `ballast` weights more than the network needs; yields what each step took."""
    from ocrlab.train.recorder import recording

    torch.manual_seed(0)
    model, batches = Net(), [sample() for _ in range(4)]
    model.register_parameter("ballast", torch.nn.Parameter(torch.zeros(ballast)))  # a detector has millions
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with recording(folder, model, optimizer, snapshot_every=every) if on else contextlib.nullcontext() as rec:
        source = (batches[i % 4] for i in range(steps))
        last = time.perf_counter(), time.process_time()
        for batch in rec.batches(source) if rec is not None else source:
            loss = cross_entropy(model(batch[0], batch[2]), batch[1])
            if rec is not None:
                rec.loss(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            until = time.perf_counter() + spin
            while time.perf_counter() < until:
                pass
            yield time.perf_counter() - last[0], time.process_time() - last[1]
            last = time.perf_counter(), time.process_time()


def newest(run: Path) -> int:
    """Return when the newest snapshot of a run was finished, in nanoseconds; 0 where there is none."""
    return max((path.stat().st_mtime_ns for path in (run / "flight").glob("snapshot-*.pt")), default=0)


def sample() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return one made-up batch."""
    return torch.rand(2, 3, 64, 64), torch.zeros(2, 64, 64, dtype=torch.long), torch.zeros(2, dtype=torch.long)
