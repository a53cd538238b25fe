"""The line of a program that makes a container grow, read from its source, and whether anything bounds it there."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

GROWS = {"append", "add", "extend", "insert", "setdefault", "update", "appendleft", "push", "put", "register"}
SHRINKS = {"popitem", "pop", "popleft", "remove", "discard"}
BOUNDS = re.compile(r"max|limit|cap|size|budget|bytes|room|quota|bound", re.IGNORECASE)
LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib")})
OURS = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ORDERED = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)
Statement = tuple[ast.stmt, tuple[ast.AST, ...]]  # with the nodes around it, the module first


@dataclass(frozen=True)
class Line:
    """One line of a program; `bounded` says why what grows there cannot grow for ever, or is empty."""

    file: str
    number: int
    text: str = ""
    bounded: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@functools.cache
def is_own(file: str) -> bool:
    """Tell whether a file is the user's: neither Python's, nor an installed package's, nor this instrument's."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return file in ("<string>", "<stdin>") or file.startswith("<isolated")
    place = os.path.realpath(file)
    return not place.startswith((*LIBRARIES, OURS)) and "site-packages" not in place and "dist-packages" not in place


@functools.cache
def is_own_class(kind: Any) -> bool:
    """Tell whether a class is defined in the user's code."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (bool(file) and is_own(str(file)))


def class_files(kind: type) -> tuple[str, ...]:
    """Return the user's files in which a class and its bases are defined; if none is the user's, the class's own."""
    files: list[str] = []
    for base in inspect.getmro(kind):
        with contextlib.suppress(TypeError, OSError):
            files.append(inspect.getfile(base))
    return tuple(file for file in files if is_own(file)) or tuple(files[:1])


def stack(most: int = 8) -> tuple[str, ...]:
    """Return the user's lines of this thread, innermost first: `file:line function`."""
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < most:
        code = frame.f_code
        if is_own(code.co_filename):
            lines.append(f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return tuple(lines)


def growth(name: str, files: Iterable[str], near: str = "") -> list[Line]:
    """Return the statements that make `name` grow: those in the function or class `near`, or else all."""
    matches = list(_matches(files, lambda part: _grows(part, name)))
    inner = near.rpartition(".")[2]
    inside = [m for m in matches if near and inner in {getattr(node, "name", "") for node in m[2]}]
    return [_line(file, node, _bound(node, around, name)) for file, node, around in inside or matches]


def assigned(name: str, files: Iterable[str]) -> list[Line]:
    """Return the statements that set an attribute or a variable."""

    def sets(part: ast.AST) -> bool:
        return isinstance(part, ast.Assign) and any(_last(target) == name for target in part.targets)

    return [_line(file, node) for file, node, _ in _matches(files, sets)]


def calls(names: set[str], files: Iterable[str]) -> list[Line]:
    """Return the statements that call one of `names` (plt.figure -> figure)."""

    def is_call(part: ast.AST) -> bool:
        return isinstance(part, ast.Call) and _last(part.func) in names

    return [_line(file, node) for file, node, _ in _matches(files, is_call)]


def _matches(
    files: Iterable[str], predicate: Callable[[ast.AST], bool]
) -> Iterator[tuple[str, ast.stmt, tuple[ast.AST, ...]]]:
    for file in dict.fromkeys(files):
        for node, around in _parsed("".join(linecache.getlines(file))):  # linecache also has the cells of a notebook
            if any(predicate(part) for part in _own_parts(node)):
                yield file, node, around


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> list[Statement]:
    try:
        return list(_statements((ast.parse(source),)))
    except (SyntaxError, ValueError, RecursionError):
        return []


def _statements(around: tuple[ast.AST, ...]) -> Iterator[Statement]:
    for node in ast.iter_child_nodes(around[-1]):
        if isinstance(node, ast.stmt) and not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node, around
        yield from _statements((*around, node))


def _own_parts(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its expressions, without the statements inside it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from ast.walk(child)


def _line(file: str, node: ast.stmt, bounded: str = "") -> Line:
    return Line(file, node.lineno, linecache.getline(file, node.lineno).strip(), bounded)


def _last(node: ast.AST) -> str:
    """Return the last name of an expression: history of self.history["loss"]."""
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Call):  # history.setdefault("loss", []).append(...)
        return _last(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_method_call(node: ast.AST, methods: set[str], name: str) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods
    return is_method and _last(node.func.value) == name  # type: ignore[attr-defined]


def _grows(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call):
        is_function = bool(node.args) and _last(node.func) in ("heappush", "append") and _last(node.args[0]) == name
        return is_function or _is_method_call(node, GROWS, name)
    if isinstance(node, ast.AugAssign):
        return _last(node.target) == name
    if isinstance(node, ast.Assign):
        targets = [target for target in node.targets if _last(target) == name]
        values = [part for part in ast.walk(node.value) if isinstance(part, ast.Name | ast.Attribute)]
        uses_itself = any(_last(part) == name for part in values)
        return any(uses_itself or isinstance(target, ast.Subscript) for target in targets)
    return False


def _bound(node: ast.stmt, around: tuple[ast.AST, ...], name: str) -> str:
    """Return what bounds the growth at a statement: items are removed there, or its size is compared first."""
    function = next((outer for outer in reversed(around) if isinstance(outer, FUNCTIONS)), around[0])
    owner = next((outer for outer in reversed(around) if isinstance(outer, ast.ClassDef)), function)
    for part in ast.walk(function):
        deleted = part.targets if isinstance(part, ast.Delete) else []
        if _is_method_call(part, SHRINKS, name) or any(_last(target) == name for target in deleted):
            return f"line {part.lineno} takes out what is too much"  # type: ignore[attr-defined]
    for part in ast.walk(owner):
        if isinstance(part, ast.Compare) and _compares_length(part, name):
            return f"line {part.lineno} looks at its length"
    for outer in around:
        if isinstance(outer, ast.If | ast.While) and any(_compares_limit(part) for part in ast.walk(outer.test)):
            return f"line {outer.lineno} asks whether there is room"
    return ""


def _compares_length(node: ast.Compare, name: str) -> bool:
    """Tell whether len(name) is compared by size, and not only to find out whether anything is there."""
    sides = [node.left, *node.comparators]
    lengths = [side.args for side in sides if isinstance(side, ast.Call) and _last(side.func) == "len"]
    small = any(isinstance(side, ast.Constant) and isinstance(side.value, int) and side.value <= 1 for side in sides)
    is_ordered = any(isinstance(operator, ORDERED) for operator in node.ops)
    return is_ordered and not small and any(args and _last(args[0]) == name for args in lengths)


def _compares_limit(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not any(isinstance(operator, ORDERED) for operator in node.ops):
        return False
    return any(BOUNDS.search(_last(part)) for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute))
