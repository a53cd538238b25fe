"""Does a module run as a graph of torch.compile?"""

from __future__ import annotations

import sys

from torch import nn

SLOT = "_compiled_call_impl"  # of a module: what is called in place of it
HEARD = "heard"  # attribute of what the flight recorder leaves there: what was there before


def is_compiled(model: nn.Module) -> bool:
    """Tell whether a model, or a part of it, runs as a graph of torch.compile."""
    return any(itself_compiled(module) for module in model.modules())


def traced() -> bool:
    """Tell whether torch.compile has made a graph of anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", {})
    return bool(counters.get("stats", {}).get("unique_graphs")) if isinstance(counters, dict) else False


def itself_compiled(module: nn.Module) -> bool:
    """Tell whether this very module was given to torch.compile, or compiled in place."""
    call = vars(module).get(SLOT)
    call = getattr(call, HEARD) if hasattr(call, HEARD) else call
    return call is not None or type(module).__name__ == "OptimizedModule" or hasattr(module, "_orig_mod")
