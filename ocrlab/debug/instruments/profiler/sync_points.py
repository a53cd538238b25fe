"""Where the host waits for the device, by source line of the user's code, and the arithmetic of one step.

With CUDA torch itself says when a call waits (`torch.cuda.set_sync_debug_mode`). On the CPU nothing waits; those that
would with a GPU are found as they are dispatched. Floating-point operations are counted by torch's own formulas
(torch.utils.flop_counter), a multiplication with its addition as two.
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
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

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
READS = {torch.Tensor.tolist: "tolist", torch.Tensor.cpu: "cpu"}  # of tensors that are on the CPU already
DEEPEST = 200  # frames of a stack that are read
ON_THE_HOST = (  # (file in torch, function or "" for any): what is read there is on the CPU also where a GPU computes
    ("optim/optimizer.py", "_get_value"),  # the optimiser's count of steps
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
    within: str  # "backward", "optimiser step", or ""

    def __str__(self) -> str:
        parts = Path(self.file).parts
        name = "/".join(parts[-2:] if parts[-1] == "__init__.py" else parts[-1:])
        return f"{name}:{self.line}" + (f" (in {self.within})" if self.within else "")


class HostReads(TorchFunctionMode):
    """While it is entered, records what a step computed and then reads on the host: on the CPU no operator does it."""

    def __init__(self, lines: WaitFinder) -> None:
        super().__init__()
        self.lines = lines

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = READS.get(func)
        if name is not None and args and isinstance(args[0], torch.Tensor) and args[0].numel():
            with contextlib.suppress(Exception):  # a tensor without storage
                if args[0].untyped_storage().data_ptr() in self.lines.computed:
                    self.lines._take(name)
        return func(*args, **(kwargs or {}))


class WaitFinder(TorchDispatchMode):
    """Records one step, from `start` to `stop`; `dispatch` is False where torch.compile would notice."""

    def __init__(self, dispatch: bool = True) -> None:
        super().__init__()
        self.dispatch = dispatch
        self.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.places: Counter[Place] = Counter()
        self.flops = 0
        self.computed: set[int] = set()  # where the tensors lie that the step computed
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
            if not self.cuda:
                self.stack.enter_context(HostReads(self))

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
            for _ in self.warned.take():
                self._take(SYNC.get(name, name.removeprefix("aten::")))
            self._count(func, name, args, kwargs, out)
        return out

    def _count(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=out))
        if isinstance(out, torch.Tensor) and not self.cuda:
            self.computed.add(out.untyped_storage().data_ptr())
        waits = SYNC.get(name)
        if waits is None and name in INDEXING:
            masks = [each for each in args[1] if each is not None and each.dtype in (torch.bool, torch.uint8)]
            waits = "index by a mask" if masks else None
        if waits is not None and not self.cuda:
            self._take(waits)

    def _take(self, operator: str) -> None:
        if (place := find_place(operator)) is not None:
            self.places[place] += 1


class WarnedWaits:
    """While it is entered, records torch's warnings that a CUDA call waited; at its end all others are shown."""

    def __init__(self) -> None:
        self.log: list[warnings.WarningMessage] = []
        self.catching: Any = None

    def __enter__(self) -> WarnedWaits:
        self.catching = warnings.catch_warnings(record=True)
        self.log = self.catching.__enter__()
        warnings.filterwarnings("always", f".*{SAYS}.*")
        return self

    def take(self) -> list[warnings.WarningMessage]:
        """Return the warnings of a wait since the last call."""
        if not self.log:
            return []
        waits = [message for message in self.log if SAYS in str(message.message)]
        self.log[:] = [message for message in self.log if SAYS not in str(message.message)]
        return waits

    def __exit__(self, *error: Any) -> None:
        self.catching.__exit__(*error)
        for message in [each for each in self.log if SAYS not in str(each.message)]:
            self.log.remove(message)
            warnings.showwarning(
                message.message, message.category, message.filename, message.lineno, message.file, message.line
            )


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
                within = "optimiser step"
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
