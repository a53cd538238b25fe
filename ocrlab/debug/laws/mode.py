"""Law 6: eval mode repeats itself to the last bit, and an evaluation before any training step means something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ocrlab.debug.instruments.step_check.findings import is_readable
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, distance
from ocrlab.debug.laws.law import Given, Result, held

FORWARDS = 4  # passes in train mode, after which the evaluation should be what it was
APART = 0.5  # share by which it may differ


def test(step: Experiment, _given: Given) -> Iterator[Result]:
    """Compare two passes in eval mode, then an evaluation before and after some passes in train mode."""
    calls, again = (_calls(step, restore=restore) for restore in (True, False))
    broken = list(_lost(step, calls, again))
    broken += list(_before_training(step))
    yield from broken
    if not broken:
        yield held("eval mode gives the same twice, and does not wait for a pass in train mode")


Call = tuple[str, nn.Module, list[Tensor], list[Tensor]]


def _calls(step: Experiment, *, restore: bool) -> list[Call]:
    """Return the calls of all modules in one pass in eval mode, in order: name, what came in, what came out."""
    calls: list[Call] = []
    names = {module: name for name, module in step.model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        tensors = [[t.detach().clone() for _, t in dotted_tensors(v) if is_readable(t)] for v in (args, output)]
        calls.append((names[module], module, *tensors))

    # the same weights and global random numbers; what the modules draw by themselves goes on in a second pass
    step.restore(own_generators=restore)
    leaves = {module: note for module in names if not list(module.children())}
    step.run(training=False, restore=False, watch=leaves)
    return calls


def _lost(step: Experiment, first: list[Call], second: list[Call]) -> Iterator[Result]:
    """Tell of the first module that gives something else for the same input, and by what it differs."""
    for before, after in zip(first, second, strict=False):
        name, module, came, gave = before
        if before[0] != after[0] or not gave or not after[3] or distance(came, after[2]) > 0:
            return
        if distance(gave, after[3]) == 0 or gave[0].shape != after[3][0].shape:
            continue
        one, other = gave[0], after[3][0]
        zeros = int(((one == 0) != (other == 0)).sum())
        changed = int((one != other).sum())
        if not zeros or zeros < 0.9 * changed:
            continue  # noise that is added: a model may sample
        passed = any(t.shape == one.shape and int((t == one).sum()) > 0.5 * one.numel() for t in came)
        yield Result(
            "broken",
            f"two passes of the same batch in eval mode differ: {zeros} of {one.numel()} activations are 0 in one and"
            f" not in the other, for the same input{', which is passed on otherwise' * passed}",
            f"{name or 'the model'} ({type(module).__name__})",
            "the same activations twice",
            (
                "values are lost on the way between two devices (peer-to-peer copies; zeros arrive in their place)",
                "a mask or dropout that is drawn in eval mode too",
                "a kernel that reads memory before it was written",
            )
            if passed
            else ("a mask or dropout that is drawn in eval mode too", "values are lost between two devices"),
            "Compare the tensor before and after this module; copy through the CPU (x.cpu().to(device)), or test with"
            " NCCL_P2P_DISABLE=1",
            rule="mode.lost",
        )
        return


def _before_training(step: Experiment) -> Iterator[Result]:
    """Tell of an evaluation that some passes in train mode make another one, without a step; not of BatchNorm."""
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
