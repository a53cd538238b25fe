"""A replay of one rank of several: it has its number among them, and waits for nobody; the others hold what it holds.

Nor for the store of a torchrun that has ended. Where the program starts its processes by itself (mp.spawn, Process), a
replay starts the program, and those that are not the one to replay end where they would be recorded, if they have asked
for a group. Where nothing can stand in for a group (weights are spread over the ranks, a device is missing, another
torch), this rank is the only one of its group, rank 0 of 1, and Lightning's trainers are given one device.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist

from ocrlab.flight import ranks, record_program
from ocrlab.flight.ranks import Member, Ranks
from ocrlab.recording import heard

asked: list[int] = []  # the ranks that this process was told to be
mine: list[int] = []  # the rank that is replayed, and how many there were
lonely: list[str] = []  # why this process is the only one of its group
made_alone: list[str] = []  # kinds of Lightning's trainers that would have started processes, and now start none


def begin(job: Mapping[str, Any]) -> None:
    """Have every process wait for nobody, in the replay of one of several."""
    if int(job.get("world") or 1) < 2 or not dist.is_available() or dist.distributed_c10d.rendezvous is meet:
        return
    mine[:] = int(job["rank"]), int(job["world"])
    why = _lonely(job)
    if not why and not _stands_in():
        why = f"nothing stands in for a group of torch {torch.__version__}"
    if why:
        lonely.append(why)
        os.environ.update(ranks.single(os.environ))
    else:
        heard.answer(Path(job["run"], "flight"), int(job["rank"]), job.get("start"))
    dist.distributed_c10d.rendezvous = meet  # type: ignore[assignment]


def _lonely(job: Mapping[str, Any]) -> str:
    """Return why this rank is to be alone in its group; "" where it keeps its number."""
    if job.get("lonely"):
        return str(job["lonely"])
    here, local = torch.cuda.device_count(), os.environ.get("LOCAL_RANK", "0")
    if 0 < here <= int(local if local.isdecimal() else 0) and "CUDA_VISIBLE_DEVICES" not in os.environ:
        return f"there are {here} GPUs"
    return ""


def _stands_in() -> bool:
    try:
        from ocrlab.recording import stand_in  # of private parts of torch

        return stand_in.install(*mine)
    except Exception:  # of another torch
        return False


def meet(url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Take the place of torch's rendezvous, which gives a group its store, this process's rank and their number."""
    asked.append(rank)
    if lonely:
        yield dist.HashStore(), 0, 1
        return
    told = {name: values[0] for name, values in parse_qs(urlsplit(str(url)).query).items()}
    told = {"rank": os.environ.get("RANK", ""), "world_size": os.environ.get("WORLD_SIZE", ""), **told}
    number, many = (int(told[name]) if told[name].isdecimal() else None for name in ("rank", "world_size"))
    number, many = (mine[0] if number is None else number), (mine[1] if many is None else many)
    yield dist.HashStore(), rank if rank >= 0 else number, world_size if world_size > 0 else many


def is_other(job: Mapping[str, Any]) -> bool:
    """Tell whether this process is not the one that a replay is about."""
    wanted, here = job.get("started"), record_program.started()
    if wanted and made_alone:  # the trainer that is to be replayed is not in one of its processes, but in their first
        return bool(wanted[: len(here)] != here)
    return wanted not in (None, here)


def member(flight: Path, rank: int, kind: str) -> Member:
    """Return the record of how this rank ends, in a flight/; `ocrlab train` keeps its own, and one rank alone none."""
    made = Member(Ranks(rank, record_program.world() if kind != "ocrlab train" else 1))
    made.begin(watched=False)
    made.keep(flight)
    made.told.setdefault("end", None)  # of one rank it is only held
    return made


def trainers(*kinds: Any) -> None:
    """Have Lightning's trainers of these kinds train on one device, if this process is the only one of its group."""
    if not lonely:
        return
    for kind in filter(None, kinds):
        kind.__init__ = _alone(kind.__init__)


def _alone(real: Any) -> Any:
    @functools.wraps(real)
    def made(trainer: Any, **named: Any) -> None:
        real(trainer, **{**named, "devices": 1, "num_nodes": 1, "strategy": "auto"})
        made_alone.append(type(trainer).__name__)

    return made
