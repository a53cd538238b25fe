"""What holds an object, from the object up through gc's referrers to something that has a name; and how large it is.

Names are those of modules, classes, instances and closures. What only a running function holds is found in the source
of that function: the values of its variables are never read.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ocrlab.debug.instruments.leaks import growth_lines
from ocrlab.debug.instruments.leaks.growth_lines import Line
from ocrlab.debug.instruments.memory.storage_tracker import stored_bytes
from ocrlab.debug.instruments.user_code import INSTRUMENTS, is_own, own_frames

CONTAINERS = (list, dict, set, deque, tuple, frozenset)
MOST_ITEMS = 64  # of a container whose size is taken
MOST_SEARCHED = 60  # objects whose referrers are looked up; each takes some milliseconds
INSIDE = ("torch.", "_pytest", "importlib", "ocrlab.debug.instruments")
HOOK_TABLES = ("_forward_hooks", "_backward_hooks", "_forward_pre_hooks")
GROWING = (list, dict, set, deque)
NAMELESS = (*CONTAINERS, types.MethodType, types.FunctionType, types.CodeType)
NEW_FIGURE = {"figure", "subplots", "subplot_mosaic"}


@dataclass(frozen=True)
class Holder:
    """What holds an object: `text` for a person, the container that grows, and the line that lets it grow.

    `bounded` says why it cannot grow for ever, or is empty.
    """

    text: str
    kind: str  # global, attribute, closure, hook, figures, cache, local
    container: Any = None
    line: Line | None = None
    bounded: str = ""


class HolderSearch:
    """The modules and the user's functions of one moment, in which the holders of many objects can be looked up.

    `existed` returns for an id whether the object is older than the leak. `hooked` are modules whose
    hooks are called so, `skip` objects that belong to the search itself.
    """

    def __init__(
        self,
        existed: Callable[[int], bool] = lambda _: True,
        skip: Iterable[Any] = (),
        hooked: Iterable[nn.Module] = (),
    ) -> None:
        self.existed = existed
        self.skip = {id(thing) for thing in skip}
        self.modules = {id(vars(m)): name for name, m in list(sys.modules.items()) if isinstance(m, types.ModuleType)}
        tables = [(getattr(module, name, {}), type(module).__name__) for module in hooked for name in HOOK_TABLES]
        self.hooks = {id(hook): module for table, module in tables for hook in table.values()}
        self.codes = [frame.f_code for top in sys._current_frames().values() for frame in own_frames(top)]
        self.files = [code.co_filename for code in self.codes]

    def holder(self, thing: Any, container: Any = None) -> Holder | None:
        """Return what holds `thing`, or None where no name is reached; `container` is what grows, if that is known."""
        waiting: deque[tuple[Any, Any, Any]] = deque([(thing, None, container)])  # object, what it holds, what grows
        visited = {id(thing)}
        roots: list[Any] = []  # what grows, of objects that nothing holds but a running function
        for _ in range(MOST_SEARCHED):
            if not waiting:
                break
            child, grandchild, grows = waiting.popleft()
            referrers = gc.get_referrers(child)
            owners = [owner for owner in referrers if owner is not waiting and not self._is_ours(owner)]
            if not owners and (child is not thing or grows is not None):
                roots.append(grows if grows is not None else child if isinstance(child, GROWING) else None)
            for owner in owners:
                if id(owner) in visited:
                    continue
                visited.add(id(owner))
                if isinstance(child, dict) and (getattr(owner, "__dict__", None) is child or _is_class(owner, child)):
                    name = _key(child, grandchild)  # its attributes, which Python made a dict of
                    grown = None if grows is child else grows
                    if name is not None and (grows is not None or self.existed(id(owner))):
                        return self._attribute_holder(owner, str(name), grown)
                    waiting.append((owner, child, grows))
                    continue
                grown = grows
                if grown is None and issubclass(type(owner), GROWING) and self.existed(id(owner)):
                    grown = owner
                if holder := self._named_holder(owner, child, grown):
                    return holder
                waiting.append((owner, child, grown))
            del referrers, owners
        return next(filter(None, map(self.local_holder, roots)), None)

    def _is_ours(self, thing: Any) -> bool:
        if id(thing) in self.skip or thing is self.__dict__:
            return True
        if code := _code(thing):
            return code.co_filename.startswith(INSTRUMENTS)
        kind = type(thing)
        return kind.__module__.startswith("ocrlab.debug.instruments") or kind.__name__ == "deque_iterator"

    def _named_holder(self, owner: Any, child: Any, container: Any) -> Holder | None:
        """Return the holder if `owner` gives its child a name; a container or a dict of attributes does not."""
        if id(owner) in self.modules:
            name, module = str(_key(owner, child) or "__"), self.modules[id(owner)]
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            text = f"`{name}` of module {module}"
            return None if name[:2] == "__" else self._build(text, "global", name, container, (file,))
        if isinstance(owner, types.CellType):
            return self._closure_holder(owner, container)
        if code := _code(owner):
            return self.local_holder(container, [code])
        if type(owner).__name__ == "_lru_cache_wrapper":
            function, most = owner.__wrapped__, owner.cache_info().maxsize
            bounded = f"functools.lru_cache keeps {most} at most" if most is not None else ""
            text = f"the cache of {getattr(function, '__qualname__', 'a function')}()"
            return Holder(text, "cache", child, bounded=bounded)
        kind = owner if isinstance(owner, type) else type(owner)
        if isinstance(owner, NAMELESS) or (kind.__module__.startswith(INSIDE) and not issubclass(kind, nn.Module)):
            return None
        name = _key(getattr(owner, "__dict__", {}), child)
        if name is None or (container is None and not self.existed(id(owner))):
            return None  # an object created with what it holds: its own holder is wanted
        return self._attribute_holder(owner, str(name), container)

    def _closure_holder(self, cell: types.CellType, container: Any) -> Holder | None:
        closures = [thing for thing in gc.get_referrers(cell) if isinstance(thing, tuple)]
        for function in gc.get_referrers(*closures) if closures else ():
            if isinstance(function, types.FunctionType) and any(function.__closure__ is each for each in closures):
                code, module = function.__code__, self.hooks.get(id(function))
                name = code.co_freevars[list(map(id, function.__closure__ or ())).index(id(cell))]
                keeps = (
                    f"the hook {function.__qualname__}() keeps on {module}"
                    if module
                    else f"{function.__qualname__}() keeps"
                )
                kind, text = "hook" if module else "closure", f"`{name}`, which {keeps}"
                return self._build(text, kind, name, container, (code.co_filename,), function.__qualname__)
        return None

    def _attribute_holder(self, owner: Any, name: str, container: Any) -> Holder:
        kind = owner if isinstance(owner, type) else type(owner)
        if kind.__name__ == "Gcf":
            line = next(iter(growth_lines.calls(NEW_FIGURE, self.files)), None)
            return Holder("matplotlib's list of open figures", "figures", container, line)
        text, what = f"`{name}` of {kind.__qualname__}", "hook" if name in HOOK_TABLES else "attribute"
        return self._build(text, what, name, container, class_files(kind), kind.__qualname__)

    def local_holder(self, container: Any, codes: Iterable[types.CodeType] = ()) -> Holder | None:
        """Return the running function, the innermost, whose source lets a variable of its own grow as `container` can.

        Without a container it is a variable that an assignment makes grow.
        """
        for code in codes or self.codes:
            if lines := growth_lines.local_growth(code, container):
                function = "the main program" if code.co_name == "<module>" else f"{code.co_qualname}()"
                return _holder(f"a local variable of {function}", "local", container, lines[0])
        return None

    def _build(self, text: str, kind: str, name: str, container: Any, files: Iterable[str], near: str = "") -> Holder:
        files = (*files, *self.files)
        lines = growth_lines.growth(name, files, near)
        lines = lines or ([] if container is not None else growth_lines.assigned(name, files))
        return _holder(text, kind, container, next(iter(lines), None))


def _holder(text: str, kind: str, container: Any, line: Line | None) -> Holder:
    most = getattr(container, "maxlen", None)
    bounded = f"its length is {most} at most" if most else f"{line}: {line.bounded}" if line and line.bounded else ""
    return Holder(text, kind, container, line, bounded)


def class_files(kind: type) -> tuple[str, ...]:
    """Return the user's files in which a class and its bases are defined; if none is the user's, the class's own."""
    files: list[str] = []
    for base in inspect.getmro(kind):
        with contextlib.suppress(TypeError, OSError):
            files.append(inspect.getfile(base))
    return tuple(file for file in files if is_own(file)) or tuple(files[:1])


def _code(thing: Any) -> types.CodeType | None:
    """Return the code of a generator that waits, or of a function that an exception left; None for anything else."""
    if isinstance(thing, types.GeneratorType):
        return thing.gi_code
    return thing.f_code if isinstance(thing, types.FrameType) else None


def _key(names: Any, child: Any) -> Any:
    return next((key for key, value in list(names.items()) if value is child), None)


def _is_class(thing: Any, names: dict[Any, Any]) -> bool:
    """Return whether a dict is that of a class, whose own `__dict__` is only a view of it."""
    return isinstance(thing, type) and names.get("__module__") == thing.__module__ and "__dict__" in names


def object_bytes(value: Any, depth: int = 4) -> float:
    """Return the bytes of an object with what it holds, `depth` levels deep."""
    if isinstance(value, Tensor):
        return stored_bytes(value)
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return float(size)
    if type(value).__module__.startswith("PIL.") and hasattr(value, "getbands"):
        return float(value.size[0] * value.size[1] * len(value.getbands()))
    if hasattr(value, "canvas") and hasattr(value.canvas, "get_width_height"):  # the manager of a matplotlib figure
        width, height = value.canvas.get_width_height()
        return float(width * height * 4)
    total = float(sys.getsizeof(value, 0))
    if depth and isinstance(value, CONTAINERS):
        items = list(value.values() if isinstance(value, dict) else value)[:MOST_ITEMS]
        total += mean_bytes(items, depth - 1) * len(value)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type):
        total += sum(object_bytes(item, depth - 1) for item in list(vars(value).values())[:MOST_ITEMS])
    return total


def mean_bytes(items: list[Any], depth: int = 4) -> float:
    """Return the mean size of some objects in bytes."""
    return sum(object_bytes(item, depth) for item in items) / max(1, len(items))
