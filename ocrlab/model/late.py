"""torchvision imported without torch.compile's front end: three seconds of each start on a slow core.

Of all torchvision only `ops.roi_align` wants it, for one question that it asks on a GPU. While torchvision is imported
a stand-in is there, which fetches the real module as soon as anything is asked of it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

FRONT = "torch._dynamo.utils"
ASKED = "is_compile_supported"  # by roi_align, of a device


class StandIn(ModuleType):
    """In the place of `torch._dynamo.utils` until one of its names is wanted."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ask if name == ASKED else getattr(_real(), name)


def _real() -> ModuleType:
    if isinstance(sys.modules.get(FRONT), StandIn):
        del sys.modules[FRONT]
    return importlib.import_module(FRONT)


def _ask(device: str) -> bool:
    return bool(getattr(_real(), ASKED)(device))


@contextlib.contextmanager
def later() -> Iterator[None]:
    """Put off the import of torch.compile's front end, inside the block, to when it is used."""
    if FRONT in sys.modules:
        yield
        return
    sys.modules[FRONT] = StandIn(FRONT)
    try:
        yield
    finally:
        if isinstance(sys.modules.get(FRONT), StandIn):
            del sys.modules[FRONT]
