"""Who keeps an object alive: from the object up through gc's referrers to something that has a name in the program."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ocrlab.debug.instruments.leaks.growth_lines import OURS, is_own

DEPTH = 12  # referrers upwards
TRIED = 60  # objects whose referrers are looked for; each takes some milliseconds
CONTAINERS = (list, dict, set, deque, tuple, frozenset)
INSIDE = ("torch.", "_pytest", "importlib", "ocrlab.debug.instruments")


@dataclass(frozen=True)
class Holder:
    """What keeps an object: `words` for a person, the last `name` in it, the container that grows, where to look."""

    words: str
    name: str
    container: Any = None
    files: tuple[str, ...] = ()
    near: str = ""  # the function that the name belongs to
    kind: str = "variable"  # or attribute, global, closure, hook, figures, cache
    bounded: str = ""
    path: tuple[str, ...] = field(default_factory=tuple)


class Search:
    """One look around: frames, globals and what is ours are found once, then many objects can be asked for."""

    def __init__(self, old: Any = None, skip: Iterable[Any] = ()) -> None:
        self.old = old  # tells of an id whether the object was there before what leaks was made; None: not known
        self.skip = {id(thing) for thing in skip}
        self.modules = {id(vars(m)): name for name, m in list(sys.modules.items()) if isinstance(m, types.ModuleType)}
        self.locals = dict(_locals())
        self.files = tuple(dict.fromkeys(file for file, _ in _frames()))

    def holder(self, thing: Any) -> Holder | None:
        """Return who keeps `thing`, or None where no name is found."""
        ways: deque[tuple[Any, Any, Any]] = deque([(thing, None, None)])
        visited, tried = {id(thing)}, 0
        while ways and tried < TRIED:
            now, before, container = ways.popleft()
            named = self._local(now, container)
            if named is not None:
                return named
            tried += 1
            referrers = gc.get_referrers(now)
            for other in referrers:
                if id(other) in visited or other is ways or other is referrers or self._ours(other):
                    continue
                visited.add(id(other))
                if isinstance(now, dict) and (getattr(other, "__dict__", None) is now or _is_class_of(other, now)):
                    name = _key(now, before)  # its attributes, which Python made a dict of
                    if name is None or not (container is not None or self._was_there(other)):
                        ways.append((other, now, container))
                        continue
                    return self.of_object(other, str(name), None if container is now else container)
                grown = container if container is not None else self._grown(other)
                holder = self._named(other, now, grown)
                if holder is not None:
                    return holder
                ways.append((other, now, grown))
            del referrers
        return None

    def _grown(self, thing: Any) -> Any:
        """Return a container if it may be the one that grows: it was there before what it holds."""
        if not issubclass(type(thing), (list, dict, set, deque)):
            return None
        return thing if self._was_there(thing) else None

    def _was_there(self, thing: Any) -> bool:
        return self.old is None or bool(self.old(id(thing)))

    def _ours(self, thing: Any) -> bool:
        if id(thing) in self.skip or thing is self.locals or thing is self.__dict__ or isinstance(thing, Search):
            return True
        if isinstance(thing, types.FrameType):
            return thing.f_code.co_filename.startswith(OURS)
        return type(thing).__module__.startswith("ocrlab.debug.instruments") or type(thing).__name__ in (
            "deque_iterator",
        )

    def _local(self, thing: Any, container: Any) -> Holder | None:
        """Return the running function one of whose variables is `thing`."""
        for frame_file, function, name in self.locals.get(id(thing), ()):
            where = "the main program" if function == "<module>" else f"{function}()"
            return Holder(f"variable `{name}` of {where}", name, container, (frame_file, *self.files), function)
        return None

    def _named(self, other: Any, child: Any, container: Any) -> Holder | None:
        if id(other) in self.modules:
            name = _key(other, child)
            module = sys.modules.get(self.modules[id(other)])
            if name and str(name)[:2] != "__":
                file = getattr(module, "__file__", None) or ""
                where = self.modules[id(other)]
                return Holder(f"`{name}` of module {where}", name, container, (file, *self.files), kind="global")
            return None
        if isinstance(other, types.CellType):
            return self._closure(other, container)
        if isinstance(other, types.FrameType):
            name = next((n for n, v in _values(other) if v is child), "")
            code = other.f_code
            words = f"variable `{name}` of {code.co_qualname}()"
            return Holder(words, name, container, (code.co_filename, *self.files), code.co_qualname) if name else None
        if type(other).__name__ == "_lru_cache_wrapper":
            return self._cached(other, child)
        if isinstance(other, dict):
            return None  # of an instance, or a plain one: its referrer tells
        return self._attribute(other, child, container)

    def _closure(self, cell: types.CellType, container: Any) -> Holder | None:
        for function in gc.get_referrers(cell):
            inner = function if isinstance(function, types.FunctionType) else None
            for outer in gc.get_referrers(function) if inner is None and isinstance(function, tuple) else ():
                if isinstance(outer, types.FunctionType):
                    inner = outer
            if inner is None or inner.__closure__ is None:
                continue
            for name, content in zip(inner.__code__.co_freevars, inner.__closure__, strict=True):
                if content is cell:
                    hooked = _hooked(inner)
                    words = f"`{name}`, which {'the hook ' if hooked else ''}{inner.__qualname__}() keeps"
                    words += f" on {hooked}" if hooked else ""
                    files = (inner.__code__.co_filename, *self.files)
                    kind = "hook" if hooked else "closure"
                    return Holder(words, name, container, files, inner.__qualname__, kind)
        return None

    def _cached(self, wrapper: Any, child: Any) -> Holder:
        function = wrapper.__wrapped__
        most = wrapper.cache_info().maxsize
        code = getattr(function, "__code__", None)
        bounded = f"functools.lru_cache keeps {most} at most" if most is not None else ""
        words = f"the cache of {getattr(function, '__qualname__', 'a function')}()"
        files = (code.co_filename,) if code else ()
        return Holder(words, getattr(function, "__name__", ""), child, files, kind="cache", bounded=bounded)

    def _attribute(self, other: Any, child: Any, container: Any) -> Holder | None:
        """Return an instance or class that has `child`, or its dict, as an attribute; containers have no names."""
        if isinstance(other, (*CONTAINERS, types.MethodType, types.FunctionType, types.CodeType)):
            return None
        kind = other if isinstance(other, type) else type(other)
        if kind.__module__.startswith(INSIDE) and not issubclass(kind, nn.Module):
            return None
        try:
            attributes = vars(other)
        except TypeError:
            return None
        name = next((n for n, value in list(attributes.items()) if value is child), None)
        if name is None or (container is None and not self._was_there(other)):
            return None  # an object made with what it holds: who holds that?
        return self.of_object(other, str(name), container)

    def of_object(self, other: Any, name: str, container: Any) -> Holder:
        """Return the holder that is an attribute of an object, a class or a module."""
        kind = other if isinstance(other, type) else type(other)
        if kind.__name__ == "Gcf":
            return Holder("matplotlib's list of open figures", name, container, self.files, kind="figures")
        files: list[str] = []
        for base in inspect.getmro(kind):
            with contextlib.suppress(TypeError, OSError):
                files.append(inspect.getfile(base))
        own = tuple(file for file in files if is_own(file)) or tuple(files[:1])
        hooked = name in ("_forward_hooks", "_backward_hooks", "_forward_pre_hooks")
        return Holder(
            f"`{name}` of {kind.__qualname__}", name, container, (*own, *self.files), kind.__qualname__,
            "hook" if hooked else "attribute",
        )  # fmt: skip


def _frames() -> Iterator[tuple[str, types.FrameType]]:
    """Yield the frames of the user's own code, of every thread, innermost first."""
    for top in list(sys._current_frames().values()):
        frame: types.FrameType | None = top
        while frame is not None:
            if is_own(frame.f_code.co_filename):
                yield frame.f_code.co_filename, frame
            frame = frame.f_back


def _locals() -> dict[int, list[tuple[str, str, str]]]:
    """Return (file, function, name) of every variable of every running function of the user, by the value's id."""
    variables: dict[int, list[tuple[str, str, str]]] = {}
    for file, frame in _frames():
        for name, value in _values(frame):
            if not isinstance(value, types.ModuleType | type | int | float | str | bool | None):
                variables.setdefault(id(value), []).append((file, frame.f_code.co_qualname, name))
    return variables


def _values(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a frame, leaving nothing behind that would keep them alive.

    Up to Python 3.12 `f_locals` of a function is a copy that stays with the frame; it is emptied again.
    """
    names = frame.f_locals
    values = [(name, value) for name, value in list(names.items()) if name[:2] != "__"]
    if type(names) is dict and names is not frame.f_globals and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        names.clear()
    return values


def _key(names: dict[Any, Any], child: Any) -> Any:
    return next((key for key, value in list(names.items()) if value is child), None)


def _is_class_of(thing: Any, names: dict[Any, Any]) -> bool:
    """Tell whether a dict is that of a class, whose own `__dict__` is only a view of it."""
    return isinstance(thing, type) and names.get("__module__") == thing.__module__ and "__dict__" in names


def _hooked(function: Any) -> str:
    """Return the module whose hook a function is, by its class, or nothing."""
    for table in gc.get_referrers(function):
        if isinstance(table, dict) and table and all(isinstance(key, int) for key in table):
            for owner in gc.get_referrers(table):
                module = owner if issubclass(type(owner), nn.Module) else None
                for holder in gc.get_referrers(owner) if isinstance(owner, dict) else ():
                    module = holder if issubclass(type(holder), nn.Module) else module
                if module is not None:
                    return type(module).__name__
    return ""
