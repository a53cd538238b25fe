"""Boxes whose overlap a loss computes, and which are no corners: (x, y, width, height) is an overlap of nothing.

Told from what is done with the columns of a tensor (N, 4): the larger of the first two and the smaller of the last two
of two boxes are the corners of what they share. Where boxes end before they begin, no loss raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

LARGER = frozenset("max maximum".split())
SMALLER = frozenset("min minimum".split())
MINUS = frozenset("sub __sub__ subtract".split())
PASSING = frozenset("__getitem__ clamp clamp_min view reshape squeeze unsqueeze".split())
FEW = 2  # boxes that end before they begin, from which on it is no slip of the pen
SHARE = 0.1  # of all boxes
DEEP = 8  # views of views


class CornerWatch:
    """The boxes, not computed from weights, of which a step subtracts the larger first from the smaller last columns.

    Distances to four sides are made larger and smaller as well, but are added.
    """

    def __init__(self) -> None:
        self.derived: dict[int, tuple[Tensor, Tensor, bool]] = {}  # by id: what was made, of which boxes, of their end
        self.boxes: dict[int, Tensor] = {}

    def see(self, name: str, args: tuple[Any, ...], value: Any) -> None:
        """Note a call of a function and what it gave."""
        if name in PASSING and args and isinstance(value, Tensor) and (source := self._of(args[0])) is not None:
            self.derived[id(value)] = (value, *source)
        two = len(args) > 1 and all(isinstance(side, Tensor) for side in args[:2])
        if not two or name not in LARGER | SMALLER | MINUS:
            return
        if name in MINUS:
            end, start = self._of(args[0]), self._of(args[1])
            if end is not None and start is not None and end[0] is start[0] and end[1] and not start[1]:
                self.boxes[id(end[0])] = end[0]
        elif any(side.requires_grad for side in args[:2]) and isinstance(value, Tensor):
            for side in args[:2]:
                boxes = None if side.requires_grad else _whole(side)
                if boxes is not None and _columns(side, boxes) <= ({0, 1} if name in LARGER else {2, 3}):
                    self.derived[id(value)] = (value, boxes, name in SMALLER)

    def _of(self, tensor: Any) -> tuple[Tensor, bool] | None:
        entry = self.derived.get(id(tensor))
        return (entry[1], entry[2]) if entry is not None and entry[0] is tensor else None

    def findings(self, named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
        """Yield boxes that are taken for corners and end before they begin; `named` are the tensors of the batch."""
        for boxes in self.boxes.values():
            if not is_readable(boxes):
                continue
            rows = boxes.detach().reshape(-1, 4)
            wrong = (rows[:, 2] < rows[:, 0]) | (rows[:, 3] < rows[:, 1])
            count = int(wrong.sum())
            if count < FEW or count < SHARE * len(rows):
                continue
            name = next((f"batch.{n}" for n, t in named if _same(t, boxes)), "the boxes of the loss")
            at = int(wrong.nonzero()[0])
            shown = ", ".join(f"{value:.4g}" for value in rows[at].tolist())
            got = f"the loss takes them for corners, and {count} of {len(rows)} end before they begin ({at}: {shown})"
            do = "If they are x, y, width, height or centre, width, height, convert them first (torchvision.ops."
            do += "box_convert); else order their corners. Such a box overlaps with nothing, and its area is wrong"
            yield Finding("boxes.corners", name, got, "x0, y0, x1, y1 with x0 < x1 and y0 < y1", do)
            return


def _whole(side: Tensor) -> Tensor | None:
    """Return the boxes (..., 4) that columns were cut from, None where they are no view of such."""
    base: Tensor | None = side
    for _ in range(DEEP):
        base = None if base is None else base._base
        if base is None:
            return None
        if base.ndim and base.shape[-1] == 4 and base.stride(-1) == 1 and base.is_floating_point():
            return base
    return None


def _columns(side: Tensor, boxes: Tensor) -> set[int]:
    """Return which columns of some boxes a view holds: one, or two beside each other."""
    first = int(side.storage_offset() - boxes.storage_offset()) % 4
    two = side.ndim > 0 and side.shape[-1] == 2 and side.stride(-1) == 1 and side.numel() > 1
    return {first, first + 1} if two else {first}


def _same(first: Tensor, second: Tensor) -> bool:
    return first is second or (
        is_readable(first) and first.shape == second.shape and first.data_ptr() == second.data_ptr()
    )
