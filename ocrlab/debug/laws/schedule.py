"""Law 11: the learning rate has the shape that was asked for."""

from __future__ import annotations

import copy
import math
import types
import warnings
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ocrlab.debug.laws.data import length_of
from ocrlab.debug.laws.experiment import Experiment, NotTestable, clock
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.live_objects import schedulers_of
from ocrlab.debug.laws.result import Result, broken, holds

MOST, MOST_AHEAD = 2000, 50_000  # updates that are simulated before a training, and after it


def test(step: Experiment, extras: Extras) -> Iterator[Result]:
    """Walk through an epoch of the schedule, and put it back."""
    if not step.optimizers:
        raise NotTestable("no optimizer was given")
    schedulers = schedulers_of(step.optimizers, extras.scheduler)
    rates = [group.get("lr", 1.0) for o in step.optimizers for group in o.param_groups]
    if not schedulers:
        if not any(rates):
            yield broken(
                "schedule.zero",
                "the optimizer",
                f"the learning rate is 0 in all {len(rates)} groups, and no scheduler raises it",
                "a rate above 0",
                "Set a rate",
                "a rate that was read as a whole number",
                "a schedule that has ended",
            )
            return
        raise NotTestable("no scheduler was given")
    size = length_of(extras.loader)
    curve = _curve(schedulers[0], min(size or 100, MOST))
    if not all(map(math.isfinite, curve)) or min(curve) < 0 or not any(curve):
        got = f"the learning rate is {curve[0]:.3g} now, {curve[-1]:.3g} after {len(curve) - 1} steps of the scheduler"
        do = "Print scheduler.get_last_lr() over the planned run"
        causes = ("a factor that is divided as whole numbers", "more steps than the schedule has")
        yield broken("schedule.zero", type(schedulers[0]).__name__, got, "a rate above 0", do, *causes)
        return
    unit = f"an epoch ({size} batches)" if size else f"{len(curve) - 1} updates"
    yield holds(f"stepped once a batch, the rate goes from {curve[0]:.3g} to {curve[-1]:.3g} in {unit}")


def _curve(scheduler: Any, count: int) -> list[float]:
    """Return the learning rate before and after each of `count` steps of a scheduler."""
    try:
        return walk(scheduler, count)
    except Exception as error:
        raise NotTestable(f"the scheduler cannot be stepped alone ({type(error).__name__})") from error


def walk(scheduler: Any, count: int, seconds: float = 2.0) -> list[float]:
    """Return the rate now and after each of `count` steps of a copy of a scheduler of torch; the original is not moved.

    Raises what a step raises, and TypeError or TimeoutError for one that cannot be copied or takes too long.
    """
    optimizer, owners = scheduler.optimizer, [scheduler, *getattr(scheduler, "_schedulers", ())]
    calls = [call for owner in owners for call in getattr(owner, "lr_lambdas", ())]
    own = any(type(owner).__module__ != "torch.optim.lr_scheduler" for owner in owners)
    if own or not all(isinstance(getattr(call, "func", call), types.FunctionType) for call in calls):
        raise TypeError("a scheduler of the program's own may log, or hold other objects")
    groups = [{**{k: v for k, v in group.items() if k != "params"}, "params": []} for group in optimizer.param_groups]
    if any(isinstance(value, Tensor) for group in groups for value in group.values()):
        raise TypeError("the rate is a tensor")
    stand_in = types.SimpleNamespace(param_groups=groups, defaults=optimizer.defaults, step=optimizer.step)
    copied = object.__new__(type(scheduler))
    vars(copied).update(copy.deepcopy(vars(scheduler), {id(optimizer): stand_in}))
    rates, ends = [float(groups[0]["lr"])], clock() + seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no optimizer stepped
        for _ in range(count):
            copied.step()
            rates.append(float(groups[0]["lr"]))
            if clock() > ends:
                raise TimeoutError
    return rates


def ends_with_the_micro_batches(scheduler: Any, steps: int, batches: int) -> str:
    """Report a schedule that is stepped once an update and would end at the number of micro-batches; '' if it is not.

    Its rate is then still high when the training of `steps` updates and `batches` micro-batches ends.
    """
    count = int(getattr(scheduler, "last_epoch", 0) or 0)
    if not 0.9 * steps <= count <= 1.1 * steps + 1 or batches < 1.8 * steps or batches > MOST_AHEAD:
        return ""
    ahead = math.ceil(1.1 * batches) - count
    try:
        rates = walk(scheduler, ahead)
    except Exception:  # it ends there, or needs a metric
        return ""
    peak = max(rates)
    left = next((i for i, rate in enumerate(rates) if rate <= 1e-3 * peak), None)
    if not peak or left is None or count + left < 0.9 * batches or rates[0] < 0.3 * peak:
        return ""
    return (
        f"{type(scheduler).__name__} was planned for about {count + left} steps, as many as there were micro-batches"
        f" ({batches}), and was stepped once an update: the training ended after {steps} updates,"
        f" {steps / (count + left):.0%} of the schedule, at a rate of {rates[0]:.3g}, before most of the decay."
        " Divide the total number of steps (and the warm-up) by the accumulation steps; if you stopped the training"
        " early, nothing is wrong"
    )
