"""Are gradients brought back to their size before they are used? Of losses that a GradScaler made larger for backward.

In inspected steps a hook on the loss tells by how much it was made larger, one on a weight with which
gradient it came, and the optimiser's step with which it is used.
"""

from __future__ import annotations

import gc
import math
import traceback
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import stored_values

LARGE = 256.0  # times: a sum in place of a mean, or the weight of a loss, is often less
ENOUGH = 4  # looks
TIMES = 64.0  # batches whose gradients are added
SAME = 1e-3  # share by which norms may differ that were clipped to the same limit
FAINT = 1e-2  # norm of all gradients that is too small for a limit


@dataclass
class GradScalerCheck:
    """One weight's gradient on its way from the loss to the step."""

    parameter: Tensor | None
    scale: Tensor | None = None  # of the loss, in the step at hand
    came: Tensor | None = None  # norm of the gradient, as it came
    times: float = 1.0  # by which it may have grown until the step: gradients of other batches are added
    direct: int = 0  # steps with a gradient that is still as large as backward made it
    looks: int = 0  # steps of a loss that was made larger
    limits: list[float] = field(default_factory=list)  # norm of all gradients in the scale of the loss, by step
    norms: list[float] = field(default_factory=list)
    largest: float = 0.0
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
        old = self.parameter.grad if self.parameter is not None else None
        self.times = TIMES if old is not None and bool(stored_values(old).any()) else 1.0
        self.came = stored_values(gradient).float().norm()

    def stepping(self) -> None:
        """Note that an optimiser is about to step."""
        p, scale, came = self.parameter, self.scale, self.came
        if p is None or p.grad is None or scale is None or came is None:
            return
        size = abs(float(scale))
        if not math.isfinite(size) or size < LARGE or math.log2(size) % 1 or not _is_scale(size):
            self.scale = None
            return
        self.looks += 1
        self.largest = max(self.largest, size)
        used = float(stored_values(p.grad).float().norm())
        self.direct += not _by_scaler() and used * size > 2 * self.times * float(came)

    def stepped(self, norms: dict[str, float]) -> None:
        """Note the gradients of a step."""
        if self.scale is not None and norms:
            norm = math.hypot(*norms.values())
            self.norms.append(norm)
            self.limits.append(norm * abs(float(self.scale)))
        self.close()

    def sentence(self) -> str:
        """Return the finding for gradients that were used in the scale of the loss, or clipped in it; else ''."""
        if self.direct >= ENOUGH and 2 * self.direct > self.looks:
            return (
                f"a GradScaler made the loss {self.largest:g} times larger, and in {self.direct} of {self.looks} looks"
                " the optimiser stepped with gradients of that size. Call scaler.step(optimizer) and scaler.update() in"
                " place of optimizer.step()"
            )
        limits = self.limits
        if len(limits) >= ENOUGH and 0 < max(self.norms) < FAINT and max(limits) - min(limits) < SAME * max(limits):
            return (
                f"gradients are clipped while the loss is scaled: in all {len(limits)} looks their norm was"
                f" {limits[-1]:.3g} in the scale of the loss ({self.largest:g}), which leaves {self.norms[-1]:.2g} for"
                " the step. Call scaler.unscale_(optimizer) before clip_grad_norm_"
            )
        return ""

    def close(self) -> None:
        """Remove every hook, and forget the step."""
        while self.handles:
            self.handles.pop().remove()
        self.scale = self.came = None


def _by_scaler() -> bool:
    """Tell whether a GradScaler makes the step at hand."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    return any(frame.f_code is torch.amp.GradScaler.step.__code__ for frame in frames)


def _is_scale(size: float) -> bool:
    """Tell whether there is a GradScaler with this scale; asked only where a loss was made larger."""
    scalers = (item for item in gc.get_objects() if issubclass(type(item), torch.amp.GradScaler))
    return any(scaler.is_enabled() and scaler.get_scale() == size for scaler in scalers)
