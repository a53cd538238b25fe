"""A replay of one rank of several: it has its own rank number and world size on torch's fake backend, and waits for no
other rank. Nothing of this runs in a recorded training.

The fake backend sends nothing. A collective is answered as if all ranks held the values of this one, and what only
another rank knows (a received tensor) raises a RunError. Where the program starts its processes by itself (mp.spawn,
Process), the replay starts the program, and the processes that are not the one to replay end where they would begin to
be recorded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
import torch.distributed as dist

from ocrlab.debug.flight_record import program_info
from ocrlab.errors import RunError
from ocrlab.run_folder import launcher

OF_BACKEND = ("backend", "pg_options", "device_id")  # what a program may ask of a group
RECEIVES = ("recv", "irecv", "recv_object_list")
OBJECTS = ("broadcast_object_list", "scatter_object_list")  # sent by another rank: not even their size is known
asked: list[int] = []  # the ranks that groups of this process were made for
from_others: dict[str, None] = {}  # functions with which the program received values of other ranks
replaced: dict[str, Any] = {}  # torch's own functions


def begin(job: Mapping[str, Any]) -> None:
    """Have every process group of this process made on the fake backend, in the replay of one rank of several."""
    if int(job.get("world") or 1) < 2 or not dist.is_available() or replaced:
        return
    count, local = torch.cuda.device_count(), os.environ.get("LOCAL_RANK", "0")
    if local.isdecimal() and 0 < count <= int(local):  # fewer GPUs than the run had
        os.environ["LOCAL_RANK"] = "0"
    rank, world = int(job["rank"]), int(job["world"])
    _replace("init_process_group", lambda real: _on_fake_backend(real, rank, world))
    _replace("new_group", lambda real: functools.partial(_without_backend, real))
    _replace("monitored_barrier", lambda _real: lambda *_args, **_named: None)  # only gloo has one
    for name in RECEIVES:
        _replace(name, lambda real: functools.partial(_refuse, real.__name__))
    for name in OBJECTS:
        _replace(name, lambda real: functools.partial(_leave_alone, real))


def _replace(name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a function of torch.distributed wherever a module of this process holds it."""
    real = replaced[name] = getattr(dist, name)
    _exchange(name, real, make(real))


def _exchange(name: str, old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        with contextlib.suppress(Exception):  # a module may compute its attributes
            if module.__dict__.get(name) is old:
                setattr(module, name, new)


def undo() -> None:
    """Put torch's own functions back."""
    for name, real in replaced.items():
        _exchange(name, getattr(dist, name), real)
    replaced.clear()


def _on_fake_backend(real: Callable[..., Any], rank: int, world: int) -> Callable[..., Any]:
    """Return what takes the place of init_process_group: the rank and the world size are those that it would have had,
    by its arguments or its environment, else `rank` and `world`.
    """
    from torch.testing._internal.distributed.fake_pg import FakeProcessGroup, FakeStore

    options: Any = getattr(FakeProcessGroup, "Options", None)
    uniform = options is not None and hasattr(options(), "simulate_uniform_ranks")
    if not uniform:  # torch 2.14 and older: a reduction has no result, which DDP's reducer asks for
        _keep_own_gradients()

    def init_process_group(*args: Any, **named: Any) -> None:
        arguments = inspect.signature(real).bind(*args, **named).arguments
        query = parse_qs(urlsplit(str(arguments.get("init_method") or "")).query)
        settings = {name: values[0] for name, values in query.items()}
        settings = {"rank": os.environ.get("RANK", ""), "world_size": os.environ.get("WORLD_SIZE", "")} | settings
        number, size = int(arguments.get("rank", -1)), int(arguments.get("world_size", -1))
        number = number if number >= 0 else int(settings["rank"] if settings["rank"].isdecimal() else rank)
        size = size if size > 0 else int(settings["world_size"] if settings["world_size"].isdecimal() else world)
        asked.append(number)
        more: dict[str, Any] = {}
        if uniform:
            more["pg_options"] = options()
            more["pg_options"].simulate_uniform_ranks = True
        real("fake", rank=number, world_size=size, store=FakeStore(), **more)

    return init_process_group


def _keep_own_gradients() -> None:
    """Have DDP take the gradients of this rank for the mean of all."""
    kind: Any = torch.nn.parallel.DistributedDataParallel
    original = kind.__init__

    def completed(gradients: torch.Tensor) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(gradients)
        return future

    def init(model: Any, *args: Any, **named: Any) -> None:
        original(model, *args, **named)
        model.register_comm_hook(None, lambda _state, bucket: completed(bucket.buffer()))

    kind.__init__ = init


def _without_backend(real: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Make a group on the backend of the default group, whatever the program asked for."""
    arguments = dict(inspect.signature(real).bind(*args, **named).arguments)
    return real(**{name: value for name, value in arguments.items() if name not in OF_BACKEND})


def _refuse(name: str, *_args: Any, **_named: Any) -> Any:
    """Raise RunError in place of a function that receives a tensor."""
    _note(name)
    who = f"Rank {dist.get_rank()} of {dist.get_world_size()}"
    raise RunError(f"{who} waits for a tensor of another rank in {name}, and {launcher.HOLDS}")


def _leave_alone(real: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Leave a list of objects as it is where another rank sends them."""
    bound = inspect.signature(real).bind(*args, **named)
    bound.apply_defaults()
    group, source = bound.arguments.get("group"), bound.arguments.get("src")
    if bound.arguments.get("group_src") is not None:
        source = dist.get_global_rank(group or dist.GroupMember.WORLD, bound.arguments["group_src"])  # type: ignore[arg-type]
    if (source or 0) == dist.get_rank():
        return real(*args, **named)
    return _note(real.__name__)


def _note(name: str) -> None:
    """Say once that the program takes a value of another rank by a function; what it does next may depend on it."""
    if name not in from_others:
        from_others[name] = None
        print(f"{launcher.TAKES}{name}", file=sys.stderr, flush=True)


def is_other(job: Mapping[str, Any]) -> bool:
    """Return whether this process is not the one that a replay is about."""
    return job.get("started") not in (None, program_info.process_path())
