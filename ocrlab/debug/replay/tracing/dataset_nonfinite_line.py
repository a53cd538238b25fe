"""Which line of a data set, a transform or a collate function made the NaN or Inf that a batch brought along.

The samples of the batch are loaded once more, in this process, while torch's operators and NumPy's warnings are heard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ocrlab.debug.replay.tracing.nonfinite_tracker import NonFiniteTracker, root
from ocrlab.debug.replay.tracing.operator_trace import OperatorTrace, is_foreign, is_of_package, line

Rebuild = Callable[[], tuple[list[str], Callable[[Sequence[int]], Any]] | None]
KINDS = {"NaN": ("invalid value", "divide by zero"), "+Inf": ("overflow", "divide by zero")}
KINDS["-Inf"] = KINDS["+Inf"]
INSTRUMENTS = (
    "/ocrlab/debug/recorder/",
    "/ocrlab/debug/instruments/dataloader/",
    "/ocrlab/debug/replay/child/",
)  # no line of the user's


class LoadingObserver:
    """What hears the operators of a loading: see ops.Told."""

    def __init__(self) -> None:
        self.values = NonFiniteTracker()
        self.values.begin({}, (), None)
        self.place: dict[str, Any] = {}
        self.numpy: list[tuple[str, str]] = []  # what NumPy said, and where

    def before(self, name: str, inputs: list[Tensor], args: Any, kwargs: Any) -> None:
        self.place = {"op": name, "line": line()}

    def after(self, name: str, inputs: list[Tensor], changed: list[Tensor]) -> None:
        self.values.result(name, inputs, changed, self.place)

    def raised(self, error: BaseException, inputs: list[Tensor]) -> None:
        """Nothing: the loading went well in the run."""

    def record_numpy(self, what: str, _flag: int) -> None:
        """Take in what NumPy has met, at the innermost line of the user's own (called by NumPy)."""
        frame: Any = sys._getframe(1)
        while frame is not None and (is_foreign(frame.f_code.co_filename) or is_of_package(frame.f_code.co_filename)):
            frame = frame.f_back
        if frame is not None:
            self.numpy.append((what, f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"))


def find_loading_line(anew: Rebuild | None, value: str) -> str:
    """Return what made `value` (NaN, +Inf, -Inf) while a batch was loaded, with its line: `aten::div` at a.py:3 f.

    Empty where that is not one place, or nobody has seen it: data that were bad in their file, say.
    """
    if anew is None:
        return ""
    observer = LoadingObserver()
    with np.errstate(divide="call", over="call", invalid="call", call=observer.record_numpy), OperatorTrace(observer):
        batch = anew()
        if batch is not None:
            batch[1](range(len(batch[0])))
    roots = [root(birth) for birth in observer.values.order]
    roots = [origin for origin in roots if origin.value == value and origin.tensor.startswith("output")]
    born = {
        (origin.place.get("op"), origin.place.get("line"))
        for origin in roots
        if not (origin.is_written or origin.constant)
    }
    born = born or {(f"NumPy, {what}", at) for what, at in observer.numpy if what in KINDS.get(value, ())}
    born = {(op, at) for op, at in born if at and not any(place in str(at) for place in INSTRUMENTS)}
    return "`{}` at {}".format(*next(iter(born))) if len(born) == 1 else ""
