"""All that a training step changes, kept and put back: weights, gradients, optimizers, batch, generators, modes."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.debug.instruments.tensor_tree import DEEPEST, SIMPLE, dotted_tensors
from ocrlab.debug.laws.tensor_checks import error_of, is_readable

OWN = frozenset(vars(nn.Module()))  # what each module has: its parameters, its hooks
WRAPPERS = ("torch.nn.parallel", "torch.distributed")  # modules whose attributes mirror a state elsewhere
MUTABLE = (dict, OrderedDict, defaultdict, list, set, deque)
PLAIN = (Tensor, nn.Parameter)


class StepState:
    """The state of a model, its optimizers and a batch as it was; `restore` puts it back, in the same tensors.

    Kept are values, `requires_grad` and gradients of all tensors, attributes and hooks of the modules, train and eval
    mode, everything that the optimizers hold, the batch and the random states. `failed` lists what could not be put
    back.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        batch: Any = None,
        loss: Callable[..., Any] | None = None,
    ) -> None:
        self.model, self.optimizers = model, list(optimizers)
        self.batch = [(name, t, t.detach().clone()) for name, t in dotted_tensors(batch) if is_readable(t)]
        self.forms = [(t.shape, t.stride(), t.storage_offset()) for _, t, _ in self.batch]
        self.containers = [(part, part.copy()) for part in mutable_parts(batch)]
        outside = [part for _, part in unlisted_parts(model) if isinstance(part, nn.Module)]
        outside += [loss] if isinstance(loss, nn.Module) else []
        self.outside = [(t, t.detach().clone()) for m in outside for t in (*m.parameters(), *m.buffers())]
        modules = dict.fromkeys(module for whole in (model, *outside) for module in whole.modules())
        own = [vars(module) for module in modules if not is_jit(module) and not _is_wrapper(module)]
        own += [value for each in own for value in each.values() if type(value) in MUTABLE]
        own += [vars(optimizer) for optimizer in optimizers]
        own += [part for o in optimizers for whole in (o.state, o.param_groups) for part in mutable_parts(whole)]
        self.attributes = [(part, part.copy()) for part in own]
        self.tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in named_tensors(model, optimizers)}
        trained = [*self.parameters(), *(t for t, _ in self.outside), *(t for _, t, _ in self.batch if t.is_leaf)]
        self.gradients = [(p, p.grad) for p in trained]
        every = [
            *(t for t, _ in self.tensors.values()),
            *(t for t, _ in self.outside),
            *(t for _, t in dotted_tensors(batch)),
        ]
        self.graded = [(t, t.is_leaf, t.requires_grad) for t in every]
        self.data = [(t, t.detach()) for t in every if type(t) in PLAIN and t.is_leaf and is_readable(t)]
        ids = {id(t) for t in every}
        moments = (t for o in optimizers for state in o.state.values() for _, t in dotted_tensors(state))
        self.moments = [(t, t.detach().clone()) for t in moments if id(t) not in ids]
        self.modes = [(module, module.training) for module in modules]
        self.failed: list[str] = []
        self.random = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def parameters(self) -> list[Tensor]:
        """Return every parameter of the model and of the optimizers, once."""
        named = (tensor for tensor, _ in self.tensors.values())
        return [tensor for tensor in named if isinstance(tensor, nn.Parameter) or tensor.requires_grad]

    def before(self, name: str) -> Tensor:
        """Return what a tensor held."""
        return self.tensors[name][1]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, except the counters with which torch detects writes to a tensor.

        What fails keeps nothing else from being put back.
        """
        self._try(*(lambda pair=pair: put_back(*pair) for pair in self.attributes))
        self._try(*(lambda each=each: self._restore_flags(*each) for each in self.graded))
        self._try(*(lambda pair=pair: _restore_data(*pair) for pair in self.data))
        values = (*self.tensors.values(), *self.outside, *self.moments)
        self._try(*(lambda pair=pair: _copy(*pair) for pair in values))
        self._try(self.restore_batch)
        self._try(*(lambda pair=pair: setattr(pair[0], "grad", pair[1]) for pair in self.gradients))
        self._try(self.restore_modes)

    def _try(self, *steps: Callable[[], Any]) -> None:
        for step in steps:
            error = error_of(step)
            if error is not None and (text := f"{type(error).__name__}: {error}".partition("\n")[0]) not in self.failed:
                self.failed.append(text)

    @staticmethod
    def _restore_flags(tensor: Tensor, leaf: bool, graded: bool) -> None:
        if leaf and not tensor.is_leaf:
            tensor.detach_()  # it was written to from within a graph
        if tensor.is_leaf and tensor.requires_grad != graded:
            tensor.requires_grad_(graded)

    def written(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the batch that do not hold what they held."""
        for name, tensor, value in self.batch:
            if tensor.shape != value.shape or not bool(((tensor == value) | (value != value)).all()):
                yield name, tensor

    @torch.no_grad()
    def restore_batch(self) -> None:
        """Put back the batch, also what was taken out of its dictionaries and lists."""
        for pair in self.containers:
            put_back(*pair)
        changed = {id(tensor) for _, tensor in self.written()}
        for (_, tensor, value), form in zip(self.batch, self.forms, strict=True):
            if id(tensor) in changed:
                tensor.as_strided_(*form).copy_(value)  # squeeze_ and the like leave another shape

    def clear_gradients(self) -> None:
        """Let every gradient of what is trained be made anew."""
        for tensor, _ in self.gradients:
            if tensor.requires_grad:
                tensor.grad = None

    def hold(self, loss: Tensor) -> None:
        """Keep the gradients of every leaf below a loss that is not known yet: parts that the model does not list."""
        ids = {id(tensor) for tensor, _ in self.gradients}
        for leaf in graph_leaves(loss):
            if id(leaf) not in ids:
                self.gradients.append((leaf, leaf.grad))
                leaf.grad = None

    def restore_modes(self) -> None:
        """Put back train and eval mode, and the generators of the CPU; no CUDA call is made."""
        for module, training in self.modes:
            module.training = training
        self.restore_random()

    def restore_random(self) -> None:
        """Put back the generators of the CPU."""
        python, numpy, cpu = self.random
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)

    def restore_cuda_random(self) -> None:
        """Put back the generators of the GPUs; not to be called after a CUDA error."""
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        elif torch.cuda.is_initialized():  # the check was the first to use them
            torch.cuda.manual_seed_all(torch.initial_seed())


def named_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers of the model by name, then what else the optimizers move as `optimizer.G.I`."""
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    ids = {id(tensor) for _, tensor in named}
    for number, optimizer in enumerate(optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                if id(parameter) not in ids:
                    ids.add(id(parameter))
                    named.append((f"optimizer{number or ''}.group {g}.{i}", parameter))
    return named


def _is_wrapper(module: nn.Module) -> bool:
    return type(module).__module__.startswith(WRAPPERS)


def mutable_parts(tree: Any, deep: int = 0) -> Iterator[Any]:
    """Yield the dicts, lists and sets inside of a value, and the attributes of its objects."""
    if isinstance(tree, (*SIMPLE, Tensor, type, nn.Module)) or callable(tree) or deep >= DEEPEST:
        return
    inside = vars(tree) if type(tree) not in MUTABLE and hasattr(tree, "__dict__") else tree
    if type(inside) in MUTABLE:
        yield inside
    elif not isinstance(inside, tuple):
        return
    for item in inside.values() if isinstance(inside, dict) else inside:
        yield from mutable_parts(item, deep + 1)


def put_back(items: Any, copied: Any) -> None:
    """Let a list, dict or set hold again what its copy holds; nothing is written where it does."""
    same = len(items) == len(copied)
    if isinstance(items, dict):
        same = same and all(a is b and items[a] is copied[b] for a, b in zip(items, copied, strict=True))
    elif not isinstance(items, set):
        same = same and all(a is b for a, b in zip(items, copied, strict=True))
    else:
        same = same and items == copied
    if not same:
        items.clear()
        items.extend(copied) if isinstance(items, list | deque) else items.update(copied)


def _copy(tensor: Tensor, value: Tensor) -> None:
    if not is_readable(tensor) or not torch.equal(tensor, value):
        tensor.copy_(value)


def _restore_data(tensor: Tensor, data: Tensor) -> None:
    """Give a tensor its memory back where a step has put another one in its place (`p.data = ...`)."""
    if tensor.dtype != data.dtype or tensor.device != data.device or tensor.data_ptr() != data.data_ptr():
        tensor.data = data


def graph_leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the leaves of a loss's graph, which its backward pass gives gradients."""
    visited, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        waiting += [before for before, _ in node.next_functions]


def unlisted_parts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what `parameters()` does not know: modules in a plain list, tuple or dict, trainable plain tensors."""
    listed = {id(part) for part in (*model.modules(), *model.parameters())}
    for name, module in model.named_modules():
        for key, value in vars(module).items() if not is_jit(module) else ():
            items = (
                value.items()
                if isinstance(value, dict)
                else enumerate(value)
                if isinstance(value, list | tuple)
                else ()
            )
            inside = [(f"{key}[{at!r}]", part) for at, part in items] if key not in OWN else []
            for label, part in [*inside, *([(key, value)] if isinstance(value, Tensor) else [])]:
                trained = isinstance(part, Tensor) and part.requires_grad and part.is_leaf
                if id(part) not in listed and (trained or isinstance(part, nn.Module)):
                    listed |= {id(inner) for inner in part.modules()} if isinstance(part, nn.Module) else {id(part)}
                    yield f"{name}.{label}".lstrip("."), part


def optimized_parameters(optimizers: Sequence[Any]) -> set[int]:
    """Return the ids of the parameters that some optimizers move."""
    return {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


def learning_rates(optimizers: Sequence[Optimizer]) -> dict[int, float]:
    """Return the learning rate of every parameter that an optimizer moves, by `id`."""
    rates: dict[int, float] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rates.update((id(parameter), float(group["lr"])) for parameter in group["params"] if "lr" in group)
            rates.update((id(parameter), 1.0) for parameter in group["params"] if "lr" not in group)
    return rates


def loss_value(value: Any) -> Any:
    """Return the loss in what a step gave back: a tensor, its `loss` or `total`, or the first of a sequence."""
    for name in ("loss", "total"):
        if isinstance(value, dict) and name in value:
            return value[name]
        if not isinstance(value, Tensor) and isinstance(getattr(value, name, None), Tensor):
            return getattr(value, name)
    if isinstance(value, list | tuple) and value:
        return value[0]
    return value
