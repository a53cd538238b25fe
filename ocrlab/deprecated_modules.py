"""Old names of public modules: they still work, and say once where their names are now."""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType


def renamed(old: str, new: str, public: str) -> ModuleType:
    """Put the module `new` in the place of the module `old` and warn; `public` is what to write from now on."""
    warnings.warn(f"{old} is deprecated; use {public}", DeprecationWarning, stacklevel=3)
    module = importlib.import_module(new)
    sys.modules[old] = module
    return module
