"""What other ranks have sent before a recording began: a seed, a list of pages, sizes. A replay of one rank, to which
nobody sends, takes it from here.

Heard are the collectives that a program calls itself, up to the beginning of the recorder, in their order; what comes
later is answered as if the others held what this rank holds.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ocrlab.flight.files import write_bytes

HEARD = {"broadcast": "tensor", "all_reduce": "tensor", "all_gather": "tensor_list", "scatter": "tensor"}
HEARD |= {"gather": "gather_list"}  # of each the argument that it writes to
LIMIT, MOST = 16 << 20, 1024  # bytes and calls
MODULES = (dist, getattr(dist, "distributed_c10d", dist))
REAL: dict[str, Callable[..., Any]] = {}  # torch's own, while others are in their place
OURS: dict[str, Callable[..., Any]] = {}  # these
took: list[list[Tensor]] = []  # what came of each call
answers: list[list[Tensor]] = []  # of the run, for a replay


def listen() -> None:
    """Keep what comes of each collective from now on, until a recording begins."""
    _wrap(_take)


def answer(folder: Path, rank: int, start: Any) -> None:
    """Answer the first collectives of a replay with what came of them in the run, where that was noted."""
    with contextlib.suppress(OSError, RuntimeError, ValueError, TypeError, EOFError, pickle.UnpicklingError):
        answers.extend(torch.load(folder / name(rank, start), weights_only=True))
        _wrap(_give)


def note(folder: Path, rank: int, start: int) -> None:
    """Write down what was heard, where a recording begins, and hear no more; raises OSError."""
    stop()
    told: list[list[Tensor]] = []
    with contextlib.suppress(RuntimeError):  # where a GPU has failed, it has the values no more
        told = [[tensor.cpu() for tensor in parts] for parts in took]
    if told:
        written = io.BytesIO()
        torch.save(told, written)
        write_bytes(folder / name(rank, start), written.getvalue(), private=True)


def stop() -> None:
    """Hear no more: put torch's own functions back, but where somebody has put another one in our place."""
    for called, real in REAL.items():
        for module in MODULES:
            if getattr(module, called, None) is OURS[called]:
                setattr(module, called, real)
    REAL.clear()


def sizes() -> bool:
    """Tell whether the next collective has an answer of the run that may be the size of an object."""
    return bool(answers) and bool(answers[0]) and answers[0][0].dtype == torch.int64


def name(rank: int, start: Any) -> str:
    """Return the name of the file of one rank's start."""
    return f"heard-{rank}-{start}.pt"


def _wrap(then: Callable[[list[Tensor]], None]) -> None:
    if not dist.is_available() or REAL:
        return
    for called, argument in HEARD.items():
        with contextlib.suppress(Exception):  # of another torch
            real, others = (getattr(module, called) for module in MODULES)
            if real is others:  # else somebody has already put something in its place
                OURS[called] = _with(real, argument, then)
                REAL[called] = real
                for module in MODULES:
                    setattr(module, called, OURS[called])


def _with(real: Callable[..., Any], argument: str, then: Callable[[list[Tensor]], None]) -> Callable[..., Any]:
    """Return a collective after which `then` is called with the tensors that it has written, none if it goes on."""
    position = list(inspect.signature(real).parameters).index(argument)

    @functools.wraps(real)
    def made(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() or not REAL:  # a program may have kept this function
            return real(*args, **named)
        work = real(*args, **named)
        with contextlib.suppress(Exception):
            given = args[position] if len(args) > position else named.get(argument)
            listed = [given] if isinstance(given, Tensor) else list(given or ())
            then(listed if work is None else [])
        return work

    return made


def _take(tensors: list[Tensor]) -> None:
    size = sum(tensor.nbytes for parts in took for tensor in parts)
    if len(took) >= MOST or size + sum(map(_size, tensors)) > LIMIT:
        took.clear()
        stop()
        return
    parts: list[Tensor] = []
    with contextlib.suppress(Exception):
        parts = [tensor.detach().clone() for tensor in tensors] if all(map(_can_be_kept, tensors)) else []
    took.append(parts)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _can_be_kept(tensor: Tensor) -> bool:
    is_usual = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return is_usual and _is_quiet(tensor.device)


def _is_quiet(device: torch.device) -> bool:
    """Tell whether a copy made on a device waits for nothing and disturbs nobody: on a GPU it is only queued there."""
    return device.type == "cpu" or (device.type == "cuda" and not torch.cuda.is_current_stream_capturing())


def _give(tensors: list[Tensor]) -> None:
    said = answers.pop(0)
    for tensor, value in zip(tensors, said, strict=False):
        if tensor.shape == value.shape and tensor.dtype == value.dtype:
            tensor.detach().copy_(value)
    if not answers:
        stop()
