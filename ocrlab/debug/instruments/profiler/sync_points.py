"""Where the host waits for the device in one step, by source line of the user's code.

With CUDA torch itself says when a call waits (`torch.cuda.set_sync_debug_mode`). On the CPU nothing waits; of
the calls that would with a GPU those are found that dispatch an operator, such as `.item()`, and not `.tolist()`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ocrlab.debug.instruments.user_code import INSTRUMENTS, is_own

TORCH = os.path.dirname(torch.__file__) + os.sep
SAYS = "called a synchronizing CUDA operation"
SYNC = {
    "aten::_local_scalar_dense": "item",
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
    "aten::equal": "equal",
    "aten::is_nonzero": "bool",
    "aten::repeat_interleave": "repeat_interleave",
    "aten::bincount": "bincount",
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}  # by a mask: nonzero
MASKS = (torch.bool, torch.uint8)
DEEPEST = 200  # frames of a stack that are read
ON_THE_HOST = (  # (file in torch, function or "" for any): what is read there is on the CPU also where a GPU computes
    ("optim/optimizer.py", "_get_value"),  # the optimizer's count of steps
    ("nn/modules/rnn.py", ""),  # batch sizes of packed sequences, which have to be on the CPU
    ("nn/utils/rnn.py", ""),
    ("utils/data/", ""),  # the data set, and the sampler's random order
)
# Likewise in this package: the backward pass of the loss that is only there for maps on the CPU (see losses.on_cpu).
ROOT, ONLY_ON_THE_CPU = str(Path(__file__).parents[3]) + os.sep, (("losses/db_loss.py", "_backward"),)


@dataclass(frozen=True)
class Place:
    """A line of the user's code from which the host waits: the operator, where, and inside which call of torch."""

    operator: str
    file: str
    line: int
    function: str
    within: str  # "backward", "optimizer step", or ""

    def __str__(self) -> str:
        parts = Path(self.file).parts
        name = "/".join(parts[-2:] if parts[-1] == "__init__.py" else parts[-1:])
        return f"{name}:{self.line}" + (f" (in {self.within})" if self.within else "")


class WaitFinder(TorchDispatchMode):
    """Records one step, from `start` to `stop`; `dispatch` is False where torch.compile would notice."""

    def __init__(self, dispatch: bool = True) -> None:
        super().__init__()
        self.dispatch = dispatch
        self.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.places: Counter[Place] = Counter()
        self.stack = contextlib.ExitStack()
        self.warned = WarnedWaits()

    def start(self) -> None:
        """Begin; raises what torch raises."""
        if self.cuda:
            self.stack.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
            self.stack.enter_context(self.warned)
            torch.cuda.set_sync_debug_mode("warn")
        if self.dispatch:
            self.stack.enter_context(self)

    def stop(self) -> None:
        """End; everything is as it was."""
        self.stack.close()
        for message in self.warned.take():  # those of no operator that was dispatched here
            self.places[Place("", message.filename, message.lineno, "", "")] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        out = func(*args, **kwargs)
        with contextlib.suppress(Exception):  # counting must not end the step
            masks = (part for part in args[1] if part is not None and part.dtype in MASKS) if name in INDEXING else ()
            operator = SYNC.get(name) or ("index by a mask" if any(True for _ in masks) else "")
            times = len(self.warned.take()) if self.cuda else bool(operator)
            if times and (place := find_place(operator or name.removeprefix("aten::"))) is not None:
                self.places[place] += times
        return out


class WarnedWaits(warnings.catch_warnings):  # type: ignore[type-arg]
    """While it is entered, records torch's warnings that a CUDA call waited; at its end all others are shown."""

    def __init__(self) -> None:
        super().__init__(record=True)
        self.log: list[warnings.WarningMessage] = []

    def __enter__(self) -> Any:
        self.log = super().__enter__()  # type: ignore[assignment]
        warnings.filterwarnings("always", f".*{SAYS}.*")
        return self

    def take(self) -> list[warnings.WarningMessage]:
        """Return the warnings of a wait since the last call."""
        waits = [message for message in self.log if SAYS in str(message.message)]
        if waits:
            self.log[:] = [message for message in self.log if message not in waits]
        return waits

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for shown in [message for message in self.log if SAYS not in str(message.message)]:
            self.log.remove(shown)
            warnings.showwarning(shown.message, shown.category, shown.filename, shown.lineno, shown.file, shown.line)


def find_place(operator: str) -> Place | None:
    """Return the line of the user's code that is running: outside of torch, and of installed packages where it can.

    None where something is read that is on the host in any case, or that no GPU would ever compute.
    """
    frame: Any = sys._getframe(1)
    within = ""
    user_line: tuple[str, int, str] | None = None
    library_line: tuple[str, int, str] | None = None
    for _ in range(DEEPEST):
        if frame is None:
            break
        file, name, line = frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno
        frame = frame.f_back
        if user_line is None and file.startswith(INSTRUMENTS) and not (file == __file__ or name.startswith("__torch_")):
            return None  # another of our instruments reads it, not the user
        if file.startswith(ROOT) and (file[len(ROOT) :], name) in ONLY_ON_THE_CPU:
            return None
        if file.startswith(TORCH):
            if any(file[len(TORCH) :].startswith(part) and name.startswith(of) for part, of in ON_THE_HOST):
                return None
            if not within and os.sep + "autograd" + os.sep in file and "backward" in name:
                within = "backward"
            elif os.sep + "optim" + os.sep in file and name in ("step", "wrapper"):
                within = "optimizer step"
        elif user_line is None and is_own(file):
            user_line = (file, line, name)
        elif library_line is None and not file.startswith((INSTRUMENTS, "<")):
            library_line = (file, line, name)
    file, line, name = user_line or library_line or ("a thread of torch", 0, "")
    return Place(operator, file, line, name, within)


def short_path(file: str) -> str:
    """Return a short path: relative to the working directory, else its last two parts."""
    path = Path(file)
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(Path(*path.parts[-2:]))
