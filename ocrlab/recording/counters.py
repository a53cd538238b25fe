"""What a program counts by itself: a step of its own, the best loss so far, the number `enumerate` gives to a batch.

A replay begins the program anew and feeds it from the middle of a walk, where such numbers would begin at 0 again: a
fault that comes at step 212 of the program's own counting would not come again. So a snapshot takes along which numbers
have changed since the first one: variables around the loop, globals of their modules, attributes of `self` and of
modules of the model. They are put back where the program has them then, with the same type.
"""

from __future__ import annotations

import builtins
import ctypes
import dis
import functools
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType, ModuleType
from typing import Any

from torch import nn

from ocrlab.recording import turns

MOST = 16  # frames of the program that are looked at, the innermost first
KINDS = (int, float, bool)
OTHERS = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
PROXIES = sys.version_info >= (3, 13)  # frames give no copies of variables (PEP 667)
ASKING = frozenset({"locals", "vars", "eval", "exec", "f_locals", "currentframe", "_getframe"})  # for its own variables
Numbers = dict[str, dict[str, Any]]


class Counters:
    """Which numbers of a program have changed since it was asked first."""

    def __init__(self) -> None:
        self.first: Numbers | None = None

    def changed(self, models: Sequence[nn.Module]) -> Numbers:
        """Return the numbers, by place and name, that are other ones than the first time, or were not there; none where
        something of the program refuses to be looked at: a snapshot is worth more than they are.
        """
        try:
            now = taken(sys._getframe(1), models)
        except Exception:
            return {}
        if self.first is None:
            self.first = now
        return changed(now, self.first)

    def began(self) -> Numbers:
        """Return the whole numbers of the first time, but for those of modules: from where a program went on."""
        return {
            place: {name: value for name, value in held.items() if type(value) is int}
            for place, held in (self.first or {}).items()
            if not place.startswith("module ")
        }


def taken(frame: FrameType | None, models: Sequence[nn.Module]) -> Numbers:
    """Return the numbers of a program that called what runs in `frame`, by place and name."""
    found = {place: dict(_numbers(held)) for place, held, _ in _places(frame, models)}
    for one in _frames(frame):
        _let_go(one)
    return {place: numbers for place, numbers in found.items() if numbers}


def changed(now: Numbers, first: Numbers) -> Numbers:
    """Return the numbers that are other ones than at first, or were not there."""
    new = {
        p: {n: v for n, v in held.items() if n not in (old := first.get(p, {})) or old[n] != v}
        for p, held in now.items()
    }
    return {place: numbers for place, numbers in new.items() if numbers}


def put(numbers: Mapping[str, Mapping[str, Any]], frame: FrameType | None, models: Sequence[nn.Module]) -> None:
    """Give a program its numbers back; what it does not have yet, or has otherwise, stays."""
    for place, held, write in _places(frame, models) if numbers else ():
        told = numbers.get(place, {})
        fitting = {name: value for name, value in told.items() if name in held and _fits(held[name], value)}
        for name, value in fitting.items():
            turns.move(place, name, held[name], value)
        if fitting:
            write(fitting)
        for name, value in told.items():
            if type(held.get(name)) is turns.COUNT and type(value) is int:
                turns.advance(held[name], value)


def _numbers(held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in held.items():
        if isinstance(name, str) and not name.startswith("__"):
            if type(value) in KINDS:
                yield name, value
            elif type(value) is turns.COUNT and (left := turns.left(value)) is not None:
                yield name, left


def _fits(there: Any, value: Any) -> bool:
    return there is None or type(there) is type(value) or {type(there), type(value)} == {int, float}


def _places(
    frame: FrameType | None, models: Sequence[nn.Module]
) -> Iterator[tuple[str, Mapping[str, Any], Callable[[dict[str, Any]], None]]]:
    """Yield where a program keeps numbers: the place's name, what is there, and what writes into it."""
    seen: set[str] = set()
    for number, model in enumerate(models):
        for name, module in model.named_modules():
            held = {n: v for n, v in _attributes(module).items() if n != "training"}
            yield f"module {number} {name}", held, vars(module).update
    for one in _frames(frame):
        scope, code = one.f_globals, one.f_code
        places: list[tuple[str, Any, Callable[[dict[str, Any]], None]]] = []
        if _has_locals(code):
            places.append((f"locals {code.co_qualname}", one.f_locals, lambda new, one=one: _write(one, new)))  # type: ignore[misc]
            owner = one.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            own = getattr(owner, "__dict__", None)
            if type(own) is dict and not isinstance(owner, nn.Module):
                places.append((f"attributes {code.co_qualname}", _attributes(owner), own.update))
        places.append((f"globals {scope.get('__name__')}", scope, scope.update))
        for place in places:
            if place[0] not in seen:
                seen.add(place[0])
                yield place


def _attributes(owner: Any) -> dict[str, Any]:
    """Return what an object has by itself, and what its class begins with for it."""
    return {**vars(type(owner)), **vars(owner)}


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the program itself: neither ours nor those of libraries."""
    left = MOST
    while frame is not None and left:
        if _is_own(frame):
            left -= 1
            yield frame
        frame = frame.f_back


def _is_own(frame: FrameType) -> bool:
    return not _is_library(frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")))


def _is_library(file: str, name: str) -> bool:
    return file.startswith(OTHERS) or file.startswith("<frozen") or name.split(".")[0] == "ocrlab"


def _has_locals(code: CodeType) -> bool:
    """Tell whether a function's variables may be looked at. Before PEP 667 they are a copy that its frame keeps, and
    who has asked for that before would find other things in it.
    """
    return bool(code.co_flags & CO_OPTIMIZED) and (PROXIES or not _asks(code))


@functools.lru_cache(64)
def _asks(code: CodeType) -> bool:
    """Tell whether a function may ask for its own variables; `model.eval()` does not."""
    found = ASKING.intersection(code.co_names)
    if found != {"eval"}:
        return bool(found)
    return any(
        one.argval == "eval" and one.opname in ("LOAD_GLOBAL", "LOAD_NAME") for one in dis.get_instructions(code)
    )


def _let_go(frame: FrameType) -> None:
    """Empty that copy: a batch, and all that a loss was computed from, would live on in it."""
    if not PROXIES and _has_locals(frame.f_code):
        held = frame.f_locals
        if sys.getrefcount(held) <= 3:  # the frame, our name for it, and the argument
            held.clear()


def _write(frame: FrameType, new: dict[str, Any]) -> None:
    """Write local variables of a function that is running (before PEP 667 they are a copy)."""
    frame.f_locals.update(new)
    if not PROXIES:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


class Enumerate:
    """Takes the place of `enumerate` until the first batch of a replay is fed: who waited for it counts from its place.

    Everything else is numbered as ever.
    """

    fed = -1  # the place of the first batch in its walk, once that was fed
    usual = builtins.enumerate

    def __init__(self, iterable: Iterable[Any], start: int = 0) -> None:
        self.inner, self.count, self.waits = iter(iterable), start, True

    def __iter__(self) -> Enumerate:
        return self

    def __next__(self) -> tuple[int, Any]:
        unfed = self.waits and Enumerate.fed < 0
        item = next(self.inner)
        if unfed and Enumerate.fed >= 0:
            self.count += Enumerate.fed
        self.waits = False
        self.count += 1
        return self.count - 1, item

    def __class_getitem__(cls, item: Any) -> Any:
        return cls.usual[item]  # type: ignore[index]


def listen() -> None:
    """Have whoever enumerates the batches of a replay begin at the place of the first one."""
    Enumerate.fed = -1
    turns.listen(_is_own, lambda: Enumerate.fed, list(_scopes()), enumerate=Enumerate)


def _scopes() -> Iterator[dict[str, Any]]:
    """Yield the globals of the program's own modules, and of those of tqdm that call range for it."""
    for module in list(sys.modules.values()):
        held = module.__dict__ if type(module) is ModuleType else {}
        name, file = str(held.get("__name__")), held.get("__file__")
        bars = name.startswith("tqdm.") and any(bar in held for bar in turns.BARS)
        if bars or name == "__main__" or (type(file) is str and not _is_library(file, name)):
            yield held


def begins(position: int) -> None:
    """Say the place of the first batch in its walk, when it is fed."""
    if Enumerate.fed < 0:
        Enumerate.fed = max(0, position)
        turns.stop()
