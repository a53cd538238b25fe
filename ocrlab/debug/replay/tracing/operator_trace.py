"""Every operator of a replayed step, forward and backward: reported before it runs, inspected afterwards."""

from __future__ import annotations

import functools
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ocrlab.debug.instruments.tensor_tree import nested_tensors
from ocrlab.debug.instruments.user_code import is_own

UNTOLD = ("profiler::", "prim::", "aten::_record_function")
UNSET = ("aten::empty", "aten::new_empty", "aten::resize", "aten::set_")  # their output holds whatever was there
UNDECLARED = ("running_mean", "running_var")  # written by native_, cudnn_ and miopen_batch_norm; no schema says so
FRAMEWORK = re.compile(
    rf"^{re.escape(str(Path(torch.__file__).parent))}/|^<(?:frozen|string)|/ocrlab/debug/(?:instruments|recorder|replay)/"
    r"|/(?:lightning|lightning_fabric|lightning_utilities|pytorch_lightning)/|/contextlib\.py$"
)


class OperatorObserver(Protocol):
    """Receives each operator call; no method may raise."""

    def before(self, name: str, inputs: list[Tensor], args: Any, kwargs: Any) -> None:
        """An operator begins."""

    def after(self, name: str, inputs: list[Tensor], changed: list[Tensor]) -> None:
        """It has ended; `changed` are the tensors that it has made or written to."""

    def raised(self, error: BaseException, inputs: list[Tensor]) -> None:
        """It has raised."""


@dataclass(frozen=True)
class Operator:
    """What the schema of an operator says: its name, whether it only makes a view, and which arguments it writes to."""

    name: str
    quiet: bool
    view: bool
    writes: tuple[tuple[int, str], ...]  # by place and name


class OperatorTrace(TorchDispatchMode):
    """The dispatch mode that reports operators; it changes neither inputs nor outputs."""

    supports_higher_order_operators = True

    def __init__(self, observer: OperatorObserver) -> None:
        super().__init__()
        self.observer = observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, operator = kwargs or {}, schema(func)
        if operator.quiet:
            return func(*args, **kwargs)
        inputs = [*nested_tensors(args), *nested_tensors(kwargs)]
        self.observer.before(operator.name, inputs, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self.observer.raised(error, inputs)
            raise
        changed: list[Tensor] = []
        if not (operator.view or operator.name.startswith(UNSET)):
            written = [args[index] if index < len(args) else kwargs.get(name) for index, name in operator.writes]
            changed = list({id(tensor): tensor for tensor in nested_tensors([result, written])}.values())
        self.observer.after(operator.name, inputs, changed)
        return result


@functools.cache
def schema(func: Any) -> Operator:
    """Return what an operator's schema says; of one without a schema (higher order) only the name."""
    declared_schema = getattr(func, "_schema", None)
    if declared_schema is None:
        return Operator(str(getattr(func, "name", lambda: func)()), False, False, ())
    name, aliases = declared_schema.name, [result.alias_info for result in declared_schema.returns]
    view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    silent = UNDECLARED if name.endswith("_batch_norm") else ()
    arguments = enumerate(declared_schema.arguments)
    writes = [(i, a.name) for i, a in arguments if (a.alias_info and a.alias_info.is_write) or a.name in silent]
    return Operator(name, name.startswith(UNTOLD), view, tuple(writes))


def line() -> str:
    """Return the current source line outside torch and ocrlab as `file:line function`, empty if there is none."""
    return innermost((frame.f_code, number) for frame, number in traceback.walk_stack(sys._getframe(1)))


def innermost(frames: Iterable[tuple[Any, int]]) -> str:
    """Return the first line, of (code, line) from the inside out, that is the user's own: no package's, if there is
    one; empty for none.
    """
    of_package = ""
    for code, number in frames:
        if not is_foreign(code.co_filename):
            text = f"{code.co_filename}:{number} {code.co_name}"
            if is_own(code.co_filename):
                return text
            of_package = of_package or text
    return of_package


@functools.lru_cache(maxsize=4096)
def is_foreign(file: str) -> bool:
    """Return whether a code file is never shown: it is of torch, of Lightning, or of an instrument."""
    return bool(FRAMEWORK.search(file))
