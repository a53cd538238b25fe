"""A replay of one rank of several: it is the only one of its process group, however the program begins that.

`torchrun` and its like say it in variables, which a replay sets; Lightning, `mp.spawn` and `mp.Process` in the program
itself. What would wait for the other ranks for ever is made a group of one, and processes of other ranks end.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ocrlab.flight.ranks import Member, Ranks


def begin(job: Mapping[str, Any]) -> None:
    """Have this process, if the run had several ranks, be alone in its group."""
    if int(job.get("world", 1)) < 2 or not dist.is_available():
        return
    real = dist.init_process_group
    if hasattr(real, "__wrapped__") and real.__module__ == __name__:
        return

    @functools.wraps(real)
    def init(backend: Any = None, init_method: Any = None, timeout: Any = None, *more: Any, **named: Any) -> Any:
        named.update(zip(("world_size", "rank", "store", "group_name"), more, strict=False))
        rank = named.get("rank", -1)
        if rank not in (-1, int(job["rank"])) and int(named.get("world_size", -1)) > 1 and _is_child():
            os._exit(0)  # another rank: nobody waits for it
        if not torch.cuda.is_available():
            backend = "gloo"
        return real(backend, timeout=timeout, **{**named, "store": dist.HashStore(), "rank": 0, "world_size": 1})

    init.__module__ = __name__
    dist.init_process_group = dist.distributed_c10d.init_process_group = init


def world() -> int:
    """Return how many ranks this training has."""
    return int(dist.get_world_size()) if dist.is_available() and dist.is_initialized() else 1


def member(flight: Path, rank: int, kind: str) -> Member:
    """Return the record of how this rank ends, in a flight/; `ocrlab train` keeps its own, and one rank alone none."""
    made = Member(Ranks(rank, world() if kind != "ocrlab train" else 1))
    made.begin()
    made.keep(flight)
    made.told.setdefault("end", None)  # of one rank it is only held
    return made


def trainers(job: Mapping[str, Any], *kinds: Any) -> None:
    """Have Lightning's trainers of these kinds, if the run had several ranks, train on one device."""
    if int(job.get("world", 1)) < 2:
        return
    for kind in filter(None, kinds):
        kind.__init__ = _alone(kind.__init__)


def _alone(real: Any) -> Any:
    @functools.wraps(real)
    def made(trainer: Any, **named: Any) -> None:
        real(trainer, **{**named, "devices": 1, "num_nodes": 1, "strategy": "auto"})

    return made


def _is_child() -> bool:
    return multiprocessing.parent_process() is not None
