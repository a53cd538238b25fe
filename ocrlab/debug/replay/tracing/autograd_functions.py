"""Which operator of the user's own a replayed step is in: subclasses of torch.autograd.Function, by their name.

What they do may never reach torch's dispatcher (ctypes, NumPy, an extension), so that only their name says where it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


class AutogradFunctions:
    """The functions of a step that have been entered; `changed` is called at each entry and exit."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.stack: list[str] = []
        self.raised: tuple[BaseException, str] | None = None  # the innermost that an exception left
        self.original: Any = None

    def hook(self) -> None:
        """Look into every `apply` from now on."""
        self.original = original = inspect.getattr_static(torch.autograd.Function, "apply")

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            bound = original.__get__(None, cls)
            if is_of_torch(cls):
                return bound(*args, **kwargs)
            self.stack.append(cls.__name__)
            self.changed()
            try:
                return bound(*args, **kwargs)
            except BaseException as error:
                if self.raised is None or self.raised[0] is not error:
                    self.raised = (error, cls.__name__)
                raise
            finally:
                self.stack.pop()
                self.changed()

        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]

    def unhook(self) -> None:
        """Put the method of torch back."""
        if self.original is not None:
            torch.autograd.Function.apply = self.original
            self.original = None

    @property
    def top(self) -> str | None:
        """The innermost function."""
        return self.stack[-1] if self.stack else None


def node_function(node: Any) -> str | None:
    """Return the name of the user's function whose backward a node of the graph is."""
    owner = getattr(node, "_forward_cls", None)
    return owner.__name__ if owner is not None and not is_of_torch(owner) else None


def is_of_torch(owner: Any) -> bool:
    """Tell whether a function is one of torch's own, such as those of checkpointing and of module hooks."""
    return str(getattr(owner, "__module__", "")).partition(".")[0] == "torch"
