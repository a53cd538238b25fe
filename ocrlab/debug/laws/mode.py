"""Law 6: eval mode repeats itself to the last bit, and an evaluation before any training step means something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from ocrlab.debug.instruments.step_check.findings import is_readable
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, distance
from ocrlab.debug.laws.law import Extras, Result, holds

DROPOUTS = frozenset(f for name, f in vars(functional).items() if name.endswith(("dropout", "dropout1d", "dropout2d")))

FORWARDS = 4  # passes in train mode, after which the evaluation should be what it was
APART = 0.5  # largest relative difference


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Compare two passes in eval mode, then an evaluation before and after some passes in train mode."""
    calls, again = (_calls(step, restore=restore) for restore in (True, False))
    broken = [*_dropped(step), *_lost(calls, again)]
    broken += list(_before_training(step))
    yield from broken
    if not broken:
        yield holds("eval mode gives the same twice, and does not wait for a pass in train mode")


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
    """Report the first place where values are 0 in one pass and not in the other; noise that is added may be meant."""
    for (name, module, came, gave), (other, _, came_again, gave_again) in zip(first, second, strict=False):
        if name != other:
            return
        before, after = (came, came_again) if distance(came, came_again) else (gave, gave_again)
        if not distance(before, after):
            continue
        zeros = changed = 0
        for one, two in zip(before, after, strict=False):
            if one.shape == two.shape:
                zeros += int(((one == 0) != (two == 0)).sum())
                changed += int((one != two).sum())
        if not zeros or zeros < 0.9 * changed:
            return
        size = sum(t.numel() for t in before)
        where = f"{name or 'the model'} ({type(module).__name__})"
        yield Result(
            "broken",
            f"two passes of the same batch in eval mode differ: {zeros} of {size} activations are 0 in one and not in"
            f" the other{', where what comes in is the same' if before is gave else ''}",
            where if before is gave else f"the input of {where}",
            "the same activations twice",
            (
                "values are lost on the way between two devices (peer-to-peer copies; zeros arrive in their place)",
                "a mask that is drawn in eval mode too",
                "a kernel that reads memory before it was written",
            ),
            "Compare the tensor before and after it; copy through the CPU, x.cpu().to(device), or try"
            " NCCL_P2P_DISABLE=1",
            rule="mode.lost",
        )
        return


class _Drops(TorchFunctionMode):
    """While it is entered, the dropouts that drop inside of a model are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.inside = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        share = 0.0
        if func in DROPOUTS and kwargs.get("training", args[2] if len(args) > 2 else True):
            share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        elif func is functional.scaled_dot_product_attention:
            share = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        if share and self.inside:
            self.names.append(func.__name__)
        return func(*args, **kwargs)


def _dropped(step: Experiment) -> Iterator[Result]:
    """Report a dropout that drops in eval mode."""
    drops = _Drops()
    step.restore()

    def count(change: int) -> None:
        drops.inside += change

    handles = [
        step.model.register_forward_pre_hook(lambda *_: count(1)),
        step.model.register_forward_hook(lambda *_: count(-1)),
    ]
    try:
        with drops:
            step.run(training=False, restore=False)
    finally:
        for handle in handles:
            handle.remove()
    if drops.names:
        yield Result(
            "broken",
            f"{drops.names[0]} drops values in eval mode, {len(drops.names)} times in one pass",
            "the forward pass",
            "the same outputs twice",
            ("functional.dropout without training=self.training", "a dropout_p of attention that is always on"),
            "Pass training=self.training (dropout_p=p if self.training else 0.0), or use an nn.Dropout of the model",
            rule="eval.repeats",
        )


def _before_training(step: Experiment) -> Iterator[Result]:
    """Report an evaluation that some passes in train mode make another one, without a step; not of BatchNorm."""
    own = {id(b) for m in step.model.modules() if isinstance(m, _NormBase) for b in m.buffers(recurse=False)}
    before = step.run(training=False)
    step.restore()
    for _ in range(FORWARDS):
        step.run(training=True, restore=False)
    moved = [
        name
        for name, b in step.model.named_buffers()
        if is_readable(b) and id(b) not in own and distance([b], [step.state.before(name)]) > 1e-3
    ]
    for name, b in step.model.named_buffers():
        if id(b) in own:
            b.copy_(step.state.before(name))
    step.state.restore_random()
    after = step.run(training=False, restore=False)
    step.restore()
    apart = distance(before.loss, after.loss)
    if not moved or apart < APART:
        return
    spectral = any(name.endswith(("weight_u", "weight_v", "_u", "_v")) for name in moved)
    untrained = not step.model.training
    yield Result(
        "broken" if untrained else "held",
        f"the loss in eval mode is {before.loss:.4g}, and {after.loss:.4g} after {FORWARDS} forward passes in train"
        " mode without any step"
        + (": the power iteration of spectral_norm has not run before training, so sigma is random" * spectral),
        ", ".join(moved[:4]),
        "an evaluation that means the same before the first pass in train mode",
        (
            "spectral_norm estimates sigma only in train mode, and the model is evaluated before training"
            if spectral
            else "buffers that only train mode fills are read in eval mode before that",
        ),
        "Run some forward passes in train mode before the first evaluation, or use"
        " torch.nn.utils.parametrizations.spectral_norm, which iterates when it is made"
        if spectral
        else "Fill these buffers before the first evaluation",
        rule="mode.unready",
    )
