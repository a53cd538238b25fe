"""Which module and which autograd function of the user a replayed step is in.

The stack is right for modules called twice, shared modules and user hooks. The entry hook of a module runs first and
its exit hook last, so that the work of other hooks counts as the module's own. The exit hook also runs when the module
raises. What a subclass of torch.autograd.Function computes may never reach torch's dispatcher (ctypes, NumPy, an
extension), so that only its name says where the step is.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
SIZES = [("in_channels", "out_channels"), ("in_features", "out_features")]
SIZES += [("input_size", "hidden_size"), ("num_embeddings", "embedding_dim")]
CallHandler = Callable[["Call"], None]


@dataclass(frozen=True)
class Call:
    """One call of a module that has begun: its path, what it is, how often it was called in this step, its inputs."""

    module: nn.Module
    path: str
    label: str
    number: int
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    in_model: bool = True  # part of the model that is trained
    wraps: bool = False  # a stranger around such a part: a compiled model, somebody's DataParallel
    aside: bool = False  # a stranger that computes no loss: it runs before the model, or without gradients (a teacher)

    @property
    def is_loss(self) -> bool:
        """Return whether it computes the loss, by its name or because it does not involve the model's modules."""
        kind = type(self.module)
        named = kind.__name__.endswith(("Loss", "Criterion")) or kind.__module__ == "torch.nn.modules.loss"
        return named or not (self.in_model or self.wraps or self.aside)


class ModuleStack:
    """The stack of module calls of a step; `changed` is called at each entry, `left` with a call that has ended."""

    def __init__(self, roots: Sequence[nn.Module], changed: CallHandler, left: CallHandler) -> None:
        self.roots, self.changed, self.left = list(roots), changed, left
        self.stack: list[Call] = []
        self.counts: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.handles: list[RemovableHandle] = []
        self.raised: tuple[BaseException, Call] | None = None  # the innermost call that an exception left
        self.escaped: tuple[BaseException, Call] | None = None  # the outermost one that it left
        self.outermost = 0  # calls, of the model or of a loss, that have ended with an empty stack

    def hook(self) -> None:
        """Put hooks on every module there is now, and one for those that come later or belong to nobody."""
        self.unhook()
        self.stack, self.counts, self.outermost = [], {}, 0
        for root in self.roots:
            for name, module in root.named_modules():
                if id(module) in self.names and not name:
                    continue
                self.names[id(module)] = name
                try:
                    self.handles += [
                        module.register_forward_pre_hook(self._push, prepend=True, with_kwargs=True),
                        module.register_forward_hook(self._pop, with_kwargs=True, always_call=True),
                    ]
                except (RuntimeError, TypeError):  # a scripted module takes no such hooks: its caller is reported
                    self.names.pop(id(module), None)
        self.handles.append(register_module_forward_pre_hook(functools.partial(self._push, stranger=True)))
        self.handles.append(register_module_forward_hook(functools.partial(self._pop, stranger=True), always_call=True))

    def unhook(self) -> None:
        """Take every hook away."""
        while self.handles:
            self.handles.pop().remove()

    @property
    def top(self) -> Call | None:
        """The innermost call."""
        return self.stack[-1] if self.stack else None

    def name(self, module: nn.Module) -> str:
        """Return the path of a module; of a shared one the path below the module that calls it now, of one that is no
        part of the model the path below the stranger that calls it.
        """
        above = self.top
        if above is not None and above.in_model:
            for child, submodule in above.module._modules.items():
                if submodule is module:
                    return f"{above.path}.{child}" if above.path else child
        if above is not None and id(module) not in self.names:
            inner = next((name for name, submodule in above.module.named_modules() if submodule is module), "")
            return f"{above.path}.{inner}" if inner and above.path else inner or type(module).__name__
        return self.names.get(id(module), type(module).__name__)

    def _push(self, module: nn.Module, args: Any, kwargs: Any = None, *, stranger: bool = False) -> None:
        if stranger and id(module) in self.names:
            return
        number = self.counts[id(module)] = self.counts.get(id(module), 0) + 1
        wraps = stranger and any(id(part) in self.names for part in module.modules())
        aside = stranger and not (self.outermost and torch.is_grad_enabled())
        aside |= any(above.aside for above in self.stack)
        call = Call(module, self.name(module), label(module), number, args, kwargs or {}, not stranger, wraps, aside)
        self.stack.append(call)
        self.changed(call)

    def _pop(self, module: nn.Module, *_: Any, stranger: bool = False) -> None:
        if stranger and id(module) in self.names:
            return
        error = sys.exc_info()[1]
        while self.stack:
            call = self.stack.pop()
            if error is not None and (self.raised is None or self.raised[0] is not error):
                self.raised = (error, call)
            self.outermost += not self.stack and (call.is_loss or not call.aside)
            if error is not None and not self.stack:
                self.escaped = (error, call)
            if call.module is module:
                self.left(call)
                return


def label(module: nn.Module) -> str:
    """Return what a module is, with the numbers that tell it from others: `Conv2d 256->64`, `BatchNorm2d 64`."""
    name = type(module).__name__
    for pair in SIZES:
        sizes = [getattr(module, size, None) for size in pair]
        if all(isinstance(number, int) for number in sizes):
            return f"{name} {sizes[0]}->{sizes[1]}"
    width = getattr(module, "num_features", getattr(module, "embed_dim", None))
    return f"{name} {width}" if isinstance(width, int) else name


def kind(tensor: Tensor) -> str:
    """Return shape and number format of a tensor: `(4, 256, 160, 160) bf16`, and its device where that is not a CPU."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    device = f" {tensor.device}" if tensor.device.type != "cpu" else ""
    return f"{tuple(tensor.shape)} {SHORT.get(dtype, dtype)}{device}"


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
    """Return whether a function is one of torch's own, such as those of checkpointing and of module hooks."""
    return str(getattr(owner, "__module__", "")).partition(".")[0] == "torch"
