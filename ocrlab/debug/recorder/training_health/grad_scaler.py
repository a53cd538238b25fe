"""Are gradients brought back to their size before they are used? Of losses that a GradScaler made larger for backward.

In inspected steps a hook on the loss tells by how much it was made larger, one on a weight with which
gradient it came, and the optimizer's step with which it is used. On a device, where asking a scaler for its scale
would wait, the scalers are looked for after the first large loss has been read, and their scales travel along: the
first steps that are looked at do not count there.
"""

from __future__ import annotations

import math
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.laws.live_objects import instances
from ocrlab.debug.recorder.figure_transfer import FigureTransfer, arrives_later
from ocrlab.debug.recorder.training_health.tensor_figures import any_nonzero, can_read_gradient, norm

LARGE = 256.0  # times: a sum in place of a mean, or the weight of a loss, is often less
ENOUGH = 4  # looks
TIMES = 64.0  # batches whose gradients are added
SAME = 1e-3  # relative difference of norms that were clipped to the same limit
FAINT = 1e-2  # norm of all gradients that is too small for a limit


@dataclass
class GradScalerCheck:
    """One weight's gradient on its way from the loss to the step."""

    parameter: Tensor | None
    transfer: FigureTransfer = field(default_factory=FigureTransfer)
    scale: Tensor | None = None  # of the loss, in the step at hand
    came: Tensor | None = None  # norm of the gradient, as it came
    old: list[Tensor] = field(default_factory=list)  # whether a gradient was there before: other batches are added
    size: float | None = None  # by how much a scaler made the loss larger, in the newest step that was read
    direct: int = 0  # steps with a gradient that is still as large as backward made it
    looks: int = 0  # steps of a loss that was made larger
    limits: list[float] = field(default_factory=list)  # norm of all gradients in the scale of the loss, by step
    norms: list[float] = field(default_factory=list)
    largest: float = 0.0
    scalers: list[Any] | None = None  # those that there are, weakly; None: not looked for
    handles: list[Any] = field(default_factory=list)

    def loss(self, loss: Any) -> None:
        """Hook the backward of a loss, in an inspected step."""
        self.close()
        if self.parameter is None or not isinstance(loss, Tensor) or loss.numel() != 1 or loss.grad_fn is None:
            return
        self.handles = [loss.register_hook(self._scaled), self.parameter.register_hook(self._arrived)]

    def _scaled(self, gradient: Tensor) -> None:
        self.scale = gradient.detach()

    def _arrived(self, gradient: Tensor) -> None:
        before = self.parameter.grad if self.parameter is not None else None
        if not can_read_gradient(gradient):
            return
        self.old = any_nonzero([before]) if before is not None and can_read_gradient(before) else []
        self.came = norm(gradient)

    def stepping(self) -> None:
        """Note that an optimizer is about to step."""
        self.size = None
        p, scale, came = self.parameter, self.scale, self.came
        if p is None or scale is None or came is None or p.grad is None or not can_read_gradient(p.grad):
            return
        later = arrives_later(scale) or arrives_later(came)
        if not later and not _is_large(abs(float(scale))):
            return
        is_by_scaler = _by_scaler()
        scales = [t for scaler in self._alive() if isinstance(t := getattr(scaler, "_scale", None), Tensor)]
        figures = [scale, came, norm(p.grad), *self.old]
        ends = 3, len(figures)

        def use(tensors: list[Tensor]) -> None:
            size = abs(float(tensors[0]))
            self.size = None
            if not _is_large(size):
                return
            if later and self.scalers is None:
                self.scalers = [weakref.ref(scaler) for scaler in instances(torch.amp.GradScaler)]
            elif any(float(t) == size for t in tensors[ends[1] :]) if later else _is_scale(size):
                before = any(map(bool, tensors[ends[0] : ends[1]]))
                self._count(size, float(tensors[1]), float(tensors[2]), before, is_by_scaler)

        self.transfer.send([*figures, *scales], use)

    def _alive(self) -> Sequence[Any]:
        there = (reference() for reference in self.scalers or ())
        return [scaler for scaler in there if scaler is not None and scaler.is_enabled()]

    def _count(self, size: float, came: float, used: float, before: bool, is_by_scaler: bool) -> None:
        self.size = size
        self.looks += 1
        self.largest = max(self.largest, size)
        times = TIMES if before else 1.0  # growth allowed until the step
        self.direct += not is_by_scaler and used * size > 2 * times * came

    def stepped(self, norms: dict[str, float]) -> None:
        """Note the norms of the gradients of a step, when they are known."""
        if self.size is not None and norms:
            whole = math.hypot(*norms.values())
            self.norms.append(whole)
            self.limits.append(whole * self.size)
        self.size = None

    def sentence(self) -> str:
        """Return the finding for gradients that were used in the scale of the loss, or clipped in it; else ''."""
        if self.direct >= ENOUGH and 2 * self.direct > self.looks:
            return (
                f"a GradScaler made the loss {self.largest:g} times larger, and in {self.direct} of {self.looks}"
                " inspected steps the optimizer stepped with gradients of that size. Call scaler.step(optimizer) and"
                " scaler.update() in place of optimizer.step()"
            )
        limits = self.limits
        if len(limits) >= ENOUGH and 0 < max(self.norms) < FAINT and max(limits) - min(limits) < SAME * max(limits):
            return (
                f"gradients are clipped while the loss is scaled: in all {len(limits)} inspected steps their norm was"
                f" {limits[-1]:.3g} in the scale of the loss ({self.largest:g}), which leaves {self.norms[-1]:.2g} for"
                " the step. Call scaler.unscale_(optimizer) before clip_grad_norm_"
            )
        return ""

    def close(self) -> None:
        """Remove every hook, and forget the step."""
        while self.handles:
            self.handles.pop().remove()
        self.scale = self.came = None
        self.old = []


def _by_scaler() -> bool:
    """Return whether a GradScaler makes the step at hand."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    return any(frame.f_code is torch.amp.GradScaler.step.__code__ for frame in frames)


def _is_large(size: float) -> bool:
    """Return whether a loss was made larger as a GradScaler does it: by a power of two."""
    return math.isfinite(size) and size >= LARGE and not math.log2(size) % 1


def _is_scale(size: float) -> bool:
    """Return whether there is a GradScaler with this scale; asked only where a loss was made larger."""
    return any(scaler.is_enabled() and scaler.get_scale() == size for scaler in instances(torch.amp.GradScaler))
