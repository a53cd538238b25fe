"""Boxes whose overlap a loss computes, and which are no corners: (x, y, width, height) is an overlap of nothing.

Told from what is done with the columns of a tensor (N, 4): the larger of the first two and the smaller of the last two
of two boxes are the corners of what they share. Where boxes end before they begin, no loss raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ocrlab.trace.contract_batch import Finding, plain

LARGER = frozenset("max maximum".split())
SMALLER = frozenset("min minimum".split())
FEW = 2  # boxes that end before they begin, from which on it is no slip of the pen
SHARE = 0.1  # of all boxes
DEEP = 8  # views of views


class Corners:
    """The boxes, not computed from weights, that a step takes the larger and the smaller columns of."""

    def __init__(self) -> None:
        self.boxes: dict[int, tuple[Tensor, set[int], set[int]]] = {}  # by id: boxes, columns of each

    def see(self, name: str, args: tuple[Any, ...]) -> None:
        """Note a call of a function with two tensors."""
        if (name not in LARGER and name not in SMALLER) or len(args) < 2:
            return
        if not all(isinstance(side, Tensor) for side in args[:2]) or not any(side.requires_grad for side in args[:2]):
            return
        for side in args[:2]:
            boxes = None if side.requires_grad else _whole(side)
            if boxes is not None:
                _, first, last = self.boxes.setdefault(id(boxes), (boxes, set(), set()))
                (first if name in LARGER else last).update(_columns(side, boxes))

    def findings(self, named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
        """Yield boxes that are taken for corners and end before they begin; `named` are the tensors of the batch."""
        for boxes, first, last in self.boxes.values():
            if not (first >= {0, 1} and last >= {2, 3}) or not plain(boxes):  # the box around both asks the reverse too
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


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (plain(one) and one.shape == other.shape and one.data_ptr() == other.data_ptr())
