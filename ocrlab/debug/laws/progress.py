"""Law 1: a small step lowers the loss by what its gradient says, and a few samples can be fitted."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ocrlab.debug.instruments.step_check.findings import all_rows_equal
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, NotTestable, distance
from ocrlab.debug.laws.law import Extras, Result, holds

SHARES = (3e-2, 1e-3, 1e-4)  # of the weights' size: the steps that are tried; a rounded forward pass needs a large one
NOTHING = 0.01  # of the predicted fall: less is none
SAMPLES, STEPS = 4, 10


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
    seen = predicted > 10 * step.rounding("loss") / 30 * max(abs(first.loss), 1e-6)
    best = max(ratios, key=abs)
    small = ratios[-2]
    extras = [float(t.double().mean()) for _, t in dotted_tensors(step.batch) if t.numel() and not t.is_complex()]
    surrogate = any(abs(abs(first.loss) - abs(mean)) <= 1e-5 * max(abs(mean), 1e-9) for mean in extras)
    if seen and abs(best) < NOTHING and not surrogate:
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
        yield Result(
            "broken",
            f"the gradient of the loss says that a small step lowers it by {predicted:.3g}, and the loss stays constant"
            f" at {first.loss:.6g} (change {best * predicted:.1g}): it does not fall whatever is learned",
            "the loss",
            "a loss that falls as its gradient says",
            causes,
            "Compute the reference with a frozen copy of the model made before the training, copy.deepcopy(model)"
            if not stale
            else "Use the parameters themselves in the forward pass",
            rule="progress.constant",
        )
        return
    if seen and all(-1.1 < ratio < -0.9 for ratio in ratios[1:]):
        yield Result(
            "broken",
            f"a small step against the gradient raises the loss by {-small * predicted:.3g}, where it should fall by as"
            " much",
            "the gradient",
            "a fall",
            ("a sign is wrong in a custom backward", "a gradient reversal layer over the whole loss"),
            "Compare the custom backward with torch.autograd.gradcheck",
            rule="progress.sign",
        )
        return
    yield _blind(step) or holds(f"a small step lowers the loss by {small:.2f} of what its gradient predicts")


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
    if not outputs or not inputs or not all_rows_equal(outputs) or all_rows_equal([t.float() for t in inputs]):
        return None
    return Result(
        "broken",
        f"the {step.rows} samples differ and all outputs are the same after {STEPS} steps on them",
        "the model's output",
        "outputs that depend on the samples",
        (
            "a softmax or norm over a dimension of size 1",
            "units are dead or saturated",
            "a mask of attention the wrong way round, or a place that is padding is read",
        ),
        "Look for the first layer whose output is the same for all samples",
        rule="answers.equal",
    )
