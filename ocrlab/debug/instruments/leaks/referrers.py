"""What holds an object: from the object up through gc's referrers to something that has a name in the program."""

from __future__ import annotations

import gc
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ocrlab.debug.instruments.leaks.growth_lines import OURS, class_files, is_own
from ocrlab.debug.instruments.leaks.object_sizes import CONTAINERS

TRIED = 60  # objects whose referrers are looked up; each takes some milliseconds
INSIDE = ("torch.", "_pytest", "importlib", "ocrlab.debug.instruments")
HOOK_TABLES = ("_forward_hooks", "_backward_hooks", "_forward_pre_hooks")
NAMELESS = (*CONTAINERS, types.MethodType, types.FunctionType, types.CodeType)


@dataclass(frozen=True)
class Holder:
    """What holds an object: `text` for a person, the last `name` in it, the container that grows, where to look."""

    text: str
    name: str
    container: Any = None
    files: tuple[str, ...] = ()
    near: str = ""  # the function or class that the name belongs to
    kind: str = "variable"  # or attribute, global, closure, hook, figures, cache
    bounded: str = ""


class Search:
    """Frames and globals of one moment, in which the holders of many objects can be looked up.

    `is_old` tells of an id whether the object existed before what leaks was created; None: not known.
    """

    def __init__(self, is_old: Callable[[int], bool] | None = None, skip: Iterable[Any] = ()) -> None:
        self.is_old = is_old
        self.skip = {id(thing) for thing in skip}
        self.modules = {id(vars(m)): name for name, m in list(sys.modules.items()) if isinstance(m, types.ModuleType)}
        self.variables: dict[int, tuple[str, str, str]] = {}  # by id of the value: file, function, name
        files = []
        for frame in _user_frames():
            code = frame.f_code
            files.append(code.co_filename)
            for name, value in _variables(frame):
                if not isinstance(value, types.ModuleType | type | int | float | str | bool | None):
                    self.variables.setdefault(id(value), (code.co_filename, code.co_qualname, name))
        self.files = tuple(dict.fromkeys(files))

    def holder(self, thing: Any) -> Holder | None:
        """Return what holds `thing`, or None where no name is reached."""
        waiting: deque[tuple[Any, Any, Any]] = deque([(thing, None, None)])  # object, what it holds, what grows
        visited = {id(thing)}
        for _ in range(TRIED):
            if not waiting:
                return None
            child, grandchild, container = waiting.popleft()
            if id(child) in self.variables:
                file, function, name = self.variables[id(child)]
                where = "the main program" if function == "<module>" else f"{function}()"
                return Holder(f"variable `{name}` of {where}", name, container, (file, *self.files), function)
            referrers = gc.get_referrers(child)
            for owner in referrers:
                if id(owner) in visited or owner is waiting or owner is referrers or self._is_ours(owner):
                    continue
                visited.add(id(owner))
                if isinstance(child, dict) and (getattr(owner, "__dict__", None) is child or _is_class(owner, child)):
                    name = _key(child, grandchild)  # its attributes, which Python made a dict of
                    if name is not None and (container is not None or self._existed(owner)):
                        return self._attribute_holder(owner, str(name), None if container is child else container)
                    waiting.append((owner, child, container))
                    continue
                grown = container if container is not None else self._growing(owner)
                holder = self._named_holder(owner, child, grown)
                if holder is not None:
                    return holder
                waiting.append((owner, child, grown))
            del referrers
        return None

    def _growing(self, owner: Any) -> Any:
        """Return a container if it may be the one that grows: it existed before what it holds."""
        return owner if issubclass(type(owner), (list, dict, set, deque)) and self._existed(owner) else None

    def _existed(self, thing: Any) -> bool:
        return self.is_old is None or self.is_old(id(thing))

    def _is_ours(self, thing: Any) -> bool:
        if id(thing) in self.skip or thing is self.variables or thing is self.__dict__:
            return True
        if isinstance(thing, types.FrameType):
            return thing.f_code.co_filename.startswith(OURS)
        kind = type(thing)
        return kind.__module__.startswith("ocrlab.debug.instruments") or kind.__name__ == "deque_iterator"

    def _named_holder(self, owner: Any, child: Any, container: Any) -> Holder | None:
        """Return the holder if `owner` gives its child a name; a container or a dict of attributes does not."""
        if id(owner) in self.modules:
            name, module = str(_key(owner, child) or "__"), self.modules[id(owner)]
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            text = f"`{name}` of module {module}"
            return None if name[:2] == "__" else Holder(text, name, container, (file, *self.files), kind="global")
        if isinstance(owner, types.CellType):
            return self._closure_holder(owner, container)
        if isinstance(owner, types.FrameType):
            name, code = next((name for name, value in _variables(owner) if value is child), ""), owner.f_code
            text, files = f"variable `{name}` of {code.co_qualname}()", (code.co_filename, *self.files)
            return Holder(text, name, container, files, code.co_qualname) if name else None
        if type(owner).__name__ == "_lru_cache_wrapper":
            return _cache_holder(owner, child)
        kind = owner if isinstance(owner, type) else type(owner)
        if isinstance(owner, NAMELESS) or (kind.__module__.startswith(INSIDE) and not issubclass(kind, nn.Module)):
            return None
        name = _key(getattr(owner, "__dict__", {}), child)
        if name is None or (container is None and not self._existed(owner)):
            return None  # an object created with what it holds: its own holder is wanted
        return self._attribute_holder(owner, str(name), container)

    def _closure_holder(self, cell: types.CellType, container: Any) -> Holder | None:
        functions = gc.get_referrers(cell)
        functions += [outer for inner in functions if isinstance(inner, tuple) for outer in gc.get_referrers(inner)]
        for function in functions:
            if not isinstance(function, types.FunctionType):
                continue
            for name, content in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if content is cell:
                    hooked = _hooked_module(function)
                    text = f"`{name}`, which {'the hook ' if hooked else ''}{function.__qualname__}() keeps"
                    text += f" on {hooked}" if hooked else ""
                    files = (function.__code__.co_filename, *self.files)
                    return Holder(text, name, container, files, function.__qualname__, "hook" if hooked else "closure")
        return None

    def _attribute_holder(self, owner: Any, name: str, container: Any) -> Holder:
        kind = owner if isinstance(owner, type) else type(owner)
        if kind.__name__ == "Gcf":
            return Holder("matplotlib's list of open figures", name, container, self.files, kind="figures")
        text, files = f"`{name}` of {kind.__qualname__}", (*class_files(kind), *self.files)
        return Holder(text, name, container, files, kind.__qualname__, "hook" if name in HOOK_TABLES else "attribute")


def _cache_holder(wrapper: Any, child: Any) -> Holder:
    function, most = wrapper.__wrapped__, wrapper.cache_info().maxsize
    code, name = getattr(function, "__code__", None), getattr(function, "__name__", "")
    bounded = f"functools.lru_cache keeps {most} at most" if most is not None else ""
    text = f"the cache of {getattr(function, '__qualname__', 'a function')}()"
    return Holder(text, name, child, (code.co_filename,) if code else (), kind="cache", bounded=bounded)


def _user_frames() -> Iterator[types.FrameType]:
    """Yield the frames of the user's own code, of every thread, innermost first."""
    for top in list(sys._current_frames().values()):
        frame: types.FrameType | None = top
        while frame is not None:
            if is_own(frame.f_code.co_filename):
                yield frame
            frame = frame.f_back


def _variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a frame, without keeping them alive.

    Up to Python 3.12 `f_locals` of a function is a copy that stays with the frame; it is emptied again.
    """
    names = frame.f_locals
    values = [(name, value) for name, value in list(names.items()) if name[:2] != "__"]
    if type(names) is dict and names is not frame.f_globals and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        names.clear()
    return values


def _key(names: Any, child: Any) -> Any:
    return next((key for key, value in list(names.items()) if value is child), None)


def _is_class(thing: Any, names: dict[Any, Any]) -> bool:
    """Tell whether a dict is that of a class, whose own `__dict__` is only a view of it."""
    return isinstance(thing, type) and names.get("__module__") == thing.__module__ and "__dict__" in names


def _hooked_module(function: Any) -> str:
    """Return the class of the module on which a function is a hook, or nothing."""
    for table in gc.get_referrers(function):
        if isinstance(table, dict) and table and all(isinstance(key, int) for key in table):
            for owner in gc.get_referrers(table):
                for module in (owner, *(gc.get_referrers(owner) if isinstance(owner, dict) else ())):
                    if issubclass(type(module), nn.Module):
                        return type(module).__name__
    return ""
