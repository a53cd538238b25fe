"""What the recorder costs: rows of flight.py. Sides in turn in one run; medians of the differences."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flight_pages import Net
from torch.nn.functional import cross_entropy

STEP = 0.020  # seconds of a step
AROUND = 12  # steps before a snapshot lies on the disk, in which it is taken and written
SPIN = 0.012  # of it, beside a small network
NEVER = 10**9


def recorder(pairs: int, steps: int) -> tuple[float, float, float]:
    """Return the seconds of a step without the recorder, what it adds to one, and that in CPU seconds; no snapshots."""
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        alone, recorded = in_turn(pairs, lambda on: block(Path(folder), on, steps, NEVER))
    added = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(alone, recorded, strict=True)]
    wall, cpu = (statistics.median(column) for column in zip(*added, strict=True))
    return statistics.median(wall for wall, *_ in alone), wall, cpu


def snapshots(steps: int) -> tuple[float, int]:
    """Return by which share of its time adaptive snapshots lengthen a run, and how many there were.

    What the steps around a snapshot take above the median step, less what as many steps far from any do: whole runs
    differ by more than one per cent from each other.
    """
    wall: list[float] = []
    made: list[int] = []
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        block(Path(folder), True, steps, None, ballast=2_000_000, spin=0.0, told=(wall, made))
    near = {place for at in made for place in range(at - AROUND, at + 3) if 0 <= place < len(wall)}
    usual = statistics.median(wall)
    far = [seconds - usual for place, seconds in enumerate(wall) if place not in near]
    rest = statistics.fmean(far) if far else 0.0
    return sum(wall[place] - usual - rest for place in near) / sum(wall), len(made)


Figures = tuple[float, float]  # seconds of a step: median, median of the CPU's


def in_turn(pairs: int, side: Callable[[bool], Any]) -> tuple[list[Any], list[Any]]:
    """Run both sides in turn, the first one in every second pair last; returns their figures."""
    found: dict[bool, list[Any]] = {False: [], True: []}
    side(True)
    for number in range(pairs):
        for on in (False, True) if number % 2 == 0 else (True, False):
            found[on].append(side(on))
    return found[False], found[True]


def block(
    folder: Path,
    on: bool,
    steps: int,
    every: int | None,
    *,
    ballast: int = 250_000,
    spin: float = SPIN,
    told: tuple[list[float], list[int]] | None = None,
) -> Figures:
    """Train some steps with or without a recorder, `ballast` weights more than the network needs.

    `told` takes the seconds of all steps, and those steps after which a snapshot lay on the disk.
    """
    from ocrlab.train.recorder import recording

    torch.manual_seed(0)
    model, batches = Net(), [sample() for _ in range(4)]
    model.register_parameter("ballast", torch.nn.Parameter(torch.zeros(ballast)))  # a detector has millions
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    wall, cpu = [], []
    run, seen = tempfile.mkdtemp(dir=folder), 0
    with recording(run, model, optimizer, snapshot_every=every) if on else contextlib.nullcontext() as rec:
        source = (batches[i % 4] for i in range(steps + 5))
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
            now = time.perf_counter(), time.process_time()
            wall.append(now[0] - last[0])
            cpu.append(now[1] - last[1])
            last = now
            if told is not None and (stamp := newest(Path(run))) != seen:
                seen = stamp
                told[1].append(len(wall) - 1)
    if told is not None:
        told[0].extend(wall)
    return statistics.median(wall[5:]), statistics.median(cpu[5:])


def newest(run: Path) -> int:
    """Return when the newest snapshot was finished, in nanoseconds; 0 where there is none."""
    return max((path.stat().st_mtime_ns for path in (run / "flight").glob("snapshot-*.pt")), default=0)


def sample() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return one made-up batch."""
    return torch.rand(2, 3, 64, 64), torch.zeros(2, 64, 64, dtype=torch.long), torch.zeros(2, dtype=torch.long)
