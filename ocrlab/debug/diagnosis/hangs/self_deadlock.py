"""A lock that a thread waits for though it has taken it itself, by the source of the frames that it is in.

Looked for are `with lock:` around a call that comes to `with lock:` again, `lock.acquire()` behind another one of the
same function, and `lock.acquire()` in a file that never lets the lock go. A lock is known by how it is written there.
That it is waited for says that it is none which a thread may take twice (threading.RLock).
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.hardware.processes.stack_dumps import short
from ocrlab.hardware.processes.stack_types import Frame

LARGEST = 1 << 20  # bytes of a source
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def explain_self_deadlock(frames: Sequence[Frame]) -> str:
    """Return in words where a thread has taken the lock that it waits for; '' where its source does not tell."""
    own = stack_patterns.own([frame for frame in frames if frame.line])
    if own is None or (tree := _parsed(own.file)) is None:
        return ""
    function = _around(tree, own.line)
    taken = [*_taken(function)]
    outer = [
        frame
        for frame in stack_patterns.since_copied(frames)[frames.index(own) + 1 :]
        if not stack_patterns.is_library(frame)
    ]
    for name, at in reversed(taken):
        if not at.lineno <= own.line <= (at.lineno if isinstance(at, ast.With) else _end(at)):
            continue
        before = [earlier for other, earlier in taken if other == name and _place(earlier) < _place(at)]
        if any(
            _has(function, earlier, at) and not _freed(tree, name, _place(earlier), _place(at)) for earlier in before
        ):
            return f"it has taken {name} already, a few lines above or in the same line"
        for frame in outer:
            if name in _locks_taken_in(frame):
                return f"it has taken {name} already, in {stack_patterns.place(frame)}"
        elsewhere = len(_of(tree, "acquire", name)) > len(_of(function, "acquire", name))  # by a parent, it may be
        if isinstance(at, ast.Call) and not elsewhere and not _freed(tree, name, (0, 0), (1 << 30, 0)):
            return f"nothing in {short(own.file)} lets {name} go, once it is taken"
    return ""


def _parsed(file: str) -> ast.Module | None:
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        if (path := Path(file)).is_file() and path.stat().st_size <= LARGEST:
            return ast.parse(path.read_bytes())
    return None


def _around(tree: ast.Module, line: int) -> ast.AST:
    """Return the innermost function that a line is in, else the whole file."""
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node.lineno <= line <= _end(node)]
    return max(functions, key=lambda node: node.lineno, default=tree)


def _taken(function: ast.AST) -> Iterator[tuple[str, ast.With | ast.Call]]:
    """Yield each lock that a function takes, as it is written, and the statement or the call that does."""
    for node in _inside(function):
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.context_expr, ast.Name | ast.Attribute | ast.Subscript):
                    yield ast.unparse(item.context_expr), node
        elif isinstance(node, ast.Call) and _calls(node, "acquire") and not node.args and not node.keywords:
            yield ast.unparse(node.func.value), node  # type: ignore[attr-defined]


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function, and not in one that is defined there."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, FUNCTIONS | ast.ClassDef):
            yield from _inside(child)


def _locks_taken_in(frame: Frame) -> list[str]:
    """Return the locks that a frame further out has taken when it called."""
    if (tree := _parsed(frame.file)) is None:
        return []
    function, here = _around(tree, frame.line), ast.Pass(lineno=frame.line, col_offset=1 << 30)
    return [
        name
        for name, at in _taken(function)
        if _has(function, at, here) and not _freed(tree, name, _place(at), (frame.line, 0))
    ]


def _has(function: ast.AST, taken: ast.With | ast.Call, at: ast.AST) -> bool:
    """Tell whether a lock that was taken is held at another place: in its `with`, or behind it in the same block."""
    if isinstance(taken, ast.With):
        return any(_spans(statement, at) for statement in taken.body)
    for node in (function, *_inside(function)):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for i, statement in enumerate(block if isinstance(block, list) else ()):
                if isinstance(statement, ast.Expr) and statement.value is taken:
                    return any(_spans(other, at) for other in block[i:])  # type: ignore[index]
    return False


def _spans(statement: ast.stmt, at: ast.AST) -> bool:
    return statement.lineno <= at.lineno <= _end(statement)  # type: ignore[attr-defined]


def _freed(tree: ast.Module, name: str, first: tuple[int, int], last: tuple[int, int]) -> bool:
    """Tell whether a lock is let go between two places of a file."""
    return any(first <= _place(call) <= last for call in _of(tree, "release", name))


def _of(where: ast.AST, method: str, name: str) -> list[ast.Call]:
    """Return the calls of a method of whatever is called as a lock is at its end: `self.lock`, `other.lock`."""
    calls = [node for node in ast.walk(where) if isinstance(node, ast.Call) and _calls(node, method)]
    last = name.rpartition(".")[2]
    return [call for call in calls if ast.unparse(call.func.value).rpartition(".")[2] == last]  # type: ignore[attr-defined]


def _calls(node: ast.Call, method: str) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == method


def _place(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", None) or node.lineno)  # type: ignore[attr-defined]
