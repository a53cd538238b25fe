"""All that a training step changes, kept and put back: weights, gradients, optimisers, batch, generators, modes."""

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
from ocrlab.debug.instruments.step_check.findings import error_of, is_readable
from ocrlab.debug.instruments.tensor_tree import DEEPEST, dotted_tensors, parts

OWN = frozenset(vars(nn.Module()))  # what each module has: its parameters, its hooks
WRAPPERS = ("torch.nn.parallel", "torch.distributed")  # modules whose attributes mirror a state elsewhere
MUTABLE = (dict, OrderedDict, defaultdict, list, set, deque)
PLAIN = (Tensor, nn.Parameter)


class StepState:
    """The state of a model, its optimisers and a batch as it was; `restore` puts it back, in the same tensors.

    Kept are values, `requires_grad` and gradients of all tensors, attributes and hooks of the modules, train and eval
    mode, everything that the optimisers hold, the batch and the random states. `failed` lists what could not be put
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
        self.containers = list(container_copies(batch))
        outside = [module for _, module in unlisted_modules(model)]
        outside += [loss] if isinstance(loss, nn.Module) else []
        self.outside = [(t, t.detach().clone()) for m in outside for t in (*m.parameters(), *m.buffers())]
        modules = dict.fromkeys(module for whole in (model, *outside) for module in whole.modules())
        self.attributes = [pair for module in modules for pair in attribute_copies(module)]
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
        self.states = [
            back
            for o in optimizers
            for back in (attributes_restorer(vars(o)), tree_restorer(o.state, ids), tree_restorer(o.param_groups, ids))
        ]
        self.modes = [(module, module.training) for module in modules]
        self.failed: list[str] = []
        self.random = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def parameters(self) -> list[Tensor]:
        """Return every parameter of the model and of the optimisers, once."""
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
        self._try(*self.states)
        self._try(*(lambda pair=pair: put_back(*pair) for pair in self.attributes))
        self._try(*(lambda each=each: self._restore_flags(*each) for each in self.graded))
        self._try(*(lambda pair=pair: _restore_data(*pair) for pair in self.data))
        self._try(*(lambda pair=pair: _copy(*pair) for pair in (*self.tensors.values(), *self.outside)))
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
    """Return parameters and buffers of the model by name, then what else the optimisers move as `optimizer.G.I`."""
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    ids = {id(tensor) for _, tensor in named}
    for number, optimizer in enumerate(optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                if id(parameter) not in ids:
                    ids.add(id(parameter))
                    named.append((f"optimizer{number or ''}.group {g}.{i}", parameter))
    return named


def attribute_copies(module: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield the attributes of a module, its hooks among them, and their lists, dicts and sets, each with a copy."""
    if is_jit(module) or type(module).__module__.startswith(WRAPPERS):
        return
    for items in (vars(module), *vars(module).values()):
        if type(items) in MUTABLE:
            yield items, items.copy()


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


def attributes_restorer(attributes: dict[str, Any]) -> Callable[[], None]:
    """Return what puts the attributes of an object back, not what is inside of them."""
    copied = attributes.copy()
    return lambda: put_back(attributes, copied)


def tree_restorer(tree: Any, skip: set[int]) -> Callable[[], None]:
    """Return what puts a tree of lists and dicts back, and the values of its tensors but for those of `known` ids."""
    if isinstance(tree, Tensor):
        value = tree.detach().clone() if id(tree) not in skip else None
        return lambda: None if value is None else _copy(tree, value)
    if type(tree) not in MUTABLE:
        return lambda: None
    copied = tree.copy()
    inside = [tree_restorer(item, skip) for item in (tree.values() if isinstance(tree, dict) else tree)]

    def back() -> None:
        put_back(tree, copied)
        for each in inside:
            each()

    return back


def _copy(tensor: Tensor, value: Tensor) -> None:
    if not is_readable(tensor) or not torch.equal(tensor, value):
        tensor.copy_(value)


def _restore_data(tensor: Tensor, data: Tensor) -> None:
    """Give a tensor its memory back where a step has put another one in its place (`p.data = ...`)."""
    if tensor.dtype != data.dtype or tensor.device != data.device or tensor.data_ptr() != data.data_ptr():
        tensor.data = data


def container_copies(tree: Any, deep: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield the dictionaries and lists of a batch, and the attributes of its objects, each with a copy."""
    if isinstance(tree, Tensor) or deep >= DEEPEST:
        return
    if type(tree) in (dict, list):
        yield tree, tree.copy()
    elif not isinstance(tree, type | nn.Module) and not callable(tree) and hasattr(tree, "__dict__"):
        yield vars(tree), vars(tree).copy()
    for _, item in parts(tree):
        yield from container_copies(item, deep + 1)


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


def unlisted_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules that a module holds in a plain list, tuple or dict: `parameters()` does not know them."""
    listed = {id(module) for module in model.modules()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in OWN or not isinstance(value, list | tuple | dict):
                continue
            inside = value.items() if isinstance(value, dict) else enumerate(value)
            for at, part in inside:
                if isinstance(part, nn.Module) and id(part) not in listed:
                    listed |= {id(inner) for inner in part.modules()}
                    yield f"{name}.{key}[{at!r}]".lstrip("."), part


def unregistered_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield leaf tensors with requires_grad that a module holds as plain attributes, or in a list, tuple or dict."""
    listed = {id(p) for p in model.parameters()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in OWN:
                continue
            inside = (
                value.items()
                if isinstance(value, dict)
                else enumerate(value)
                if isinstance(value, list | tuple)
                else ()
            )
            candidates = [(f"{key}[{at!r}]", item) for at, item in inside] or [(key, value)]
            for label, item in candidates:
                if isinstance(item, Tensor) and item.requires_grad and item.is_leaf and id(item) not in listed:
                    listed.add(id(item))
                    yield f"{name}.{label}".lstrip("."), item


def learning_rates(optimizers: Sequence[Optimizer]) -> dict[int, float]:
    """Return the learning rate of every parameter that an optimiser moves, by `id`."""
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
