"""Pictures of what a program kept, put back where it keeps it now: in place, so that whoever else holds it sees it too.

What the program has otherwise now stays as it is.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ocrlab.recording.pictures import LEAVES, Given, called

SEQUENCES: dict[str, Any] = {"l": list, "u": tuple, "d": deque, "s": set, "z": frozenset}
MAPPINGS: dict[str, Any] = {"k": dict, "ko": OrderedDict, "kc": Counter, "kd": defaultdict}


class UnfitError(Exception):
    """The program keeps something else there now."""


class Back:
    """Puts values back; `tensors` are those that the pictures tell of by number."""

    def __init__(self, tensors: Sequence[Any], given: Given) -> None:
        self.tensors, self.given = tensors, given
        self.done: dict[int, tuple[Any, Any]] = {}  # what was written to, and its picture

    def value(self, node: Any, there: Any = None) -> Any:
        """Return what a picture shows: `there` itself, written to, where that can be; raises UnfitError."""
        if type(node) in LEAVES:
            return node
        if id(there) in self.done:
            if self.done[id(there)][1] == node:
                return there
            there = None  # two things now that were one when the program began
        if isinstance(node, dict):
            made = self._tensor(node, there)
        else:
            make = getattr(self, f"_{node[0]}", None)
            if make is None:
                make = self._sequence if node[0] in SEQUENCES else self._mapping
            made = make(node, there)
        if made is there and there is not None:
            self.done[id(there)] = there, node
        return made

    def held(self, held: dict[str, Any], nodes: dict[str, Any]) -> None:
        """Put back what is held under names, each by itself."""
        for name, node in nodes.items():
            with contextlib.suppress(Exception):
                held[name] = self.value(node, held.get(name))

    def _told(self, node: Any) -> Tensor:
        if not isinstance(node, dict) or "t" not in node or self.tensors[node["t"]] is None:
            raise UnfitError
        tensor: Tensor = self.tensors[node["t"]]
        return tensor

    def _tensor(self, node: dict[str, Any], there: Any) -> Tensor:
        told = self._told(node)
        like = isinstance(there, Tensor)
        fits = like and there.shape == told.shape and there.dtype == told.dtype and there.grad_fn is None
        if fits and not self.given.holds(there):
            with torch.no_grad():
                there.copy_(told)
            return there  # type: ignore[no-any-return]
        made = told.to(there.device if like else node.get("on", "cpu"), copy=True)
        made.requires_grad_(bool(node.get("grad")))
        return nn.Parameter(made, made.requires_grad) if isinstance(there, nn.Parameter) else made

    def _a(self, node: Any, there: Any) -> Any:
        values = np.array(node[3], dtype=np.dtype(node[1])).reshape(node[2])
        return self._array(values, there)

    def _A(self, node: Any, there: Any) -> Any:
        raw = self._told(node[3]).numpy()
        return self._array(np.frombuffer(raw.tobytes(), dtype=np.dtype(node[1])).reshape(node[2]).copy(), there)

    def _array(self, values: Any, there: Any) -> Any:
        fits = type(there) is np.ndarray and there.shape == values.shape and there.dtype == values.dtype
        if not fits or not there.flags.writeable:
            return values
        there[...] = values
        return there

    def _n(self, node: Any, _there: Any) -> Any:
        return np.dtype(node[1]).type(node[2])

    def _parts(self, nodes: Any, there: Any) -> list[Any]:
        """Return the parts of a list; those that its picture left out are the ones that are there."""
        if isinstance(nodes, dict):
            return self._told(nodes).tolist()  # type: ignore[no-any-return]
        old = list(there) if there is not None and len(there) == len(nodes) else None
        if old is None and any(map(left_out, nodes)):
            raise UnfitError
        before = old if old is not None else [None] * len(nodes)
        return [was if left_out(node) else self.value(node, was) for node, was in zip(nodes, before, strict=True)]

    def _sequence(self, node: Any, there: Any) -> Any:
        kind = SEQUENCES[node[0]]
        there = there if type(there) is kind else None
        parts = self._parts(node[1], None if node[0] in "sz" else there)
        if there is None or node[0] in "uz":
            same = there is not None and len(parts) == len(there) and all(map(_is, parts, there))
            made = deque(parts, node[2]) if node[0] == "d" else kind(parts)
            return there if same else made
        there.clear()
        if node[0] == "s":
            there.update(parts)
        else:
            there.extend(parts)
        return there

    def _mapping(self, node: Any, there: Any) -> Any:
        kind = MAPPINGS[node[0]]
        if type(there) is not kind:
            if node[0] == "kd":  # nobody knows what its missing values are made with
                raise UnfitError
            there, old = kind(), {}
        else:
            old = dict(there)
        new = {}
        for told, part in node[1]:
            key = tuple(told[1]) if isinstance(told, list) else told
            if left_out(part):
                if key in old:
                    new[key] = old[key]
            else:
                new[key] = self.value(part, old.get(key))
        there.clear()
        there.update(new)
        return there

    def _same(self, node: Any, there: Any) -> Any:
        if there is None or called(type(there)) != node[1] or id(there) in self.given.ids:
            raise UnfitError
        return there

    def _o(self, node: Any, there: Any) -> Any:
        self.held(object.__getattribute__(self._same(node, there), "__dict__"), node[2])
        return there

    def _c(self, node: Any, there: Any) -> Any:
        names = there.__code__.co_freevars
        for name, cell in zip(names, there.__closure__ or (), strict=True):
            with contextlib.suppress(Exception):
                cell.cell_contents = self.value(node[1][name], cell.cell_contents)
        self.held(there.__dict__, node[2])
        return there

    def _g(self, node: Any, there: Any) -> Any:
        _, kind, state = node
        if kind == "python" and type(there) is random.Random:
            there.setstate((state[0], tuple(state[1]), state[2]))
        elif kind == "torch" and isinstance(there, torch.Generator):
            there.set_state(self._told(state).clone())
        elif kind == "numpy" and type(there) is np.random.Generator:
            there.bit_generator.state = self.value(state)
        elif kind == "legacy" and type(there) is np.random.RandomState:
            there.set_state(self.value(state))
        else:
            raise UnfitError
        return there

    def _p(self, node: Any, there: Any) -> Any:
        now = self._same(node, there).state_dict()
        there.load_state_dict(self.value(node[2], now))
        return there

    def _m(self, node: Any, there: Any) -> Any:
        modules = dict(nn.Module.named_modules(self._same(node, there)))
        for path, told in node[2].items():
            path, _, name = path.rpartition(".")
            for held in (modules[path]._parameters, modules[path]._buffers) if path in modules else ():
                if name in held:
                    held[name] = self._tensor(told, held[name])
        for path, nodes in node[3].items():
            if path in modules:
                self.held(modules[path].__dict__, nodes)
        for module, mode in zip(modules.values(), node[4], strict=False):
            if mode != " ":
                module.training = mode == "1"
        return there


def left_out(node: Any) -> bool:
    """Tell whether something was not taken along."""
    return isinstance(node, dict) and "t" not in node


def _is(a: Any, b: Any) -> bool:
    return a is b
