"""What the source of a program says about a line of it: in which `except` block it stands, and which one guards it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LARGEST = 2 << 20  # bytes of a source file that is read
BROAD = {"Exception", "BaseException", ""}
LEAVES = re.compile(r"\b(?:sys\.exit|os\._exit|exit|quit)\(|\breturn\b|SystemExit|\bbreak\b")
MUTATES = {"append", "add", "extend", "update", "insert", "setdefault"}


@dataclass(frozen=True)
class Handler:
    """A try statement: its line, that of the `except` meant, what that catches, and the source of both bodies."""

    file: str
    line: int
    at: int
    catches: tuple[str, ...]
    guarded: str
    does: str
    makes: frozenset[str] = field(default_factory=frozenset)  # names that the guarded body binds or fills

    @property
    def broad(self) -> bool:
        """Tell whether it takes any error."""
        return any(name in BROAD for name in self.catches)


def inside(file: str, line: int) -> Handler | None:
    """Return the innermost `except` block that a line stands in; None where it is in none, or there is no source."""
    around = [
        (node, clause)
        for node in _tries(file)
        for clause in node.handlers
        if clause.lineno <= line <= (clause.end_lineno or 0)
    ]
    return _handler(file, *max(around, key=lambda pair: pair[1].lineno)) if around else None


def guarding(file: str, line: int, kinds: Sequence[str]) -> Handler | None:
    """Return the innermost `except` that takes an error of a line, whose classes have the names `kinds`."""
    around = [node for node in _tries(file) if node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)]
    for node in sorted(around, key=lambda node: -node.lineno):
        for clause in node.handlers:
            if set(_catches(clause)) & {*kinds, ""}:
                return _handler(file, node, clause)
    return None


def silent(file: str) -> list[Handler]:
    """Return every `except` of a file that takes any error and goes on."""
    handlers = [
        _handler(file, node, clause) for node in _tries(file) for clause in node.handlers if not _raises(clause)
    ]
    return [handler for handler in handlers if handler.broad and not LEAVES.search(handler.does)]


def names(file: str, line: int) -> set[str]:
    """Return the names that the statement in a line reads."""
    statements = [node for node in ast.walk(_tree(file)) if isinstance(node, ast.stmt) and node.lineno <= line]
    statements = [node for node in statements if line <= (node.end_lineno or 0)]
    if not statements:
        return set()
    innermost = max(statements, key=lambda node: (node.lineno, -(node.end_lineno or 0)))
    parts: list[ast.AST] = [innermost]
    if isinstance(innermost, ast.For | ast.While | ast.If | ast.With):  # of a compound statement only its head
        parts = [part for part in ast.iter_child_nodes(innermost) if not isinstance(part, ast.stmt)]
    return {node_.id for part in parts for node_ in ast.walk(part) if isinstance(node_, ast.Name)}


def source(file: str, line: int) -> str:
    """Return a line of a file; empty where there is none."""
    lines = _text(file).split("\n")
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def _handler(file: str, node: ast.Try, clause: ast.ExceptHandler) -> Handler:
    lines = _text(file).split("\n")
    guarded = "\n".join(lines[node.body[0].lineno - 1 : node.body[-1].end_lineno])
    does = "\n".join(lines[clause.lineno - 1 : clause.end_lineno])
    makes = frozenset(name for part in node.body for name in _makes(part))
    return Handler(file, node.lineno, clause.lineno, tuple(_catches(clause)), guarded, does, makes)


def _raises(clause: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for part in clause.body for node in ast.walk(part))


def _makes(part: ast.AST) -> Iterator[str]:
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            yield node.value.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATES:
            if isinstance(node.func.value, ast.Name):
                yield node.func.value.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _catches(clause: ast.ExceptHandler) -> list[str]:
    if clause.type is None:
        return [""]
    parts = clause.type.elts if isinstance(clause.type, ast.Tuple) else [clause.type]
    attributes = [part.attr for part in parts if isinstance(part, ast.Attribute)]
    return attributes + [part.id for part in parts if isinstance(part, ast.Name)]


def _tries(file: str) -> list[ast.Try]:
    return [node for node in ast.walk(_tree(file)) if isinstance(node, ast.Try)]


@functools.lru_cache(maxsize=32)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(_text(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


@functools.lru_cache(maxsize=32)
def _text(file: str) -> str:
    try:
        path = Path(file)
        return path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size < LARGEST else ""
    except (OSError, ValueError):
        return ""
