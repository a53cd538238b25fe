"""Law 9: saved and loaded, the next step is the same; model, optimizer and scheduler count the same updates."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ocrlab.debug.laws.experiment import Experiment, NotTestable, distance
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.live_objects import schedulers_of
from ocrlab.debug.laws.result import Result, broken, holds

LARGE = 50_000_000  # parameters, from which on no copy is made


def lost_state(optimizer: Optimizer, schedulers: list[Any], *, beginning: bool = False) -> Result | None:
    """Return that an optimizer has no state in the middle of a schedule, or its scheduler no count, else None.

    At the `beginning` of a training an optimizer that has counted updates was restored, and so should be its scheduler;
    later its scheduler may count epochs, and another rate than it has set tells.
    """
    counted = max((int(getattr(s, "last_epoch", 0) or 0) for s in schedulers), default=0)
    counts = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    pairs = [(s.get_last_lr()[0], float(optimizer.param_groups[0]["lr"])) for s in schedulers]
    other = next((pair for pair in pairs if not math.isclose(*pair, rel_tol=1e-6)), None)
    # SGD counts no updates; once it has stepped here, a warm-up by hand may have set the rate
    restored = any(optimizer.state.values()) and other is not None and not getattr(optimizer, "_opt_called", False)
    if schedulers and not counted and ((max(counts, default=0) >= 2 and (beginning or other)) or restored):
        progress = f"has made {max(counts)} updates" if counts else "has the state of earlier updates"
        got = f"the optimizer {progress}, and the scheduler none: the schedule of the learning rate begins again"
        got += f" (its rate is {other[0]:.3g}, and that of the optimizer {other[1]:.3g})" if other else ""
        return broken(
            "resume.scheduler",
            type(schedulers[0]).__name__,
            got,
            "a scheduler that was restored with the optimizer",
            "Save and load scheduler.state_dict() beside the model and the optimizer",
            "the checkpoint holds no scheduler.state_dict()",
            "the scheduler is made after the checkpoint was loaded, and never loaded itself",
        )
    if counted < 2 or optimizer.state or not _keeps_state(optimizer):
        return None
    return broken(
        "resume.optimizer",
        "the optimizer",
        f"the scheduler has counted {counted} updates, and {type(optimizer).__name__} has no state at all (no moments,"
        " step 0): it starts afresh in the middle of the schedule",
        "an optimizer state that was restored with the model and the scheduler",
        "Save and load optimizer.state_dict() beside the model and the scheduler",
        "the checkpoint holds no optimizer.state_dict()",
        "load_state_dict of the optimizer is not called at resume",
    )


def _keeps_state(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has a state after a step, by a step of a copy on one number."""
    group = {k: v for k, v in optimizer.param_groups[0].items() if k not in ("params", "initial_lr")}
    p = torch.zeros(1, requires_grad=True)
    try:
        small = type(optimizer)([{"params": [p], **group}])  # type: ignore[call-arg]
        p.grad = torch.ones(1)
        small.step()
    except Exception:  # its arguments are others: nothing is known
        return False
    return bool(small.state)


def test(step: Experiment, extras: Extras) -> Iterator[Result]:
    """Count updates, then load the saved state into a copy that was made random, and compare the next step."""
    counted = schedulers_of(step.optimizers, extras.scheduler)
    for optimizer in step.optimizers:
        lost = lost_state(optimizer, [s for s in counted if s.optimizer is optimizer])
        if lost:
            yield lost
            return
    if sum(p.numel() for p in step.named.values()) > LARGE:
        raise NotTestable("the model is too large for a copy")
    step.restore()
    try:
        model, optimizers = _fresh(step, extras)
    except Exception as error:
        raise NotTestable(f"no copy could be made ({type(error).__name__}); give `factory`") from error
    step.restore()
    plain = {module: dict(vars(module)) for module in model.modules()}  # a state that forward keeps in an attribute
    before, after = step.run(training=False), step.run(training=False, model=model)
    for module, attributes in plain.items():
        vars(module).clear()
        vars(module).update(attributes)
    apart = distance(before.outputs, after.outputs)
    reached = len(before.outputs) != len(after.outputs) or (
        apart <= step.rounding() and distance(before.loss, after.loss) > step.rounding("loss")
    )
    if reached or not before.outputs:
        raise NotTestable("the loss calls another model than the one that it gets")
    if apart > step.rounding():
        yield broken(
            "resume.model",
            "the model",
            f"saved, and loaded into a {'new' if extras.factory else 'randomised'} model, the same batch gives outputs"
            f" that differ by {apart:.2g} of their size",
            "the same outputs",
            "Register it with register_buffer or nn.Parameter",
            "state_dict() lacks a tensor that forward reads (a plain attribute, a closure)",
            "weights that were tied",
        )
        return
    if optimizers:
        moved = _moved(step, model, optimizers)
        if moved > step.rounding("gradients"):
            got = f"the step after loading differs from the one without by {moved:.2g} of its size"
            do = "Store what the optimizer reads in its state or in param_groups"
            causes = ("optimizer.state_dict() lacks a part of its state", "the order of the parameters changed")
            yield broken("resume.optimizer", "the optimizer", got, "the same step", do, *causes)
            return
    yield holds(
        "saved and loaded into " + ("a new model" if extras.factory else "a randomised copy") + ", the step is the same"
    )


def _fresh(step: Experiment, extras: Extras) -> tuple[nn.Module, list[Optimizer]]:
    """Load the saved state into a model from the factory, else into a copy with random weights; likewise optimizers."""
    saved = copy.deepcopy([step.model.state_dict(), *(o.state_dict() for o in step.optimizers)])
    if extras.factory is not None:
        result = extras.factory()
        model, *others = result if isinstance(result, tuple | list) else (result,)
        optimizers = [o for o in others if isinstance(o, Optimizer)]
    else:
        if any(getattr(p, "grad_fn", None) is not None for p in (*step.named.values(), *step.model.buffers())):
            raise NotTestable("a tensor of the model belongs to a graph")
        model, optimizers = copy.deepcopy((step.model, step.optimizers))
        with torch.no_grad():
            for tensor in (*model.parameters(), *(b for n, b in model.named_buffers() if n in saved[0])):
                if tensor.is_floating_point():
                    tensor.uniform_(-1, 1)
        for optimizer in optimizers:
            optimizer.state.clear()
    model.load_state_dict(saved[0])
    for optimizer, state in zip(optimizers, saved[1:], strict=False):
        optimizer.load_state_dict(state)
    return model, optimizers


def _moved(step: Experiment, model: nn.Module, optimizers: list[Optimizer]) -> float:
    """Return by how much the next step of a loaded model differs from that of the original one."""
    moves = []
    for net, own in ((step.model, step.optimizers), (model, optimizers)):
        run = step.run(gradients=True, training=False, model=net)
        old = {n: p.detach().clone() for n, p in net.named_parameters() if n in run.gradients}
        for optimizer in own:
            optimizer.step()
        moves.append({n: p.detach() - old[n] for n, p in net.named_parameters() if n in old})
        step.restore()
    same = moves[0].keys() == moves[1].keys()  # else the loss reaches parts of the original
    return distance(*moves) if same and any(bool(t.any()) for t in moves[0].values()) else 0.0
