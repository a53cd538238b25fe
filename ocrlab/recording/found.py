"""What a training keeps and nobody has named to the recorder: schedulers, averages, other models, generators, lists.

A replay begins the program anew and feeds it from the middle, where all of that would be as it was at the beginning. So
a snapshot takes along what has changed since the first one, of all that is where `counters` looks for numbers:
variables around the loop, globals of their modules, attributes of `self` and of modules of the model. What was not
there at the first snapshot is not there when a replay feeds its first batch either.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any

from torch import nn

from ocrlab.errors import CheckpointError
from ocrlab.recording import counters
from ocrlab.recording.pictures import Given, Picture, is_programs, own
from ocrlab.recording.pictures_back import Back, UnfitError
from ocrlab.recording.pictures_since import differing
from ocrlab.recording.snapshots import Snapshots, weigh

PLAIN = 16 << 20  # bytes that may be found at least; as many as the given models have, where that is more
MOST = 256  # things that are looked at
ELEMENTS = 1 << 15  # of all of them, in one snapshot
LARGE, LOOKS = 256, 4  # a thing of more elements that has not changed in so many looks is looked at ever more seldom
COUNTED = (int, float, bool)  # which `counters` sees to
Place = tuple[str, Mapping[str, Any], Callable[[dict[str, Any]], None]]
Nodes = dict[str, Any]


@dataclass
class Thing:
    """What one name stood for at the first snapshot."""

    mark: bytes
    places: list[tuple[int, int]]
    values: list[Any]
    has_changed: bool = False
    looks: int = 0
    size: int = 0

    def changes(self, now: Picture) -> bool:
        """Tell whether it is another one now, or has been at some snapshot."""
        self.has_changed = self.has_changed or (
            now.mark != self.mark or now.places() != self.places or now.values() != self.values
        )
        return self.has_changed

    def is_quiet(self) -> bool:
        """Tell whether it is not worth a look this time."""
        self.looks += 1
        often = self.looks <= LOOKS or self.looks & (self.looks - 1) == 0
        return not self.has_changed and self.size > LARGE and not often


@dataclass
class Found:
    """The things of a program, and what has changed of them; `seconds` is what looking has taken the last time."""

    first: dict[str, dict[str, Thing]] | None = None
    seconds: float = 0.0
    largest: int = 0
    left_out: list[str] = field(default_factory=list)

    def changed(self, given: Given, room: Callable[[int], Any] | None = None) -> Nodes:
        """Return what has changed since the first time, as a snapshot keeps it; nothing where the program refuses to
        be looked at. `room` raises CheckpointError where so many bytes more have no room in a snapshot.
        """
        began = time.perf_counter()
        self.left_out = []
        try:
            pictures = self._pictures(sys._getframe(1), given)
            return self._kept(pictures, given, room)
        except Exception:
            return {}
        finally:
            for frame in counters._frames(sys._getframe(1)):
                counters._let_go(frame)
            self.seconds = time.perf_counter() - began

    def beside(self, state: Mapping[str, Any], given: Given, snapshots: Snapshots | None) -> Nodes:
        """Return what has changed, to be put beside a state; what looking takes counts as time of the snapshots."""
        room = None if snapshots is None else lambda size: snapshots.room(size + weigh(state))
        nodes = self.changed(given, room)
        if snapshots is not None:
            snapshots.spent += self.seconds
        return {"found": nodes} if nodes else {}

    def _pictures(self, frame: FrameType | None, given: Given) -> dict[tuple[str, str], Picture]:
        """Return the pictures of all that has changed, by place and name."""
        known = self.first
        first: dict[str, dict[str, Thing]] = {}
        left, things = ELEMENTS, MOST
        seen: dict[int, Any] = {}
        found: dict[tuple[str, str], Picture] = {}
        for place, name, value in _values(frame, given, known):
            thing = known[place][name] if known is not None else None
            if thing is not None and thing.is_quiet():
                seen[id(value)] = value
                continue
            picture = Picture(value, given, seen)
            left -= picture.size
            if left < 0 or picture.is_empty:
                continue
            if thing is None and things:
                things -= 1
                thing = Thing(picture.mark, picture.places(), picture.values(), size=picture.size)
                first.setdefault(place, {})[name] = thing
            elif thing is not None and thing.changes(picture):
                picture.node = differing(picture.node, marshal.loads(thing.mark))
                found[place, name] = picture
        if known is None:
            self.first = first
        return found

    def _kept(
        self, pictures: Mapping[tuple[str, str], Picture], given: Given, room: Callable[[int], Any] | None
    ) -> Nodes:
        """Return pictures as a snapshot keeps them: their tensors together, each once; the smallest first."""
        kept: dict[str, dict[str, Any]] = {}
        tensors: list[Any] = []
        numbers: dict[Any, int] = {}
        left = max(PLAIN, sum(t.nbytes for model in given.models for t in nn.Module.parameters(model)))
        size = 0
        for (place, name), picture in sorted(pictures.items(), key=lambda each: each[1].bytes()):
            self.left_out += [f"{name}: {what}" for what in picture.too_many]
            size += picture.bytes()
            if size > left or not self._has_room(size, room):
                size -= picture.bytes()
                self.left_out.append(f"{name}: {picture.bytes() >> 20} MiB")
                continue
            where = []
            for tensor in picture.tensors:
                same = (tensor.data_ptr() or id(tensor), tensor.dtype, tensor.shape, tensor.stride())
                where.append(numbers.setdefault(same, len(tensors)))
                tensors += [tensor] if where[-1] == len(tensors) else []
            kept.setdefault(place, {})[name] = {"text": picture.text, "tensors": where}
        return {"kept": kept, "tensors": tensors, "left_out": self.left_out} if kept or self.left_out else {}

    def _has_room(self, size: int, room: Callable[[int], Any] | None) -> bool:
        if size > self.largest and room is not None:
            try:
                room(size)
            except CheckpointError:
                return False
            self.largest = size
        return True


def _values(
    frame: FrameType | None, given: Given, known: Mapping[str, Mapping[str, Thing]] | None
) -> list[tuple[str, str, Any]]:
    """Return what a program keeps by place and name; functions last, as what they hold has better names elsewhere."""
    values = []
    for place, held, _ in places(frame, given):
        for name in list(held) if known is None else known.get(place, ()):
            if isinstance(name, str) and name in held and not name.startswith("__"):
                values.append((place, name, held[name]))
    return sorted(
        (each for each in values if type(each[2]) not in COUNTED), key=lambda each: type(each[2]) is FunctionType
    )


def put(found: Mapping[str, Any], frame: FrameType | None, given: Given) -> None:
    """Give a program back what was found; what it has otherwise now stays."""
    kept = found.get("kept", {})
    back = Back(found.get("tensors", ()), given)
    for place, held, write in places(frame, given) if kept else ():
        for name, told in kept.get(place, {}).items():
            if name not in held or id(held[name]) in given.ids:
                continue
            with contextlib.suppress(Exception):  # it is another thing now
                now = held[name]
                new = back.value(_numbered(told), now)
                if new is not now and not _fits(now, new):
                    raise UnfitError
                if new is not now:
                    write({name: new})


def _numbered(told: Mapping[str, Any]) -> Any:
    """Return a picture whose tensors are numbered as those of the snapshot."""

    def number(node: dict[str, Any]) -> dict[str, Any]:
        return {**node, "t": told["tensors"][node["t"]]} if type(node.get("t")) is int else node

    return json.loads(told["text"], object_hook=number)


def _fits(now: Any, new: Any) -> bool:
    return now is None or new is None or type(now) is type(new) or {type(now), type(new)} == {int, float}


def places(frame: FrameType | None, given: Given) -> Iterator[Place]:
    """Yield where a program keeps things: the place's name, what is there, and what writes into it."""
    if given.callbacks:
        yield "callbacks", given.callbacks, lambda _: None
    for place, held, write in counters._places(frame, ()):
        if not place.startswith("attributes ") or is_programs(str(held.get("__module__"))):
            yield place, held, write
    for number, model in enumerate(given.models):
        for path, module in nn.Module.named_modules(model):
            if held := own(module):
                yield f"module {number} {path}", held, vars(module).update


def names(state: Mapping[str, Any]) -> Iterable[str]:
    """Return what was found and is not in a state, in words."""
    return state.get("found", {}).get("left_out", ())
