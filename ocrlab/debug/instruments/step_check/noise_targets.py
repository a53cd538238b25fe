"""Noise that is to be predicted, and whether the model is given it at all: that of another draw cannot be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from ocrlab.debug.instruments.step_check.call_checks import MINUS
from ocrlab.debug.instruments.step_check.findings import Finding, error_of, is_readable
from ocrlab.debug.instruments.step_check.loss_checks import DISTANCES, arguments
from ocrlab.debug.instruments.step_check.state_guard import StepState

DRAWS = frozenset("randn randn_like rand rand_like normal normal_ uniform_".split())


class NoiseWatch(TorchFunctionMode):
    """While it is entered, draws are counted; `wanted` are those that predictions are compared with.

    `turned` is the number of a draw whose sign is turned.
    """

    def __init__(self, turned: int | None = None) -> None:
        super().__init__()
        self.turned, self.count = turned, 0
        self.draws: dict[int, tuple[Tensor, int, int]] = {}  # by id: a draw, its version and number
        self.wanted: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in DISTANCES:
            self._compared(*arguments(func, args, kwargs))
        elif name in MINUS and len(args) > 1:
            self._compared(args[0], args[1])
        value = func(*args, **kwargs)
        if name in DRAWS and isinstance(value, Tensor) and value.is_floating_point() and not value.is_inference():
            if self.count == self.turned:
                with torch._C.DisableTorchFunction():
                    value.neg_()
            self.draws[id(value)] = (value, value._version, self.count)
            self.count += 1
        return value

    def _compared(self, first: Any, second: Any) -> None:
        """Note a draw, as it was drawn, beside what a model predicts for it."""
        if isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
            for draw, rest in ((first, second), (second, first)):
                entry = self.draws.get(id(draw))
                if entry is not None and entry[0] is draw and entry[1] == draw._version and rest.requires_grad:
                    self.wanted.add(entry[2])


def check_noise_target(
    model: nn.Module, loss: Callable[[], Any], wanted: set[int], state: StepState
) -> Iterator[Finding]:
    """Yield noise that is to be predicted by a model whose input is the same without it."""
    before = _inputs(model, loss, None, state)
    for number in sorted(wanted) if before else ():
        after = _inputs(model, loss, number, state)
        if len(after) == len(before) and all(map(torch.equal, before, after)):
            got = "the noise that it is to predict is another than that which was added: its input is the same without"
            do = "Draw the noise once, and use the same tensor to make the input and as the target"
            yield Finding("target.noise", "the model's input", got, "an input made with the noise of the target", do)
            return


def _inputs(model: nn.Module, loss: Callable[[], Any], turned: int | None, state: StepState) -> list[Tensor]:
    """Return the tensors that the model's calls get while a loss is computed; [] where that raises."""
    inputs: list[Tensor] = []

    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        flat = tree_flatten((args, kwargs))[0]
        inputs.extend(t.detach().clone() for t in flat if isinstance(t, Tensor) and is_readable(t))

    state.restore_random()
    state.restore_batch()
    handle = model.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with NoiseWatch(turned):
            error = error_of(loss)
    finally:
        handle.remove()
    return inputs if error is None else []
