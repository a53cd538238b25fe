"""Law 1: a small step lowers the loss by what its gradient says, and a few samples can be fitted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, NotTestable, distance, rebuilt
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.observation import Observation
from ocrlab.debug.laws.randomness import random_targets, weights_that_run_away
from ocrlab.debug.laws.result import Result, broken, hint, holds
from ocrlab.debug.laws.tensor_checks import SAME, rows_equal

SHARES = (3e-2, 1e-3, 1e-4)  # of the weights' size: the steps that are tried; a rounded forward pass needs a large one
NOTHING = 0.01  # of the predicted fall: less is none
SAMPLES, STEPS = 4, 10
REWARDS = ("reward", "return", "advantage", "adv")
WORSE = (3.0, 1.0)  # times, and by how much, a loss may grow by its own step


def observe(step: Observation) -> Iterator[Result]:
    """Yield that the loss of the very batch of a step is much larger after it, or no number."""
    before, after, (times, more) = step.loss, step.after, WORSE
    if before is None or after is None or before != before:
        return
    if after != after or (after > before + more and after > times * abs(before)):
        do = "Take a smaller learning rate, a tenth at first"
        got = f"the step made the loss of its own batch larger: {before:.4g}, then {after:.4g}"
        yield hint("step.worse", "the optimizer's step", got, "a smaller loss", do)


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Compare the fall of the loss with the one that its gradient predicts, then fit a few samples."""
    first = step.run(gradients=True)
    square = sum(float(g.float().square().sum()) for g in first.gradients.values())
    if not square or square != square:
        raise NotTestable("the gradient is zero or not finite")
    size = sum(float(p.detach().float().square().sum()) for n, p in step.named.items() if n in first.gradients) ** 0.5
    ratios, moved, predicted = [], 0.0, 0.0
    for share in SHARES:
        length = share * (size or 1.0) / square**0.5
        predicted = length * square
        with step.moved(lambda n, p, e=length: p - e * first.gradients[n] if n in first.gradients else p):  # type: ignore[misc]
            after = step.run(restore=False)
        ratios.append((first.loss - after.loss) / predicted)
        moved = max(moved, distance(first.outputs, after.outputs) if first.outputs else 1.0)
    is_measurable = predicted > 10 * step.rounding("loss") / 30 * max(abs(first.loss), 1e-6)
    best = max(ratios, key=abs)
    small = ratios[-2]
    extras = [float(t.double().mean()) for _, t in dotted_tensors(step.batch) if t.numel() and not t.is_complex()]
    surrogate = any(abs(abs(first.loss) - abs(mean)) <= 1e-5 * max(abs(mean), 1e-9) for mean in extras)
    if is_measurable and abs(best) < NOTHING and not surrogate:
        stale = moved <= step.rounding()
        causes = (
            "the forward pass reads copies of the weights (a cache, a merged layer, another model)",
            "the loss is of another model than the one that is trained",
        )
        if not stale:
            causes = (
                "the reference or target of the loss is computed by the same model, so that it follows every step (no"
                " separate reference model, the policy itself is its own reference)",
                "a term cancels the prediction (x - x.detach())",
            )
        yield broken(
            "progress.constant",
            "the loss",
            f"the gradient of the loss says that a small step lowers it by {predicted:.3g}, and the loss stays constant"
            f" at {first.loss:.6g} (change {best * predicted:.1g}): it does not fall whatever is learned",
            "a loss that falls as its gradient says",
            "Compute the reference with a frozen copy of the model made before the training, copy.deepcopy(model)"
            if not stale
            else "Use the parameters themselves in the forward pass",
            *causes,
        )
        return
    if is_measurable and all(-1.1 < ratio < -0.9 for ratio in ratios[1:]):
        yield broken(
            "progress.sign",
            "the gradient",
            f"a small step against the gradient raises the loss by {-small * predicted:.3g}, where it should fall by as"
            " much",
            "a fall",
            "Compare the custom backward with torch.autograd.gradcheck",
            "a sign is wrong in a custom backward",
            "a gradient reversal layer over the whole loss",
        )
        return
    strayed = next(itertools.chain(random_targets(step), weights_that_run_away(step)), None)
    yield (
        strayed
        or _rewarded(step)
        or _blind(step)
        or holds(f"a small step lowers the loss by {small:.2f} of what its gradient predicts")
    )


def _rewarded(step: Experiment) -> Result | None:
    """Raise the reward of a sample, and look whether a step then moves its output more towards the action taken."""
    first = step.run(gradients=True, training=False)
    read = [t for call in first.inputs for t in call]
    others = {
        key: t
        for key, t in dotted_tensors(step.batch)
        if not any(t.dtype == r.dtype and torch.equal(t, r) for r in read)
    }
    weights = [key for key, t in others.items() if t.shape == (step.rows,) and t.is_floating_point()]
    named = [key for key in weights if any(word in key.lower() for word in REWARDS)]
    weights = named or [key for key in weights if key.isdigit()]  # of a tuple, which has no names
    wide = [i for i, push in enumerate(first.pushes) if push is not None and push.ndim == 2 and len(push) == step.rows]
    if len(weights) != 1 or step.rows < SAMPLES or len(first.pushes) != len(first.outputs) or not wide:
        return None
    name, which = weights[0], max(wide, key=lambda i: first.outputs[i].shape[1])
    out, push, towards = first.outputs[which], first.pushes[which], None
    for t in others.values():
        if t.shape == (step.rows,) and t.dtype == torch.int64 and int(t.min()) >= 0 and int(t.max()) < out.shape[1]:
            towards = torch.zeros_like(out).scatter_(1, t[:, None], 1.0)
        elif t.shape == out.shape and t.is_floating_point():
            towards = t - out
    if towards is None or push is None:
        return None
    more, signs = others[name].std().clamp(min=1e-3), []
    for sample, times in ((0, 1), (step.rows // 2, 1), (step.rows - 1, 1), (0, 2)):
        mask = torch.arange(step.rows, device=more.device) == sample
        rewards = others[name] + times * more * mask
        batch = rebuilt(step.batch, lambda key, t, rewards=rewards: rewards if key == name else t)  # type: ignore[misc]
        other = step.run(batch, gradients=True, training=False).pushes[which]
        change = float(((other - push)[sample] * towards[sample]).sum()) if other is not None else 0.0
        signs.append(change if abs(change) > step.rounding("gradients") * float(push.norm()) else 0.0)
    linear = abs(signs[3] - 2 * signs[0]) < 0.05 * abs(signs[0])
    if min(signs) <= 0 or not (named or linear):
        return None
    return broken(
        "progress.reward",
        f"batch.{name}",
        f"the more `{name}` a sample has, the less a step moves the output towards what was done in it (in"
        f" {len(signs)} of {len(signs)} changes): what was rewarded becomes less likely",
        "a step towards what was rewarded",
        "Minimise -(log_prob * advantage).mean()",
        "the minus sign of the policy gradient is missing: log_prob * reward is minimised",
        "the difference of the advantage is the wrong way round (value - reward)",
    )


def _blind(step: Experiment) -> Result | None:
    """Fit the batch for some steps with an optimizer of our own, and look whether outputs differ between samples."""
    if step.rows < SAMPLES or step.seconds * STEPS > 10:
        return None
    step.restore()
    optimizer = torch.optim.Adam(list(step.trainable.values()), lr=1e-2)
    for _ in range(STEPS):
        step.state.restore_random()
        step.run(gradients=True, restore=False)
        optimizer.step()
    runs = [step.run(training=training, restore=False) for training in (True, False)]  # untrained BatchNorm: only one
    step.restore()
    run = runs[-1]
    outputs = [t for each in runs for t in each.outputs if t.ndim and len(t) == step.rows]
    inputs = [t for t in run.inputs[0] if t.ndim and len(t) == step.rows] if run.inputs else []
    if not outputs or not inputs or all(map(rows_equal, inputs)):
        return None
    if not all(map(rows_equal, outputs)):
        return _mostly_equal(step, run.outputs)
    return broken(
        "answers.equal",
        "the model's output",
        f"the {step.rows} samples differ and all outputs are the same after {STEPS} steps on them",
        "outputs that depend on the samples",
        "Look for the first layer whose output is the same for all samples",
        "a softmax or norm over a dimension of size 1",
        "units are dead or saturated",
        "a mask of attention the wrong way round, or a place that is padding is read",
    )


def _mostly_equal(step: Experiment, fitted: list[Tensor]) -> Result | None:
    """Report that most samples have one output, before and after some steps: what differs between them is not read."""
    first = step.run(training=False)
    for call, before, after in zip(itertools.cycle(first.inputs), first.outputs, fitted, strict=False):
        if before.shape != after.shape or not before.ndim or len(before) != step.rows:
            continue
        read = [t for t in call if t.ndim and len(t) == step.rows]
        pairs = torch.stack([equal_rows(before), equal_rows(after), ~torch.stack([*map(equal_rows, read)]).all(0)])
        most = int(pairs.all(0).sum(1).max()) + 1 if read else 0
        if most >= max(SAMPLES, 0.5 * step.rows) and most < step.rows:
            return broken(
                "answers.mostly_equal",
                "the model's output",
                f"{most} of {step.rows} samples differ and have the same output, also after {STEPS} steps on them",
                "outputs that depend on the samples",
                "Take the last real step of each sample (h_n, or out[range(n), lengths - 1]) in place of out[:, -1]",
                "the last position of a padded sequence is read: for all but the longest samples it is padding",
                "a mask hides all of these samples",
            )
    return None


def equal_rows(tensor: Tensor) -> Tensor:
    """Return which rows are equal to which others, (N, N)."""
    flat = tensor.detach().reshape(len(tensor), -1).float()
    return torch.cdist(flat, flat, p=torch.inf) <= SAME * flat.abs().max()
