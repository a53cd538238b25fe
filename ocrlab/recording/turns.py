"""The `for` loops of a program go on where they were: `range`, `itertools.count`, and a `zip` of them with the batches.

A replay begins the program anew, and its loops with it. Their variables are put back when the first batch is fed
(counters.py), but the next turn of `for epoch in range(20)` would be turn 1 again. So, until then, a range in a loop's
header in the program itself is one that can be moved: behind the number that its variable has in the record.
"""

from __future__ import annotations

import abc
import builtins
import dis
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

ENDS = ("RETURN", "POP_TOP", "YIELD", "JUMP", "POP_JUMP", "RAISE", "BEFORE_WITH", "DELETE", "STORE")  # no header
FILLING = ("CACHE", "EXTENDED_ARG")
FAR = 1 << 61  # turns of a count
BARS = ("trange", "tnrange")  # functions of tqdm that call range for their caller
Names = tuple[str, ...]
RANGE, COUNT, ZIP = builtins.range, itertools.count, builtins.zip
is_own: Callable[[FrameType], bool] = lambda _frame: False  # noqa: E731  # whether a frame is of the program itself
living: weakref.WeakSet[Turns] = weakref.WeakSet()
replaced: list[tuple[dict[str, Any], str, Any]] = []  # names of modules, and what they were; this list for nothing


@functools.cache
def bound(code: CodeType, at: int) -> Names:
    """Return the names that a `for` loop binds in whose header the call at an offset is made; none where it is in none.

    The header may have been given a name before: `bar = tqdm(range(20))`.
    """
    steps = [one for one in dis.get_instructions(code) if one.offset > at and one.opname not in FILLING]
    for number, step in enumerate(steps[:-1]):
        if step.opname == "FOR_ITER":
            return _stored(steps[number + 1 :])
        if step.opname == "GET_ITER" and steps[number + 1].opname != "FOR_ITER":
            return ()  # of a comprehension
        if step.opname in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL"):
            return _later(steps[number + 1 :], step.argval)
        if step.opname.startswith(ENDS):
            return ()
    return ()


def _later(steps: Sequence[dis.Instruction], name: str) -> Names:
    """Return the names that the first loop over a variable binds."""
    for number, step in enumerate(steps[:-2]):
        loads = step.opname.startswith("LOAD_") and step.argval == name
        if loads and [one.opname for one in steps[number + 1 : number + 3]] == ["GET_ITER", "FOR_ITER"]:
            return _stored(steps[number + 3 :])
    return ()


def _stored(steps: Sequence[dis.Instruction]) -> Names:
    """Return the variables into which values go first, as a loop does with each of its items."""
    names: list[str] = []
    for step in steps:
        if step.opname.startswith("UNPACK"):
            continue
        if step.opname in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"):
            names.append(str(step.argval))
        elif step.opname.startswith("STORE_FAST_"):  # two in one: Python 3.13
            names += [str(one) for one in step.argval][: 2 if step.opname.endswith("STORE_FAST") else 1]
            if not step.opname.endswith("STORE_FAST"):
                break
        else:
            break
    return tuple(names)


class Header(NamedTuple):
    """The place, as in counters.py, the name of the loop's variable, and the code that the loop is in."""

    place: str
    name: str
    code: CodeType


def _header(frame: FrameType | None) -> Header | None:
    """Return the loop in whose header a call in this frame is made."""
    try:
        if frame is not None and frame.f_code.co_name in BARS:
            frame = frame.f_back
        if frame is None or not is_own(frame):
            return None
        names = bound(frame.f_code, frame.f_lasti)
        if not names:
            return None
        is_function = bool(frame.f_code.co_flags & 1)  # CO_OPTIMIZED
        place = f"locals {frame.f_code.co_qualname}" if is_function else f"globals {frame.f_globals.get('__name__')}"
        return Header(place, names[0], frame.f_code)
    except Exception:  # what cannot be told stays as it is
        return None


class Turns:
    """An iterator over a range, or a count, that can be moved; but not if a function of the program is in between."""

    def __init__(self, items: Any, header: Header) -> None:
        self.items, self.header, self.taken = items, header, 0  # a range; of a count one without an end
        self.inner = iter(items)
        self.direct: bool | None = None
        living.add(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.direct is None:
            frame = sys._getframe(1)
            self.direct = frame.f_code is self.header.code or not is_own(frame)
        item = next(self.inner)
        self.taken += 1
        return item

    def __length_hint__(self) -> int:
        return max(0, len(self.items) - self.taken)

    def move(self, number: Any) -> None:
        """Go on behind a number that is one of them."""
        if self.taken and type(number) is int and number in self.items:
            self.taken = self.items.index(number) + 1
            self.inner = iter(self.items[self.taken :])

    def ahead(self, item: Any, turns: int) -> Any:
        """Return what comes some turns behind an item, which was the last one, and go on behind it; the item itself
        where there are not so many.
        """
        at = self.items.index(item) + turns
        if at >= len(self.items):
            return item
        self.move(self.items[at])
        return self.items[at]


class Kind(abc.ABCMeta):
    """Makes both kinds of range one, also for who looks one of them up (numba compiles what it finds in a table)."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is RANGE

    def __hash__(cls) -> int:
        return hash(RANGE)

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, RANGE) or type(one) is cls

    def __subclasscheck__(cls, kind: type) -> bool:
        return kind is cls or issubclass(kind, RANGE)


class Range(Sequence[int], metaclass=Kind):
    """Takes the place of `range`; in the header of a loop of the program's its iterator can be moved."""

    range: Any
    header: Header

    def __new__(cls, *args: Any) -> Any:
        header = _header(sys._getframe(1))
        if header is None:
            return RANGE(*args)
        one = super().__new__(cls)
        one.range, one.header = RANGE(*args), header
        return one

    def __getattr__(self, name: str) -> Any:  # start, stop, step
        if name in ("range", "header") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.range, name)

    def __iter__(self) -> Iterator[int]:
        return Turns(self.range, self.header)

    def __len__(self) -> int:
        return len(self.range)

    def __getitem__(self, index: Any) -> Any:
        return self.range[index]

    def __contains__(self, item: Any) -> bool:
        return item in self.range

    def __reversed__(self) -> Iterator[int]:
        return Turns(self.range[::-1], self.header)

    def __eq__(self, other: Any) -> bool:
        return bool(self.range == (other.range if type(other) is Range else other))

    def __hash__(self) -> int:
        return hash(self.range)

    def __repr__(self) -> str:
        return repr(self.range)

    def __reduce__(self) -> Any:
        return self.range.__reduce__()


def count(start: Any = 0, step: Any = 1) -> Any:
    """Take the place of `itertools.count`."""
    header = _header(sys._getframe(1)) if type(start) is type(step) is int and step else None
    return COUNT(start, step) if header is None else Turns(RANGE(start, start + FAR * step, step), header)


class Zip:
    """Takes the place of `zip`: what counts beside the first batch that is fed counts from its place."""

    fed: Callable[[], int] = lambda: -1  # the place of the first batch in its walk, once that was fed

    def __init__(self, *parts: Any, **strict: Any) -> None:
        self.parts = [iter(part) for part in parts]
        self.inner, self.waits = ZIP(*self.parts, **strict), True

    def __iter__(self) -> Zip:
        return self

    def __next__(self) -> Any:
        unfed = self.waits and Zip.fed() < 0
        items = next(self.inner)
        self.waits = False
        if unfed and Zip.fed() >= 0:
            pairs = ZIP(self.parts, items)
            items = tuple(one.ahead(item, Zip.fed()) if type(one) is Turns else item for one, item in pairs)
        return items


def listen(
    own: Callable[[FrameType], bool], fed: Callable[[], int], scopes: Sequence[dict[str, Any]], **more: Any
) -> None:
    """Have the loops that begin from now on move, until `stop`, by other names in the modules of the program.

    `more` are further ones. Nobody else sees them: what compiles, pickles or looks one up finds Python's own.
    """
    global is_own
    is_own, Zip.fed = own, staticmethod(fed)  # type: ignore[assignment]
    names = {"range": Range, "zip": Zip, **more}
    for scope in scopes:
        counts = {name: count for name, value in scope.items() if value is COUNT}
        for name, value in {**{n: v for n, v in names.items() if n not in scope}, **counts}.items():
            replaced.append((scope, name, scope.get(name, replaced)))
            scope[name] = value
    itertools.count = count  # type: ignore[misc, assignment]


def stop() -> None:
    """Take everything back."""
    itertools.count = COUNT  # type: ignore[misc]
    while replaced:
        scope, name, before = replaced.pop()
        if before is replaced:
            scope.pop(name, None)
        else:
            scope[name] = before


def move(place: str, name: str, now: Any, recorded: Any) -> None:
    """Have the loop that has given a variable what it is now go on behind what it is in the record."""
    for turns in list(living):
        known = turns.direct and (turns.header.place, turns.header.name) == (place, name)
        if known and turns.taken and turns.items[turns.taken - 1] == now:
            turns.move(recorded)


def left(value: Any) -> int | None:
    """Return what a count will give next, which it goes on to give; None where it is of no whole numbers."""
    text = repr(value)[len("count(") : -1].split(",")[0]
    return int(text) if text.lstrip("-").isdigit() else None


def advance(value: Any, to: int) -> None:
    """Have a count go on with a number that it comes to."""
    now, _, step = repr(value)[len("count(") : -1].partition(", ")
    turns, rest = divmod(to - int(now), int(step or 1))
    if turns > 0 and not rest:
        next(itertools.islice(value, turns - 1, None), None)
