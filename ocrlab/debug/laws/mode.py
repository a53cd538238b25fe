"""Law 6: modules are in the mode of the step, and eval mode repeats itself to the last bit."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, distance
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.observation import Observation
from ocrlab.debug.laws.result import Result, broken, hint, holds
from ocrlab.debug.laws.tensor_checks import is_readable

DROPOUTS = frozenset(f for name, f in vars(functional).items() if name.endswith(("dropout", "dropout1d", "dropout2d")))

TORCH = os.path.dirname(torch.__file__)
LATEST = 0.8  # weight of the new batch in running statistics, from which on they hold hardly any other
DROPPED = 0.9  # dropout from here on leaves less than a tenth


def observe(step: Observation) -> Iterator[Result]:
    """Yield modules that are in the wrong mode for a step."""
    yield from wrong_modes(step.model)


def wrong_modes(model: nn.Module) -> Iterator[Result]:
    """Yield that a model is in eval mode in a training step, or drops nearly everything."""
    own = [module for module in model.modules() if any(p.requires_grad for p in module.parameters(recurse=False))]
    if not model.training and not (own and all(module.training for module in own)):  # a head on a frozen trunk
        yield broken("mode.eval", "the model", "eval mode", "train mode", "Call model.train() before the step")
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p >= DROPPED:
            do = "It is the share that is dropped, not the share that is kept"
            yield hint("mode.dropout", name, f"drops {module.p:.0%}", f"less than {DROPPED:.0%}", do)
        counted = isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
        share = float(module.momentum or 0) if counted else 0.0  # type: ignore[arg-type]
        if share >= LATEST:
            got = f"momentum={share:g}: the running statistics are those of the last batch or two, so that eval mode"
            got += " depends on which batches came last"
            do = f"Write momentum={1 - share or 0.1:.3g}: it is the weight of the new batch, in Keras that of the old"
            yield hint("mode.momentum", f"{name} ({type(module).__name__})", got, "statistics of many batches", do)
            return


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Compare two passes in eval mode."""
    calls, again = (_calls(step, restore=restore) for restore in (True, False))
    results = [*_dropped(step), *_lost(calls, again)]
    yield from results
    if not results:
        yield holds("eval mode gives the same outputs twice")


Call = tuple[str, nn.Module, list[Tensor], list[Tensor]]


def _calls(step: Experiment, *, restore: bool) -> list[Call]:
    """Return the calls of all parts in one pass in eval mode, in order: name, part, what came in, what came out.

    Without `restore` the random generators of the model itself go on where the first pass has left them.
    """
    calls: list[Call] = []
    names = {module: name for name, module in step.model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        tensors = [[t.detach().clone() for _, t in dotted_tensors(v) if is_readable(t)] for v in (args, output)]
        calls.append((names[module], module, *tensors))

    step.restore(own_generators=restore)
    leaves = {module: note for module in names if not list(module.children())}
    step.run(training=False, restore=False, watch=leaves)
    return calls


def _lost(first: list[Call], second: list[Call]) -> Iterator[Result]:
    """Report the first module whose values are 0 in one pass only; added noise may be intended and is not reported."""
    for (name, module, came, gave), (other, _, came_again, gave_again) in zip(first, second, strict=False):
        if name != other:
            return
        before, after = (came, came_again) if distance(came, came_again) else (gave, gave_again)
        if not distance(before, after):
            continue
        zeros = changed = 0
        for old, new in zip(before, after, strict=False):
            if old.shape == new.shape:
                zeros += int(((old == 0) != (new == 0)).sum())
                changed += int((old != new).sum())
        if not zeros or zeros < 0.9 * changed:
            return
        size = sum(t.numel() for t in before)
        where = f"{name or 'the model'} ({type(module).__name__})"
        yield broken(
            "mode.lost",
            where if before is gave else f"the input of {where}",
            f"two passes of the same batch in eval mode differ: {zeros} of {size} activations are 0 in one and not in"
            f" the other{', where what comes in is the same' if before is gave else ''}",
            "the same activations twice",
            "Compare the tensor before and after it; copy through the CPU, x.cpu().to(device), or try"
            " NCCL_P2P_DISABLE=1",
            "values are lost on the way between two devices (peer-to-peer copies; zeros arrive in their place)",
            "a mask that is drawn in eval mode too",
            "a kernel that reads memory before it was written",
        )
        return


class _Drops(TorchFunctionMode):
    """While it is entered, the dropouts that drop are noted by their name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.inside = False  # of the model: a loss may drop on purpose

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        share = 0.0
        if func in DROPOUTS and kwargs.get("training", args[2] if len(args) > 2 else True):
            share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        elif func is functional.scaled_dot_product_attention:
            share = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        if share and self.inside and not _on_purpose():
            self.names.append(func.__name__)
        return func(*args, **kwargs)


def _on_purpose() -> bool:
    """Return whether the line that calls a dropout says `training=True` (Monte Carlo dropout)."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    return "training=True" in linecache.getline(frame.f_code.co_filename, frame.f_lineno).replace(" ", "")


def _dropped(step: Experiment) -> Iterator[Result]:
    """Report a dropout that drops in eval mode."""
    drops = _Drops()
    step.restore()
    handles = [
        step.model.register_forward_pre_hook(lambda *_: setattr(drops, "inside", True)),
        step.model.register_forward_hook(lambda *_: setattr(drops, "inside", False)),
    ]
    try:
        with drops:
            step.run(training=False, restore=False)
    finally:
        for handle in handles:
            handle.remove()
    if drops.names:
        got = f"{drops.names[0]} drops values in eval mode, {len(drops.names)} times in one pass"
        do = "Pass training=self.training (dropout_p=p if self.training else 0.0), or use an nn.Dropout of the model"
        causes = ("functional.dropout without training=self.training", "a dropout_p of attention that is always on")
        yield broken("eval.repeats", "the forward pass", got, "the same outputs twice", do, *causes)
