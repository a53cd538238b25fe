"""Schedulers and loaders of this process that belong to a step and were not handed over."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ocrlab.debug.laws.state_guard import optimized_parameters

CHECKED: weakref.WeakKeyDictionary[nn.Module, float] = weakref.WeakKeyDictionary()  # mean losses that check_step saw


def instances(kind: type) -> list[Any]:
    """Return the living instances of a class of Python and of its subclasses: each refers to its class."""
    kinds = [kind]
    for each in kinds:
        kinds += type.__subclasses__(each)
    return [o for o in gc.get_referrers(*kinds) if type(o) in kinds]  # a fraction of the time of all objects


def schedulers_of(optimizers: Sequence[Optimizer], extras: Any = None) -> list[Any]:
    """Return the schedulers that move the rate of some optimizers: `extras`, else those in this process."""
    if extras is not None:
        return [extras]
    if not any("initial_lr" in group for o in optimizers for group in o.param_groups):
        return []  # every scheduler of torch sets it
    own = {id(o) for o in optimizers}
    return [o for o in instances(LRScheduler) if id(vars(o).get("optimizer")) in own]


def trained_elsewhere(optimizers: Sequence[Optimizer]) -> set[int]:
    """Return the ids of the parameters that other optimizers of this process move."""
    own = {id(o) for o in optimizers}
    return optimized_parameters([o for o in instances(Optimizer) if id(o) not in own])


def loader_of(rows: int) -> Any:
    """Return the one DataLoader of this process that may have made a batch of so many samples; or None."""
    loaders = [o for o in instances(DataLoader) if type(o) is DataLoader and o.batch_size is not None]
    chosen = [loader for loader in loaders if loader.batch_size == rows] or loaders
    return chosen[0] if len(chosen) == 1 else None


def other_loader(loader: Any) -> Any:
    """Return the one other DataLoader of this process, with a data set of its own, that keeps its order; or None."""
    loaders = [o for o in instances(DataLoader) if type(o) is DataLoader and o is not loader]
    others = [o for o in loaders if o.dataset is not getattr(loader, "dataset", None)]
    return others[0] if loader is not None and len(others) == 1 else None
