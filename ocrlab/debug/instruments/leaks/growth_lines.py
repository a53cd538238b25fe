"""The line of a program that makes a container grow, read from its source, and whether anything bounds it there."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

GROWS = {"append", "add", "extend", "insert", "setdefault", "update", "appendleft", "push", "put", "register"}
SHRINKS = {"popitem", "pop", "popleft", "remove", "discard"}
BOUNDS = re.compile(r"max|limit|cap|size|budget|bytes|room|quota|bound", re.IGNORECASE)
LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib")})
OURS = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


@dataclass(frozen=True)
class Line:
    """One line of a program; `bounded` says why what grows there cannot grow for ever, or is empty."""

    file: str
    number: int
    text: str = ""
    function: str = ""
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
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or (bool(file) and is_own(str(file)))


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
    """Return the statements that make what is called `name` grow: those in the function or class `near`, else all."""
    lines = [line for file in dict.fromkeys(files) for line in _of_file(file, name)]
    inside = [line for line in lines if near and (line.function == near or line.function.startswith(f"{near}."))]
    return inside or lines


def assigned(name: str, files: Iterable[str]) -> list[Line]:
    """Return the statements that set an attribute or a variable, without those that make it grow."""
    lines = []
    for file in dict.fromkeys(files):
        tree = _tree(file)
        for function, node in _statements(tree) if tree else ():
            if isinstance(node, ast.Assign) and any(_last(target) == name for target in node.targets):
                lines.append(_line(file, node, function, ""))
    return lines


def calls(names: set[str], files: Iterable[str]) -> list[Line]:
    """Return the statements that call one of `names` (plt.figure -> figure)."""
    lines = []
    for file in dict.fromkeys(files):
        tree = _tree(file)
        for function, node in _statements(tree) if tree else ():
            if any(isinstance(part, ast.Call) and _last(part.func) in names for part in _own_parts(node)):
                lines.append(_line(file, node, function, ""))
    return lines


def _of_file(file: str, name: str) -> list[Line]:
    tree = _tree(file)
    if tree is None:
        return []
    statements = [
        (function, node) for function, node in _statements(tree) if any(_grows(p, name) for p in _own_parts(node))
    ]
    return [_line(file, node, function, _bounded(tree, node, name)) for function, node in statements]


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _tree(file: str) -> ast.Module | None:
    source = "".join(linecache.getlines(file))  # also knows the cells of a notebook
    return _parsed(source) if source else None


def _statements(tree: ast.AST, function: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every statement with the qualified name of the function it stands in."""
    for node in ast.iter_child_nodes(tree):
        inner = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            mark = ".<locals>." if function and not function[-1:].isupper() and _is_function(tree) else "."
            inner = f"{function}{mark}{node.name}" if function else node.name
        elif isinstance(node, ast.stmt):
            yield function, node
        yield from _statements(node, inner)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _own_parts(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement without the statements that stand inside it."""
    yield node
    waiting = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt | ast.ExceptHandler)]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [c for c in ast.iter_child_nodes(part) if not isinstance(c, ast.stmt | ast.ExceptHandler)]


def _last(node: ast.AST) -> str:
    """Return the last name of an expression: history of self.history["loss"]."""
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Call):  # history.setdefault("loss", []).append(...)
        return _last(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _grows(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GROWS:
        return _last(node.func.value) == name
    if isinstance(node, ast.Call) and node.args and _last(node.func) in ("heappush", "append"):
        return _last(node.args[0]) == name
    if isinstance(node, ast.AugAssign):
        return _last(node.target) == name
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _last(target) == name:
                return True
            if _last(target) == name and any(
                _last(part) == name for part in ast.walk(node.value) if isinstance(part, ast.Name | ast.Attribute)
            ):
                return True
    return False


def _line(file: str, node: Any, function: str, bounded: str) -> Line:
    return Line(file, node.lineno, linecache.getline(file, node.lineno).strip(), function, bounded)


def _bounded(tree: ast.Module, node: ast.stmt, name: str) -> str:
    """Return what bounds the growth at a statement: it makes room there, or it looks at the size first."""
    around = _around(tree, node)
    scope = next((n for n in reversed(around) if _is_function(n)), tree)
    owner = next((n for n in reversed(around) if isinstance(n, ast.ClassDef)), scope)
    for part in ast.walk(scope):
        shrinks = isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in SHRINKS
        if shrinks and _last(part.func.value) == name:  # type: ignore[attr-defined]
            return f"line {part.lineno} takes out what is too much"  # type: ignore[attr-defined]
        if isinstance(part, ast.Delete) and any(_last(t) == name for t in part.targets):
            return f"line {part.lineno} takes out what is too much"
    for part in ast.walk(owner):
        if isinstance(part, ast.Compare) and _compares_length(part, name):
            return f"line {part.lineno} looks at its length"
    for outer in around:
        if isinstance(outer, ast.If | ast.While) and _compares_bound(outer.test):
            return f"line {outer.lineno} asks whether there is room"
    return ""


def _around(tree: ast.AST, node: ast.AST) -> list[ast.AST]:
    """Return the nodes around one, outermost first."""
    for child in ast.iter_child_nodes(tree):
        if child is node:
            return [tree]
        inner = _around(child, node)
        if inner:
            return [tree, *inner]
    return []


def _compares_length(node: ast.Compare, name: str) -> bool:
    if not any(isinstance(op, ast.Gt | ast.GtE | ast.Lt | ast.LtE) for op in node.ops):
        return False
    sides = [node.left, *node.comparators]
    lengths = [side for side in sides if isinstance(side, ast.Call) and _last(side.func) == "len"]
    mine = any(side.args and _last(side.args[0]) == name for side in lengths)
    small = any(isinstance(s, ast.Constant) and isinstance(s.value, int) and s.value <= 1 for s in sides)
    return mine and not small


def _compares_bound(test: ast.AST) -> bool:
    for node in ast.walk(test):
        ordered = isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Gt | ast.GtE | ast.Lt | ast.LtE) for op in node.ops
        )
        if ordered and any(BOUNDS.search(_last(s)) for s in ast.walk(node) if isinstance(s, ast.Name | ast.Attribute)):
            return True
    return False
