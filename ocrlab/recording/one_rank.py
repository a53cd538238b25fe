"""A replay of one rank of several: in the group that it asks for it is the only one, and waits for nobody.

Nor for the store of a torchrun that has ended. Where the program starts its processes by itself (mp.spawn, Process), a
replay starts the program, and those that are not the one to replay end where they would be recorded, if they have asked
for a group. Lightning's trainers are given one device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ocrlab.flight import record_program
from ocrlab.flight.ranks import Member, Ranks

asked: list[int] = []  # the ranks that this process was told to be


def begin(job: Mapping[str, Any]) -> None:
    """Have every process be alone in its group, in the replay of one of several."""
    if int(job.get("world") or 1) > 1 and dist.is_available():
        dist.distributed_c10d.rendezvous = meet  # type: ignore[assignment]


def meet(_url: str, rank: int = -1, _world_size: int = -1, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Take the place of torch's rendezvous, which gives a group its store, this process's rank and their number."""
    asked.append(rank)
    yield dist.HashStore(), 0, 1


def is_other(job: Mapping[str, Any]) -> bool:
    """Tell whether this process is not the one that a replay is about."""
    return job.get("started") not in (None, record_program.started())


def member(flight: Path, rank: int, kind: str) -> Member:
    """Return the record of how this rank ends, in a flight/; `ocrlab train` keeps its own, and one rank alone none."""
    made = Member(Ranks(rank, record_program.world() if kind != "ocrlab train" else 1))
    made.begin(watched=False)
    made.keep(flight)
    made.told.setdefault("end", None)  # of one rank it is only held
    return made


def trainers(job: Mapping[str, Any], *kinds: Any) -> None:
    """Have Lightning's trainers of these kinds, if the run had several ranks, train on one device."""
    if int(job.get("world") or 1) < 2:
        return
    for kind in filter(None, kinds):
        kind.__init__ = _alone(kind.__init__)


def _alone(real: Any) -> Any:
    @functools.wraps(real)
    def made(trainer: Any, **named: Any) -> None:
        real(trainer, **{**named, "devices": 1, "num_nodes": 1, "strategy": "auto"})

    return made
