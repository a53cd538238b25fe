"""A module's call heard without a hook.

A forward hook would make the call of its module take torch's slow way: five to ten microseconds each, with caches as
cold as within a training step. A module asks first for what `Module.compile` leaves to be called in place of itself,
and that is what we leave; torch drops it from copies and pickles of a module.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ocrlab.debug.instruments.compiled_modules import HEARD, SLOT

BENEATH, LEFT = "beneath", "left"  # attributes of what we leave: what was there before, whether it is to go
Call = Callable[..., Any]


def listen(module: nn.Module, around: Callable[[Call], Call]) -> Callable[[], None] | None:
    """Have a module called through what `around` makes of its call; returns what undoes it, None where no room is."""
    if not leaves_room(module):
        return None
    held = module.__dict__.get(SLOT)
    module.__dict__[SLOT] = ours = around(held or module._call_impl)
    setattr(ours, HEARD, getattr(held, HEARD, held))  # not to be taken for torch.compile's
    setattr(ours, BENEATH, held)

    def leave() -> None:
        setattr(ours, LEFT, True)
        first = module.__dict__.get(SLOT)
        while getattr(first, LEFT, False):  # another listener, or what somebody compiled meanwhile, stays
            first = getattr(first, BENEATH)
            del module.__dict__[SLOT]
            if first is not None:
                module.__dict__[SLOT] = first

    return leave


def harmless(look: Callable[..., None]) -> Callable[..., None]:
    """Let a look at a call of the user's model end for good, with a word on stderr, instead of raising into it.

    It is a method; what it belongs to has `close`, which takes its hooks out, and `failed`, which is set then.
    """

    @functools.wraps(look)
    def looked(self: Any, *args: Any) -> None:
        if self.failed:
            return
        try:
            look(self, *args)
        except Exception as error:
            self.failed = True
            text = f"{type(self).__name__.lower()} are no longer looked at: {type(error).__name__}: {error}"
            with contextlib.suppress(OSError, ValueError, AttributeError):
                print(f"ocrlab: flight recorder: {text.splitlines()[0][:300]}", file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):
                self.close()

    return looked


def leaves_room(module: nn.Module) -> bool:
    """Tell whether a module is called in torch's own way, and no copy of it will be that takes along what we leave.

    DataParallel's replicas do: what they call would be the first card's module. It runs in a process of its own with
    several cards.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    usual = type(module).__call__ is nn.Module.__call__ and type(module).__name__ != "OptimizedModule"
    if not usual or getattr(nn.Module, SLOT, module) is not None:
        return False
    return distributed or torch.cuda.device_count() <= 1
