"""Names of a package that are imported when they are first used, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, exports: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (PEP 562); `exports` maps each name to "module" or "module:name".

    A name is looked up once and then stands in the package itself. Any other name raises AttributeError and lists
    the public ones.
    """

    def get(name: str) -> Any:
        if name not in exports:
            public = ", ".join(sorted(exports))
            raise AttributeError(f"module {package!r} has no attribute {name!r}; its public names are {public}")
        module, _, attribute = exports[name].partition(":")
        value = getattr(importlib.import_module(module), attribute or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *exports})

    return get, names
