"""Laws of what a step draws and of what it can lower by itself: a random target, loss weights that run away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ocrlab.debug.laws.experiment import Experiment, distance, rebuilt
from ocrlab.debug.laws.result import Result, broken

DRAWS = (torch.randn, torch.randn_like, torch.normal, torch.rand, torch.rand_like, Tensor.normal_, Tensor.uniform_)
MOST_DRAWS = 6  # of a step, outside of the model, that are tried
SMALL = 16  # values of a parameter that may weigh losses
FAR, GONE = 20.0, 0.05  # by how much such weights are moved; the share of the loss that is left if nothing limits them


class Draws(TorchFunctionMode):
    """Counts the random tensors that a step draws outside of its model; the one with number `other` is changed."""

    def __init__(self, model: nn.Module, other: int = -1) -> None:
        super().__init__()
        self.other, self.inside, self.shapes = other, 0, list[tuple[int, ...]]()
        self.handles = [model.register_forward_pre_hook(self._enter), model.register_forward_hook(self._leave)]

    def _enter(self, *_: Any) -> None:
        self.inside += 1

    def _leave(self, *_: Any) -> None:
        self.inside -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        numbers = func(*args, **(kwargs or {}))
        if func in DRAWS and not self.inside and isinstance(numbers, Tensor):
            self.shapes.append(tuple(numbers.shape))
            if len(self.shapes) - 1 == self.other:
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    numbers = (
                        numbers.flip(0) + 0.5 if func not in (Tensor.normal_, Tensor.uniform_) else numbers.add_(0.5)
                    )
        return numbers

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()


def random_targets(step: Experiment) -> Iterator[Result]:
    """Change one random tensor at a time: noise that is the target of an output must have reached the model.

    A last layer that begins at zero hides what reaches it, so that such weights are random meanwhile.
    """

    def run(other: int) -> tuple[Draws, Any]:
        draws = Draws(step.model, other)
        try:
            with step.moved(lambda _, p: p if bool(p.any()) else torch.full_like(p, 0.02)):
                step.state.restore_random()
                with draws:
                    return draws, step.run(training=False, restore=False)
        finally:
            draws.close()

    draws, first = run(-1)
    shapes = {tuple(t.shape) for t in first.outputs if t.ndim > 1 and len(t) == step.rows}
    for number, shape in enumerate(draws.shapes[:MOST_DRAWS]):
        if shape not in shapes:
            continue
        _, other = run(number)
        same = len(first.outputs) == len(other.outputs) and all(map(torch.equal, first.outputs, other.outputs))
        if same and distance(first.loss, other.loss) > step.rounding("loss"):
            yield broken(
                "target.random",
                "the loss",
                f"random numbers of the shape {shape}, as an output has it, act on the loss and on no output: the model"
                " is to predict noise that is not in its input, and the best answer is the mean of all noise",
                "a target that depends on what the model reads",
                "Draw the noise once, pass it to the function that adds it to the input, and use the same tensor as the"
                " target",
                "the noise of the input and that of the target are two independent draws (an argument noise=None that"
                " was not passed on)",
            )
            return


def weights_that_run_away(step: Experiment) -> Iterator[Result]:
    """Move small parameters that no output depends on as their gradient says, very far, on targets of other samples."""
    first = step.run(gradients=True, training=False)
    small = [n for n, g in first.gradients.items() if g.numel() <= SMALL and bool(g.any())]
    mixed = rebuilt(step.batch, lambda _, t: t.roll(1, 0) if t.ndim == 1 and len(t) == step.rows else t)
    for name in small if first.loss > 0 else ():
        towards = -FAR * first.gradients[name].sign()
        with step.moved(lambda n, p, name=name, towards=towards: p + towards if n == name else p):  # type: ignore[misc]
            moved = [step.run(batch, training=False, restore=False) for batch in (None, mixed)]
        same = all(map(torch.equal, first.outputs, moved[0].outputs))
        if same and all(0 <= run.loss < GONE * first.loss for run in moved):
            yield broken(
                "progress.loss_weights",
                name,
                f"the loss falls from {first.loss:.4g} to {moved[0].loss:.4g}, whatever the outputs are, when {name}"
                f" moves by {FAR:g} as its gradient says: the loss is weighted to nothing in place of being learned",
                "a loss that such weights cannot lower without end",
                f"Add the penalty that belongs to learned weights: `(torch.exp(-{name}) * losses + {name}).sum()`",
                "the log-variance term of an uncertainty weighting is missing (log_var without a penalty)",
                "loss weights are in the optimizer",
            )
            return
