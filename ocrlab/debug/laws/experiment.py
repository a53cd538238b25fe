"""The user's own training step as an experiment: run on any samples, in any mode, and undone exactly."""

from __future__ import annotations

import contextlib
import copy
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ocrlab.debug.instruments.tensor_tree import DEEPEST, SIMPLE, dotted_tensors
from ocrlab.debug.laws.observation import eager
from ocrlab.debug.laws.state_guard import StepState, loss_value
from ocrlab.debug.laws.tensor_checks import is_readable

MARGIN = 30  # times the response to one rounding of every weight: summing in another order does less than this
Change = Callable[[str, Tensor], Tensor]


class NotTestable(Exception):
    """Why a law cannot be tested with what was given."""


@dataclass
class Run:
    """One run of the step: its loss, what the model's calls got and returned, and the gradients by parameter."""

    loss: float
    outputs: list[Tensor] = field(default_factory=list)
    inputs: list[list[Tensor]] = field(default_factory=list)  # of each call of the model
    pushes: list[Tensor | None] = field(default_factory=list)  # the gradient of the loss by each output
    gradients: dict[str, Tensor] = field(default_factory=dict)


class Experiment:
    """A step that can be run again and again; `close` puts everything back and names what is not as it was."""

    def __init__(self, model: nn.Module, batch: Any, loss: Callable[..., Any], optimizers: Sequence[Optimizer]) -> None:
        self.model, self.batch, self.loss, self.optimizers = model, batch, loss, list(optimizers)
        self.state = StepState(model, optimizers, batch, loss)
        self.rows = sample_count(batch)
        self.named = dict(model.named_parameters())
        self.trainable = {name: p for name, p in self.named.items() if p.requires_grad}
        self.generators = [(g, generator_state(g)) for g in own_generators(model)]
        self.dead = False  # a CUDA error has ended every call on the device
        self.seconds = 0.0  # of one step, forward and backward
        self._measured: dict[str, float] = {}

    def restore(self, *, own_generators: bool = True) -> None:
        """Put back weights, buffers, gradients, optimizers, batch, modes and random states."""
        self.state.restore()
        self.state.restore_cuda_random()
        for generator, state in self.generators if own_generators else ():
            set_generator_state(generator, state)

    def close(self) -> list[str]:
        """Put everything back; return what differs all the same. After a CUDA error no tensor is touched."""
        if self.dead:
            self.state.restore_modes()
            return ["tensors: the CUDA context is dead; start the process again"]
        self.restore()
        wrong = [name for name, (t, old) in self.state.tensors.items() if is_readable(t) and not _same(t, old)]
        wrong += [f"{type(m).__name__}.training" for m, training in self.state.modes if m.training is not training]
        wrong += ["requires_grad"] * any(t.is_leaf and t.requires_grad != graded for t, _, graded in self.state.graded)
        wrong += ["torch's random state"] * (not torch.equal(torch.get_rng_state(), self.state.random[2]))
        return [*wrong, *self.state.failed]

    def run(
        self,
        batch: Any = None,
        *,
        training: bool | None = None,
        gradients: bool = False,
        restore: bool = True,
        model: nn.Module | None = None,
        watch: Mapping[nn.Module, Callable[[nn.Module, Any, Any], Any]] | None = None,
    ) -> Run:
        """Run the step on `batch` (default: its own), in the mode that `training` selects; raises what the step raises.

        `watch` maps modules to forward hooks for this run. With `restore` the run starts from the initial state,
        random numbers included.
        """
        if restore:
            self.restore()
        net = self.model if model is None else model
        if training is not None:
            net.train(training)
        if model is not None:
            for own, (_, state) in zip(own_generators(model), self.generators, strict=False):
                set_generator_state(own, state)
        data = self.batch if batch is None else rebuilt(batch, lambda _, t: t.detach().clone())
        result, outputs = Run(0.0), list[Tensor]()

        def note(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            result.inputs.append([t.detach() for _, t in dotted_tensors((args, kwargs))])
            for name, tensor in dotted_tensors(output):
                if (
                    tensor.is_floating_point()
                    and is_readable(tensor)
                    and name.rpartition(".")[2] not in ("loss", "hidden")
                ):
                    outputs.append(tensor)
                    if gradients and tensor.requires_grad and not tensor.is_leaf:
                        tensor.retain_grad()

        handles = [net.register_forward_hook(note, with_kwargs=True)]
        handles += [part.register_forward_hook(hook) for part, hook in (watch or {}).items()]
        self.state.clear_gradients()
        try:
            with torch.set_grad_enabled(gradients), eager():
                total = loss_value(self.loss(net, data))
                if not isinstance(total, Tensor) or total.numel() != 1:
                    raise NotTestable("the loss is not one number")
                result.loss = float(total.detach())
                if gradients:
                    if total.grad_fn is None:
                        raise NotTestable("the loss has no gradient")
                    if model is None:
                        self.state.hold(total)  # gradients of what the model does not list
                    total.sum().backward()
        finally:
            for handle in handles:
                handle.remove()
        result.outputs = [t.detach().clone() for t in outputs]
        if gradients:
            named = self.named if model is None else dict(model.named_parameters())
            result.pushes = [None if t.grad is None else t.grad.detach().clone() for t in outputs if not t.is_leaf]
            trained = {n: p for n, p in named.items() if p.requires_grad and p.grad is not None}
            result.gradients = {n: p.grad.detach().clone() for n, p in trained.items() if p.grad is not None}
        return result

    @contextlib.contextmanager
    def moved(self, change: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
        """Change every trainable parameter inside of the block; use `run(restore=False)` in it."""
        self.restore()
        with torch.no_grad():
            for name, p in self.trainable.items():
                p.copy_(change(name, p))
        yield
        self.restore()

    def rounding(self, what: str = "outputs") -> float:
        """Return how far one rounding of every weight, or a repetition, moves outputs, gradients or the loss.

        In shares of their size; the tolerance of a law is `MARGIN` times that.
        """
        if not self._measured:
            wanted = any(p.requires_grad for p in self.named.values())
            first = self.run(training=False, gradients=wanted)
            again = self.run(training=False, gradients=wanted)
            generator = torch.Generator().manual_seed(0)

            def rounded(_: str, p: Tensor) -> Tensor:
                sign = torch.randint(0, 2, p.shape, generator=generator).to(p.device, p.dtype) * 2 - 1
                return p + p * sign * torch.finfo(p.dtype).eps if p.is_floating_point() else p

            with self.moved(rounded):
                self.model.eval()
                other = self.run(training=False, gradients=wanted, restore=False)
            for key in ("outputs", "gradients", "loss"):
                pairs = [distance(getattr(first, key), getattr(run, key)) for run in (again, other)]
                self._measured[key] = max(*pairs, float(torch.finfo(torch.float32).eps))
        return MARGIN * self._measured[what]

    def draws_numbers(self) -> bool:
        """Return whether the step draws random numbers in eval mode: samples then cannot move without their noise."""
        if self.generators:
            return True
        first = self.run(training=False)
        self.restore()
        torch.rand(17), random.random(), np.random.rand()  # noqa: NPY002
        second = self.run(training=False, restore=False)
        return distance(first.outputs, second.outputs) > self.rounding() or first.loss != second.loss


def distance(first: Any, second: Any) -> float:
    """Return how far two numbers, lists or dicts of tensors lie apart, as a share of their size; inf by shape."""
    if isinstance(first, float):
        return abs(first - second) / max(abs(first), abs(second), 1e-30)
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return float("inf")
        first, second = [*first.values()], [second[name] for name in first]
    if len(first) != len(second) or any(a.shape != b.shape for a, b in zip(first, second, strict=True)):
        return float("inf")
    pairs = [(_floats(a), _floats(b)) for a, b in zip(first, second, strict=True)]
    size = sum(float(a.square().sum()) for a, _ in pairs) ** 0.5
    apart = sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5
    return apart / max(size, 1e-30)


def _floats(tensor: Tensor) -> Tensor:
    return torch.nan_to_num(tensor.coalesce().values().double() if tensor.is_sparse else tensor.double())


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(((first == second) | (first != first)).all())


def own_generators(model: nn.Module) -> list[Any]:
    """Return the random generators that are attributes of a model's parts."""
    return [g for m in model.modules() for g in vars(m).values() if generator_state(g) is not None]


def generator_state(generator: Any) -> Any:
    """Return the state of a random generator, None for anything else."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return copy.deepcopy(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else None


def set_generator_state(generator: Any, state: Any) -> None:
    """Put the state of a random generator back."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def rebuilt(value: Any, change: Change, name: str = "", deep: int = 0, rows: Callable[[Any], Any] | None = None) -> Any:
    """Return a batch with every tensor changed by `change(name, tensor)`; containers are copied, not the rest.

    `rows` may return another list in place of one that holds something for each sample, or None.
    """
    if isinstance(value, Tensor):
        return change(name or "batch", value)
    if isinstance(value, (*SIMPLE, type, nn.Module)) or deep >= DEEPEST:
        return value
    inner = lambda key, item: rebuilt(item, change, f"{name}.{key}".removeprefix("."), deep + 1, rows)  # noqa: E731
    if isinstance(value, list | tuple):
        if rows is not None and (chosen := rows(value)) is not None:
            return chosen
        items = [inner(i, item) for i, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__setitem__")):
        copied = copy.copy(value)
        for key in list(value.keys()):
            copied[key] = inner(key, value[key])  # type: ignore[index]
        return copied
    if hasattr(value, "__dict__") and not callable(value):
        copied = copy.copy(value)
        for key, item in list(vars(value).items()):
            object.__setattr__(copied, key, inner(key, item))
        return copied
    return value


def sample_count(batch: Any) -> int:
    """Return how many samples a batch holds, 0 where its tensors do not all begin with that number."""
    sizes = Counter(t.shape[0] for _, t in dotted_tensors(batch) if t.ndim)
    if len(sizes) == 1:
        return next(iter(sizes))
    lists = batch if isinstance(batch, list | tuple) else list(batch.values()) if isinstance(batch, Mapping) else []
    lengths = {len(item) if isinstance(item, list | tuple) else 0 for item in lists}
    return lengths.pop() if len(lengths) == 1 else 0


def selected(batch: Any, indices: Sequence[int], rows: int) -> Any:
    """Return a batch of the samples `indices` of one of `rows` samples; raises NotTestable where it has none."""

    def some(name: str, tensor: Tensor) -> Tensor:
        if tensor.ndim and tensor.shape[0] != rows:
            raise NotTestable(f"{name} has {tensor.shape[0]} rows, and the batch {rows} samples")
        return tensor[torch.as_tensor(indices, device=tensor.device)] if tensor.ndim else tensor

    def chosen(items: Any) -> Any:
        whole = any(isinstance(item, Tensor) and item.ndim and item.shape[0] == rows for item in items)
        return (
            None if len(items) != rows or whole or hasattr(items, "_fields") else type(items)(items[i] for i in indices)
        )

    return rebuilt(batch, some, rows=chosen)


def clock() -> float:
    """Return the seconds of a clock that only runs forward."""
    return time.monotonic()
