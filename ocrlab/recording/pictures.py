"""A value that a program keeps, as text and tensors that a snapshot can hold; `pictures_back.py` makes it again.

Only its type is asked what a value is, and of the program's own code no more is called than `state_dict`. What cannot
be put back is left out of its picture: data sets, what libraries keep, losses with a graph, all that was given to the
recorder already.

A picture is JSON: numbers, texts and None are themselves, a list begins with its kind, {"t": 3} is the fourth tensor,
{} is left out, {"n": 70000} is too many, {"s": 1} is what another picture shows already.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import json
import marshal
import random
import sys
import types
import weakref
import zlib
from abc import ABC
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from ocrlab.recording.counters import OTHERS
from ocrlab.recording.generators import KINDS

NUMBERS = frozenset({type(None), bool, int, float})  # and what stands for none
LEAVES = (*NUMBERS, str)
DEPTH = 6  # of things in things
ELEMENTS = 1 << 13  # of one value
STATES = 1 << 17  # of a state_dict, which is flat
LONG = 1 << 15  # numbers in a list of nothing else
PACKED = 64  # from so many on they are a tensor
LETTERS = 1 << 14
ARRAY = 16 << 20  # bytes
WHOLE = 1 << 20  # bytes of which all are compared
SAMPLED = 16  # values of a larger tensor
STANDARD = frozenset(vars(nn.Module()))  # what torch keeps in each module
SEQUENCES: dict[type, str] = {list: "l", tuple: "u", deque: "d", set: "s", frozenset: "z"}
MAPPINGS: dict[type, str] = {dict: "k", OrderedDict: "ko", Counter: "kc", defaultdict: "kd"}
BARE: tuple[Any, ...] = (object, ABC, Generic, Protocol)
LEFT_OUT: dict[str, Any] = {}


class Given:
    """What the recorder was given, by identity, and where its tensors lie."""

    def __init__(self, models: Sequence[nn.Module], others: Iterable[Any], callbacks: Iterable[Any] = ()) -> None:
        self.models, self.others = models, [*others]
        own = [each for each in callbacks if is_programs(type(each).__module__)]  # a trainer has them, no variable
        self.callbacks = {f"{i} {called(type(each))}": each for i, each in enumerate(own)}
        modules = [part for model in models for part in nn.Module.modules(model)]
        usual = [torch.default_generator, random._inst, np.random.mtrand._rand]  # type: ignore[attr-defined]
        usual += torch.cuda.default_generators
        self.ids = {id(part) for part in (*modules, *self.others, *usual)}
        self.places: set[int] | None = None

    def holds(self, tensor: Tensor) -> bool:
        """Tell whether a tensor lies where one of the given ones does."""
        if self.places is None:
            self.places = {t.data_ptr() for t in self._tensors() if isinstance(t, Tensor)} - {0}
        return tensor.data_ptr() in self.places

    def _tensors(self) -> Iterator[Any]:
        for part in (*self.models, *self.others):
            if isinstance(part, nn.Module):
                yield from nn.Module.parameters(part)
                yield from nn.Module.buffers(part)
            elif isinstance(part, torch.optim.Optimizer):
                yield from (t for state in part.state.values() for t in state.values())


class Picture:
    """One value as text and tensors; `size` are the elements that it was looked at for."""

    def __init__(self, value: Any, given: Given, seen: dict[int, Any] | None = None) -> None:
        self.given, self.left = given, ELEMENTS
        self.seen = {} if seen is None else seen  # of all pictures, by identity, which others must not take over
        self.tensors: list[Tensor] = []
        self.made: set[int] = set()  # tensors that are of this picture alone, or NumPy's
        self.shared = 0  # tensors that were given already
        self.around: set[int] = set()
        self.too_many: list[str] = []
        node = self.of(value)
        self.node, self.is_empty = node, node is LEFT_OUT
        self.mark = marshal.dumps(node, 2)  # the same for the same picture, and faster than text; nobody reads it
        self.size = ELEMENTS - self.left + 2 * len(self.tensors)

    @property
    def text(self) -> str:
        """The picture as a snapshot keeps it."""
        return json.dumps(self.node)

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return the picture of a value, LEFT_OUT for one that has none."""
        kind = type(value)
        if kind in LEAVES:
            return value if kind is not str or len(value) <= LETTERS else LEFT_OUT
        tell = _teller(kind)
        if tell is None or depth > DEPTH or id(value) in self.given.ids or id(value) in self.around:
            return LEFT_OUT
        if id(value) in self.seen:
            return {"s": 1}
        self.around.add(id(value))
        try:
            node = tell(self, value, depth)
            if node is not LEFT_OUT and kind is not tuple:
                self.seen[id(value)] = value
            return node
        except Exception:  # it refuses to be looked at, which costs nothing but itself
            return LEFT_OUT
        finally:
            self.around.discard(id(value))

    def places(self) -> list[tuple[int, int]]:
        """Return where its tensors lie, and how often torch knows them to be written to (not behind `.data`)."""
        return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in self.tensors if id(t) not in self.made]

    def values(self) -> list[Any]:
        """Return some values of its tensors, all of small ones; those on a device are waited for once."""
        there = [] if capturing() else [_some(t) for t in self.tensors if t.is_cuda and t.numel()]
        found: list[Any] = torch.cat(there).tolist() if there else []
        for t in self.tensors:
            if t.device.type == "cpu" and t.numel():
                small = t.nbytes <= (WHOLE if id(t) in self.made else 1024)
                found.append(zlib.crc32(_bytes(t)) if small else _some(t).tolist())
        return found

    def bytes(self) -> int:
        """Return how much its tensors take."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def _own(self, tensor: Tensor) -> dict[str, Any]:
        self.tensors.append(tensor)
        self.made.add(id(tensor))
        return {"t": len(self.tensors) - 1}

    def _long(self, value: Any) -> Any:
        """Return a picture that says that there is too much, None where there is room for it."""
        size = len(value)
        if size <= self.left:
            self.left -= size
            return None
        self.too_many.append(f"a {type(value).__name__} of {size}")
        return {"n": size}

    def _tensor(self, value: Tensor, _depth: int) -> Any:
        if value.grad_fn is not None or value.layout is not torch.strided or value.device.type == "meta":
            return LEFT_OUT
        if self.given.holds(value):
            self.shared += 1
            return LEFT_OUT
        self.tensors.append(value)
        node: dict[str, Any] = {"t": len(self.tensors) - 1}
        if value.device.type != "cpu":
            node["on"] = str(value.device)
        if value.requires_grad:
            node["grad"] = True
        return node

    def _array(self, value: Any, _depth: int) -> Any:
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8 or not value.dtype.isnative:
            return LEFT_OUT
        if value.size <= 1024:
            return ["a", value.dtype.str, list(value.shape), value.ravel().tolist()]
        if value.nbytes > ARRAY:
            self.too_many.append(f"an array of {value.nbytes >> 20} MiB")
            return {"n": value.nbytes}
        plain = value if value.flags.c_contiguous and value.flags.writeable else value.copy()  # torch warns otherwise
        return ["A", value.dtype.str, list(value.shape), self._own(torch.from_numpy(plain.view(np.uint8).reshape(-1)))]

    def _number(self, value: Any, _depth: int) -> Any:
        return ["n", value.dtype.str, value.item()] if value.dtype.kind in "biuf" else LEFT_OUT

    def _sequence(self, value: Any, depth: int) -> Any:
        kind, size = SEQUENCES[type(value)], len(value)
        more = [value.maxlen] if kind == "d" else []
        if kind in "lud" and PACKED <= size <= LONG and type(value[0]) in (int, float):
            packed = self._packed(value)
            if packed is not None:
                return [kind, packed, *more]
        if (long := self._long(value)) is not None:
            return long
        nodes = [part if type(part) in NUMBERS else self.of(part, depth + 1) for part in value]
        whole = kind in "sz"
        if nodes and (any if whole else all)(node is LEFT_OUT for node in nodes):
            return LEFT_OUT
        return [kind, nodes, *more]

    def _packed(self, value: Any) -> Any:
        """Return a list of nothing but floats, or whole numbers, as a tensor."""
        kinds = {*map(type, value)}
        if len(kinds) > 1:
            return None
        try:
            is_float = kinds == {float}
            numbers = array("d" if is_float else "q", value)
        except OverflowError:
            return None
        return self._own(torch.frombuffer(numbers, dtype=torch.float64 if is_float else torch.int64))

    def _mapping(self, value: Any, depth: int) -> Any:
        if (long := self._long(value)) is not None:
            return long
        pairs = [
            [key if type(key) is str else self._key(key), part if type(part) in NUMBERS else self.of(part, depth + 1)]
            for key, part in value.items()
        ]
        if pairs and (any(key is LEFT_OUT for key, _ in pairs) or all(part is LEFT_OUT for _, part in pairs)):
            return LEFT_OUT
        return [MAPPINGS[type(value)], pairs]

    def _key(self, key: Any) -> Any:
        if type(key) is tuple and all(type(part) in LEAVES for part in key):
            return ["u", list(key)]
        return key if type(key) in LEAVES else LEFT_OUT

    def _attributes(self, held: dict[Any, Any], depth: int) -> dict[str, Any]:
        found = {n: self.of(v, depth + 1) for n, v in [*held.items()] if isinstance(n, str)}
        return {name: node for name, node in found.items() if node is not LEFT_OUT}

    def _object(self, value: Any, depth: int) -> Any:
        held = object.__getattribute__(value, "__dict__")
        if type(held) is not dict or self._long(held) is not None:
            return LEFT_OUT
        return ["o", called(type(value)), self._attributes(held, depth)]

    def _function(self, value: Any, depth: int) -> Any:
        """Return what a function of the program keeps: variables around it, attributes."""
        if not (value.__closure__ or value.__dict__) or value.__code__.co_filename.startswith(OTHERS):
            return LEFT_OUT
        around: dict[str, Any] = {}
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it is empty
                around[name] = cell.cell_contents
        nodes = self._attributes(around, depth), self._attributes(value.__dict__, depth)
        return ["c", *nodes] if any(nodes) else LEFT_OUT

    def _generator(self, value: Any, _depth: int) -> Any:
        kind = type(value)
        if kind is random.Random:
            return ["g", "python", value.getstate()]
        if kind is torch.Generator:
            return ["g", "torch", self._own(value.get_state())]
        if kind is np.random.Generator:
            return ["g", "numpy", self.of(value.bit_generator.state)]
        return ["g", "legacy", self.of(value.get_state(legacy=False))] if kind is np.random.RandomState else LEFT_OUT

    def _stateful(self, value: Any, depth: int) -> Any:
        """Return the state of what gives it by itself; of what wraps something that was given nothing is taken."""
        shared, tensors, left = self.shared, len(self.tensors), self.left
        self.left = STATES
        node = self.of(value.state_dict(), max(0, depth - 2))
        self.left = left
        if self.shared > shared and len(self.tensors) == tensors:
            return LEFT_OUT
        if node is not LEFT_OUT and node[-1]:
            return ["p", called(type(value)), node]
        return self._object(value, depth) if is_programs(type(value).__module__) else LEFT_OUT

    def _module(self, value: nn.Module, depth: int) -> Any:
        """Return weights, buffers, modes and attributes of a module, without those that were given with another."""
        weights: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        modes = ""
        wraps = False
        for path, part in nn.Module.named_modules(value):
            if id(part) in self.given.ids:
                wraps = True
                modes += " "
                continue
            held = vars(part)
            for name, tensor in (*held["_parameters"].items(), *held["_buffers"].items()):
                if type(tensor) in (Tensor, nn.Parameter) and (node := self._tensor(tensor, 0)) is not LEFT_OUT:
                    weights[f"{path}.{name}"] = node
            modes += str(int(part.training))
            if nodes := self._attributes(own(part), max(depth, 2)):
                kept[path] = nodes
        return LEFT_OUT if wraps and not weights else ["m", called(type(value)), weights, kept, modes]


def capturing() -> bool:
    """Tell whether a CUDA graph is being captured: nothing may be waited for then."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


Teller = Callable[[Picture, Any, int], Any]
_tellers: weakref.WeakKeyDictionary[type, Teller | None] = weakref.WeakKeyDictionary()


def _teller(kind: type) -> Teller | None:
    """Return what makes the picture of a value of this type, None where none is made."""
    try:
        return _tellers[kind]
    except KeyError:
        _tellers[kind] = found = _chosen(kind)
        return found


def _chosen(kind: type) -> Teller | None:
    if kind in SEQUENCES or kind in MAPPINGS:
        return Picture._sequence if kind in SEQUENCES else Picture._mapping
    if kind in (Tensor, nn.Parameter):
        return Picture._tensor
    if kind is np.ndarray or issubclass(kind, np.generic):
        return Picture._array if kind is np.ndarray else Picture._number
    if kind is types.FunctionType:
        return Picture._function
    if issubclass(kind, type | types.ModuleType | enum.Enum | BaseException | DataLoader | Dataset | Sampler):
        return None
    if issubclass(kind, nn.Module):
        return Picture._module
    if issubclass(kind, KINDS):
        return Picture._generator
    named = {name for part in kind.__mro__ for name in ("state_dict", "load_state_dict") if name in vars(part)}
    if len(named) == 2:
        return Picture._stateful if kind.__module__.split(".")[0] != "ocrlab" else None
    plain = kind in (types.SimpleNamespace, argparse.Namespace)
    return (
        Picture._object if plain or all(part in BARE or is_programs(part.__module__) for part in kind.__mro__) else None
    )


def is_programs(module: str) -> bool:
    """Tell whether what is defined in a module is of the program itself."""
    if module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and not str(file).startswith(OTHERS) and module.split(".")[0] != "ocrlab"


def own(module: nn.Module) -> dict[str, Any]:
    """Return what a module keeps beside weights and buffers; torch's own keep nothing but what they were made with."""
    kinds = type(module).__mro__
    if kinds[0].__module__.startswith("torch.nn."):
        return {}
    private = any(kind.__name__ == "LightningModule" for kind in kinds)  # it says there where it is at the moment
    return {n: v for n, v in vars(module).items() if n not in STANDARD and not (private and n.startswith("_"))}


def called(kind: type) -> str:
    """Return the name of a type, by which it is known in a replay."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _some(tensor: Tensor) -> Tensor:
    """Return a few values of a tensor, evenly spread."""
    flat = tensor.detach()
    if not flat.is_contiguous():
        flat = flat[(0,) * (flat.ndim - 1)]  # to put all of it in one row would copy it
    flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED)].double()


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
