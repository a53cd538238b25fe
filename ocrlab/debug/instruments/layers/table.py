"""Rows of a layer watch, and what follows from them: the table, the history, the first fault.

One row is one tensor at one moment: what goes into a module, what comes out, the gradients of both, or a weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ocrlab.debug.instruments.tensor_facts import Facts, Figures
from ocrlab.debug.instruments.tensor_tree import PACKED

if TYPE_CHECKING:
    from pandas import DataFrame

WEIGHT, INPUT, OUTPUT = "weight", "input", "output"
RECURRENT = ("RNN", "LSTM", "GRU")  # their state is (layers, B, C) whatever batch_first says
GRADIENT = {INPUT: "gradient of input", OUTPUT: "gradient of output"}
MIB = 2**20
LAYOUT = ("shape", "stride", "dtype", "device", "memory_format")
COLUMNS: tuple[str, ...] = ("step", "micro", "phase", "module", "class", "what", "path", *LAYOUT)
COLUMNS += ("min", "max", "mean", "std", "zeros", "nan", "inf", "ms", "backward_ms", "index", "why")


@dataclass(slots=True)
class Slot:
    """What is in a tensor: at once on a CPU; on a device as a vector there, until somebody reads."""

    facts: Facts
    figures: Figures | None = None
    index: tuple[int, ...] | None = None  # of the first value that is NaN or Inf
    why: str = ""  # there are no figures
    mask: bool = False  # 0 where attention may look and -Inf where not: no fault
    vector: Tensor | None = None
    read: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # shape and stride of what the vector was computed from
    read_on: torch.device | None = None


@dataclass(slots=True)
class Call:
    """One forward of a module, and its backward."""

    module: str
    kind: str  # its class
    root: bool
    step: int
    micro: int
    phase: str  # forward, eval, recompute
    order: int
    batch_first: bool = True
    begin: Any = None
    end: Any = None
    own: tuple[int, int] = (0, 0)
    back_begin: Any = None
    back_end: Any = None
    back_own: tuple[int, int] = (0, 0)
    ms: float | None = None
    backward_ms: float | None = None
    allocated: int | None = None  # bytes more on the GPU when it was left


@dataclass(slots=True)
class Row:
    """One tensor of one call; `order` is that of computing, over the whole watch."""

    order: int
    call: Call
    what: str
    path: str
    slot: Slot

    @property
    def bad(self) -> int:
        """How many values are NaN or Inf, as far as it was read; those of a mask are meant."""
        computed = self.what != WEIGHT and (self.what != INPUT or self.path in ("", "[0]"))  # no mask of attention
        figures = self.slot.figures if computed or not self.slot.mask else None
        return figures.bad if figures else 0


@dataclass(frozen=True)
class FirstNonFinite:
    """The first tensor with a NaN or Inf, in the order of computing."""

    module: str
    kind: str
    what: str  # input, output, gradient of output, gradient of input, weight
    path: str
    step: int
    micro: int
    phase: str
    index: tuple[int, ...] | None
    sample: int | None  # position in the batch; None for weights
    nan: int
    inf: int
    count: int
    shape: tuple[int, ...]
    dtype: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def first_nonfinite(rows: Iterable[Row]) -> FirstNonFinite | None:
    """Return the first fault among rows, or None."""
    row = min((row for row in rows if row.bad), key=lambda row: row.order, default=None)
    if row is None or row.slot.figures is None:
        return None
    call, figures, facts, index = row.call, row.slot.figures, row.slot.facts, row.slot.index
    dimension = _sample_dimension(row)
    sample = index[dimension] if index and dimension is not None else None
    return FirstNonFinite(
        **{name: getattr(call, name) for name in ("module", "kind", "step", "micro", "phase")},
        **{name: getattr(figures, name) for name in ("nan", "inf", "count")},
        **{name: getattr(row, name) for name in ("what", "path")},
        index=index,
        sample=sample,
        shape=facts.shape,
        dtype=facts.dtype,
        sentence=_sentence(row, sample),
    )


def _sample_dimension(row: Row) -> int | None:
    """Return the dimension of a tensor that is its samples, None where there is none or it is unknown."""
    size = len(row.slot.facts.shape)
    if row.what == WEIGHT or size < 2 or row.path.endswith(PACKED):
        return None
    state = row.call.kind in RECURRENT and row.path.startswith("[1]")
    return 1 if size == 3 and (state or not row.call.batch_first) else 0


def _sentence(row: Row, sample: int | None) -> str:
    """Return the text of the first fault: where it is, and what computed it, as far as that is known."""
    call, figures, facts = row.call, row.slot.figures, row.slot.facts
    assert figures is not None, "only rows with figures are bad"
    which = " and ".join(name for name, count in (("NaN", figures.nan), ("Inf", figures.inf)) if count)
    named = "the model" if call.root else f"{call.module} ({call.kind})"
    what = row.path if row.what == WEIGHT else f"{row.what} {row.path}".strip()
    whose = {
        WEIGHT: "it is there before the module computes",
        INPUT: "it came in with the batch" if call.root else "it was made before this module",
        OUTPUT: "made here: what came in was finite",
        GRADIENT[OUTPUT]: "made by what comes after it: the loss, code between modules, one that is not watched",
        GRADIENT[INPUT]: "made here: the gradient that came back to its output was finite",
    }[row.what]
    where = f", sample {sample} of the batch" if sample is not None else ""
    at = f" at index {row.slot.index}" if row.slot.index else ""
    size = " x ".join(map(str, facts.shape)) or "one number"
    share = f"{figures.bad} of {figures.count} values, {size}, {facts.dtype}"
    return f"First {which} at step {call.step}: {what} of {named}{where}{at} ({share}); {whose}."


def worst_rows(rows: Iterable[Row]) -> dict[str, Row]:
    """Return for each module the row with most values that are NaN or Inf, the first of equals."""
    worst: dict[str, Row] = {}
    for row in rows:
        if row.bad and (row.call.module not in worst or row.bad > worst[row.call.module].bad):
            worst[row.call.module] = row
    return worst


def table(names: Sequence[tuple[str, str]], rows: Sequence[Row], bad: dict[str, Row]) -> DataFrame:
    """Return one row a module: its last output and gradient, its time, and its worst tensor.

    `zeros` are shares 0..1, `nan` and `inf` counts of the last output, `ms` and `backward_ms` of the last call; `worst`
    says in which tensor and step most values were NaN or Inf. A module that was never called has only its name.
    """
    import pandas

    by_module: dict[str, list[Row]] = {}
    for row in rows:
        by_module.setdefault(row.call.module, []).append(row)
    summaries = [_summary(name, kind, by_module.get(name, []), bad.get(name)) for name, kind in names]
    return pandas.DataFrame(summaries).set_index("module")


def _summary(name: str, kind: str, rows: Sequence[Row], bad: Row | None) -> dict[str, Any]:
    """Return the table's row of one module."""
    output, gradient = _newest_row(rows, OUTPUT), _newest_row(rows, GRADIENT[OUTPUT])
    calls = list({id(row.call): row.call for row in rows}.values())
    if output is None:
        calls = [call for call in calls if call.ms is not None]  # also one that gives no tensor; no unfinished one
    last = output.call if output else calls[-1] if calls else None
    backward = [call.backward_ms for call in calls if call.backward_ms is not None]
    return {
        "module": name,
        "class": kind,
        "step": last.step if last else None,
        "calls": sum(call.step == last.step and call.phase != "recompute" for call in calls) if last else 0,
        **_columns(output),
        **{f"grad_{name}": value for name, value in _columns(gradient).items() if name not in LAYOUT},
        "ms": last.ms if last else None,
        "backward_ms": backward[-1] if backward else None,
        "output_mib": output.slot.facts.bytes / MIB if output else None,
        "allocated_mib": last.allocated / MIB if last and last.allocated is not None else None,
        "worst": f"{bad.bad} in {bad.what} {bad.path}".strip() + f", step {bad.call.step}" if bad else "",
    }


def _newest_row(rows: Sequence[Row], what: str) -> Row | None:
    """Return the largest tensor of a kind in the newest call that has one."""
    matches = [row for row in rows if row.what == what and (what != OUTPUT or row.call.phase != "recompute")]
    newest = matches[-1].call if matches else None
    same = [row for row in rows if row.call is newest and row.what == what]
    return max(same, key=lambda row: row.slot.facts.bytes, default=None)


def _columns(row: Row | None) -> dict[str, Any]:
    """Return how a tensor lies in memory and what is in it; `zeros` is a share, `nan` and `inf` are counts."""
    facts, figures = (row.slot.facts, row.slot.figures) if row else (None, None)
    columns: dict[str, Any] = {name: getattr(facts, name, None) for name in LAYOUT}
    columns |= {name: getattr(figures, name, math.nan) for name in ("min", "max", "mean", "std")}
    columns["zeros"] = figures.zeros / figures.count if figures else math.nan
    return columns | {name: getattr(figures, name, None) for name in ("nan", "inf")}


def history(rows: Sequence[Row]) -> DataFrame:
    """Return one row a tensor, in the order of computing; `ms` is the call's, `zeros` a share, `nan`, `inf` counts."""
    import pandas

    lines = []
    for row in sorted(rows, key=lambda row: row.order):
        line = {name: getattr(row.call, name) for name in ("step", "micro", "phase", "module", "ms", "backward_ms")}
        line |= {"class": row.call.kind, "what": row.what, "path": row.path}
        lines.append(line | _columns(row) | {"index": row.slot.index, "why": row.slot.why})
    return pandas.DataFrame(lines, columns=COLUMNS)
