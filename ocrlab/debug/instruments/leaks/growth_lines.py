"""The lines of a program that make something grow, read from its source, and what bounds the growth there."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

GROWS = {"append", "add", "extend", "insert", "setdefault", "update", "appendleft", "push", "put", "register"}
SHRINKS = {"popitem", "pop", "popleft", "remove", "discard"}
NUMBERS = {"len", "int", "float", "sum", "item", "size", "numel", "time", "monotonic", "perf_counter"}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ORDERED = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


@dataclass(frozen=True)
class Line:
    """One line of a program; `bounded` says why what grows there cannot grow for ever, or is empty."""

    file: str
    number: int
    text: str = ""
    bounded: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


class Statement(NamedTuple):
    """A statement of a program with the nodes around it, the module first."""

    file: str
    node: ast.stmt
    around: tuple[ast.AST, ...]

    @property
    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function that the statement belongs to, None at the top of a module."""
        return next((outer for outer in reversed(self.around) if isinstance(outer, FUNCTIONS)), None)

    def parts(self) -> Iterator[ast.AST]:
        """Yield the statement and its expressions, without the statements inside it."""
        yield self.node
        for child in ast.iter_child_nodes(self.node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from ast.walk(child)

    def growths(self) -> Iterator[tuple[ast.expr, str, ast.AST | None]]:
        """Yield what the statement makes grow, the method, and the value that an assignment adds."""
        for part in self.parts():
            if isinstance(part, ast.Call):
                if isinstance(part.func, ast.Attribute) and part.func.attr in GROWS:
                    yield part.func.value, part.func.attr, None
                elif part.args and _last(part.func) in ("heappush", "append"):
                    yield part.args[0], "append", None
            elif isinstance(part, ast.AugAssign):
                yield part.target, "__iadd__", part.value
            elif isinstance(part, ast.Assign):
                for target in part.targets:
                    if isinstance(target, ast.Subscript):
                        yield target, "__setitem__", part.value
                    elif any(
                        type(value) is type(target) and _last(value) == _last(target) for value in ast.walk(part.value)
                    ):
                        yield target, "=", part.value  # total = total + loss

    def line(self, bounded: str = "") -> Line:
        """Return the line on which the statement begins."""
        return Line(self.file, self.node.lineno, linecache.getline(self.file, self.node.lineno).strip(), bounded)


def growth(name: str, files: Iterable[str], near: str = "") -> list[Line]:
    """Return the statements that make `name` grow: those in the function or class `near`, or else all."""
    matches = _find(files, lambda statement: any(_last(target) == name for target, *_ in statement.growths()))
    inner = near.rpartition(".")[2]
    inside = [match for match in matches if near and inner in {getattr(node, "name", "") for node in match.around}]
    return [match.line(_bound(match, name)) for match in inside or matches]


def local_growth(code: CodeType, container: Any) -> list[Line]:
    """Return the statements of a function that make one of its own variables grow in the way that `container` can.

    Without a container it is a variable that an assignment makes grow, as `total = total + loss` does; sums of numbers
    are left out. Only the source is read, no value of a variable.
    """
    is_module = code.co_name == "<module>"
    variables = {*code.co_varnames, *code.co_cellvars}
    by_method: list[Line] = []
    by_assignment: list[Line] = []
    for statement in _find([code.co_filename], lambda statement: _is_in(statement, code)):
        for target, method, added in statement.growths():
            name, assigns = _variable(target), method in ("=", "__iadd__")
            fits = assigns if container is None else hasattr(container, method)
            if fits and name and (is_module or name in variables) and not _is_number(added, name):
                (by_assignment if assigns else by_method).append(statement.line(_bound(statement, name)))
                break
    return by_method + by_assignment


def assigned(name: str, files: Iterable[str]) -> list[Line]:
    """Return the statements that set an attribute or a variable."""
    targets = lambda node: node.targets if isinstance(node, ast.Assign) else []  # noqa: E731
    matches = _find(files, lambda statement: any(_last(target) == name for target in targets(statement.node)))
    return [match.line() for match in matches]


def calls(names: set[str], files: Iterable[str]) -> list[Line]:
    """Return the statements that call one of `names` (plt.figure -> figure)."""
    is_call = lambda part: isinstance(part, ast.Call) and _last(part.func) in names  # noqa: E731
    return [match.line() for match in _find(files, lambda statement: any(map(is_call, statement.parts())))]


def _find(files: Iterable[str], matches: Callable[[Statement], bool]) -> list[Statement]:
    every = ((file, "".join(linecache.getlines(file))) for file in dict.fromkeys(files))  # also the cells of a notebook
    return [statement for file, source in every for statement in _parsed(file, source) if matches(statement)]


@functools.lru_cache(maxsize=64)
def _parsed(file: str, source: str) -> list[Statement]:
    try:
        return list(_statements(file, (ast.parse(source),)))
    except (SyntaxError, ValueError, RecursionError):
        return []


def _statements(file: str, around: tuple[ast.AST, ...]) -> Iterator[Statement]:
    for node in ast.iter_child_nodes(around[-1]):
        if isinstance(node, ast.stmt) and not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield Statement(file, node, around)
        yield from _statements(file, (*around, node))


def _is_in(statement: Statement, code: CodeType) -> bool:
    """Return whether a statement belongs to the function, or the top of the module, of a code object."""
    function = statement.function
    if function is None:
        return code.co_name == "<module>"
    first = min(node.lineno for node in (function, *function.decorator_list))
    return function.name == code.co_name and first == code.co_firstlineno


def _last(node: ast.AST) -> str:
    """Return the last name of an expression: history of self.history["loss"]."""
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Call):  # history.setdefault("loss", []).append(...)
        return _last(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _variable(node: ast.AST) -> str:
    """Return the variable that an expression is a part of, without attributes: history of history["loss"]."""
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _variable(node.func.value)
    return node.id if isinstance(node, ast.Name) else ""


def _is_number(node: ast.AST | None, name: str) -> bool:
    """Return whether an expression is a number besides the variable `name`: step + 1, count + len(batch)."""
    if isinstance(node, ast.BinOp):
        return _is_number(node.left, name) and _is_number(node.right, name)
    if isinstance(node, ast.Call):
        return _last(node.func) in NUMBERS
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id == name)


def _bound(statement: Statement, name: str) -> str:
    """Return what bounds the growth at a statement: items are removed there, or its size is compared first."""
    around = statement.around
    function = statement.function or around[0]
    owner = next((outer for outer in reversed(around) if isinstance(outer, ast.ClassDef)), function)
    for part in ast.walk(function):
        removed = part.targets if isinstance(part, ast.Delete) else []
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in SHRINKS:
            removed = [part.func.value]
        if any(_last(target) == name for target in removed):
            return f"line {part.lineno} removes items"  # type: ignore[attr-defined]
    for part in ast.walk(owner):
        if isinstance(part, ast.Compare) and _compares_length(part, name):
            return f"line {part.lineno} checks its length"
    return ""


def _compares_length(node: ast.Compare, name: str) -> bool:
    """Return whether len(name) is compared by size, and not only to find out whether anything is there."""
    sides = [node.left, *node.comparators]
    lengths = [side.args for side in sides if isinstance(side, ast.Call) and _last(side.func) == "len"]
    small = any(isinstance(side, ast.Constant) and isinstance(side.value, int) and side.value <= 1 for side in sides)
    is_ordered = any(isinstance(operator, ORDERED) for operator in node.ops)
    return is_ordered and not small and any(args and _last(args[0]) == name for args in lengths)
