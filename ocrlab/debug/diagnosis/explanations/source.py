"""The source of a program as a syntax tree, asked where a name, an attribute or an argument comes from."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Binding:
    """Where a name gets its value: `value` is the expression, `index` the position in an unpacked tuple."""

    kind: str  # assign, augmented, for, with, parameter
    value: ast.expr | None
    line: int
    index: int | None = None


class Source:
    """One file or notebook cell; a text that is not Python has an empty tree."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.lines = text.splitlines()

    @classmethod
    def of_cell(cls, text: str, file: str) -> Source:
        """Return a notebook cell's source with its magics and shell lines blank."""
        lines = text.splitlines()
        if lines and lines[0].startswith("%%"):
            lines = [""] * len(lines)
        return cls("\n".join("" if line.lstrip().startswith(("%", "!", "?")) else line for line in lines), file)

    @property
    def name(self) -> str:
        """`train.py`, or `cell 3`."""
        return Path(self.file).name

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module([], [])

    def line(self, number: int) -> str:
        """Return a line by its number from 1; empty outside of the file."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def code(self, node: ast.AST | None) -> str:
        """Return the source text of a node on one line."""
        text = ast.get_source_segment(self.text, node) if node is not None else None
        return " ".join(text.split()) if text else ""

    def place(self, node: ast.AST | int) -> str:
        """`train.py:12`, or `cell 3, line 2`."""
        line = node if isinstance(node, int) else getattr(node, "lineno", 0)
        return f"{self.name}, line {line}" if self.name.startswith("cell ") else f"{self.name}:{line}"

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node, in no certain order."""
        return list(ast.walk(self.tree))

    def enclosing(self, line: int, *kinds: type[ast.AST]) -> ast.AST | None:
        """Return the innermost node of some kinds around a line."""
        inside = [
            node
            for node in self.nodes
            if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or node.lineno)  # type: ignore[attr-defined]
        ]
        return max(inside, key=_inwards, default=None)

    def function_at(self, line: int) -> ast.FunctionDef | None:
        """Return the innermost function around a line."""
        node = self.enclosing(line, ast.FunctionDef, ast.AsyncFunctionDef)
        return node if isinstance(node, ast.FunctionDef) else None

    def class_at(self, line: int) -> ast.ClassDef | None:
        """Return the innermost class around a line."""
        node = self.enclosing(line, ast.ClassDef)
        return node if isinstance(node, ast.ClassDef) else None

    def statement_at(self, line: int) -> ast.stmt | None:
        """Return the innermost statement around a line that does something."""
        return next((node for node in self.statements_at(line) if not isinstance(node, ast.Pass)), None)

    def statements_at(self, line: int) -> list[ast.stmt]:
        """Return the innermost statement around a line, and those around it that begin in the same line."""
        inside = [n for n in self.nodes if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)]
        inside.sort(key=_inwards, reverse=True)
        return [node for node in inside if node.lineno == inside[0].lineno]

    def classes(self, name: str) -> Iterator[ast.ClassDef]:
        """Yield the classes of a name."""
        yield from (node for node in self.nodes if isinstance(node, ast.ClassDef) and node.name == name)

    def functions(self, name: str) -> Iterator[ast.FunctionDef]:
        """Yield the functions and methods of a name."""
        yield from (node for node in self.nodes if isinstance(node, ast.FunctionDef) and node.name == name)

    def calls(self, *names: str, inside: ast.AST | None = None) -> Iterator[ast.Call]:
        """Yield the calls of functions, methods or classes by the last part of their name, in order of their lines."""
        nodes = self.nodes if inside is None else ast.walk(inside)
        calls = [node for node in nodes if isinstance(node, ast.Call) and last_name(node.func) in names]
        yield from sorted(calls, key=lambda call: (call.lineno, call.col_offset))

    def attribute(self, owner: ast.ClassDef, name: str) -> Binding | None:
        """Return where a class assigns `self.<name>`; the first place."""
        for node in ast.walk(owner):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                    if dotted(part) == f"self.{name}":
                        return _attribute_binding(target, part, node.value, node.lineno)
        return None

    def binding(self, name: str, line: int) -> Binding | None:
        """Return the last place before a line where a name got its value: in its function, else at the top level."""
        function = self.function_at(line)
        if function is not None:
            inside = self._bindings(function, name)
            before = [binding for binding in inside if binding.line < line or binding.kind == "for"]
            if before or inside:
                return max(before or inside, key=lambda binding: binding.line)
            if name in parameters(function):
                return Binding("parameter", None, function.lineno, None)
        outside = [
            b for b in self._bindings(self.tree, name) if function is not None or b.line < line or b.kind == "for"
        ]
        return max(outside, key=lambda binding: binding.line, default=None)

    def _bindings(self, scope: ast.AST, name: str) -> list[Binding]:
        bindings: list[Binding] = []
        for node in own_nodes(scope):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    bindings += _targets(target, node.value, name, "assign", node.lineno)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                bindings += _targets(node.target, node.value, name, "assign", node.lineno)
            elif isinstance(node, ast.AugAssign):
                bindings += _targets(node.target, node.value, name, "augmented", node.lineno)
            elif isinstance(node, ast.For):
                bindings += _targets(node.target, node.iter, name, "for", node.lineno)
            elif isinstance(node, ast.comprehension):
                bindings += _targets(node.target, node.iter, name, "for", node.iter.lineno)
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                bindings += _targets(node.optional_vars, node.context_expr, name, "with", node.context_expr.lineno)
            elif isinstance(node, ast.NamedExpr):
                bindings += _targets(node.target, node.value, name, "assign", node.lineno)
        return bindings


def _inwards(node: ast.AST) -> tuple[int, int, int]:
    return node.lineno, -(node.end_lineno or 0), node.col_offset  # type: ignore[attr-defined]


def _attribute_binding(target: ast.expr, part: ast.expr, value: ast.expr, line: int) -> Binding:
    if not isinstance(target, ast.Tuple | ast.List):
        return Binding("assign", value, line)
    index = target.elts.index(part)
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        return Binding("assign", value.elts[index], line)
    return Binding("assign", value, line, index)


def _targets(target: ast.expr, value: ast.expr, name: str, kind: str, line: int) -> list[Binding]:
    if isinstance(target, ast.Name):
        return [Binding(kind, value, line)] if target.id == name else []
    if not isinstance(target, ast.Tuple | ast.List):
        return []
    pairs = enumerate(target.elts)
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) and kind == "assign":
        return [b for index, part in pairs for b in _targets(part, value.elts[index], name, kind, line)]
    enumerated = value if isinstance(value, ast.Call) and last_name(value.func) == "enumerate" else None
    if kind == "for" and enumerated is not None and enumerated.args and len(target.elts) == 2:
        return _targets(target.elts[1], enumerated.args[0], name, kind, line)
    return [
        Binding(kind, value, line, index) for index, part in pairs if isinstance(part, ast.Name) and part.id == name
    ]


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, class or module without those of functions and classes inside of it."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def returns(function: ast.AST) -> list[ast.Return]:
    """Return the `return` statements of a function that have a value."""
    return [node for node in own_nodes(function) if isinstance(node, ast.Return) and node.value is not None]


def dotted(node: ast.AST | None) -> str:
    """Return `a.b.c` of a name or attribute; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def root(node: ast.AST | None) -> str:
    """Return `a` of `a`, `a.b.c`, `a[0].b` and `a.f(x).b`; empty for anything else."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST | None) -> str:
    """Return `c` of `a.b.c` and of `f(x).c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters in order."""
    passed = function.args
    return [argument.arg for argument in [*passed.posonlyargs, *passed.args, *passed.kwonlyargs]]


def default_value(function: ast.FunctionDef, name: str) -> ast.expr | None:
    """Return the default of a parameter."""
    passed = function.args
    positional = [*passed.posonlyargs, *passed.args]
    defaults: dict[str, ast.expr | None] = dict(
        zip([a.arg for a in positional[len(positional) - len(passed.defaults) :]], passed.defaults, strict=True)
    )
    defaults |= {a.arg: value for a, value in zip(passed.kwonlyargs, passed.kw_defaults, strict=True)}
    return defaults.get(name)


def argument(call: ast.Call, position: int, *keywords: str) -> ast.expr | None:
    """Return an argument of a call, by its position or by one of its names."""
    for keyword in call.keywords:
        if keyword.arg in keywords:
            return keyword.value
    starred = any(isinstance(value, ast.Starred) for value in call.args[: position + 1])
    return call.args[position] if 0 <= position < len(call.args) and not starred else None


def constant(node: ast.AST | None) -> object:
    """Return the value of a literal number or text, also a negative one; else None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) else None
    return node.value if isinstance(node, ast.Constant) else None


def why_none(source: Source, function: ast.FunctionDef, owner: ast.ClassDef | None = None) -> str:
    """Say on which path a function returns None, or which method of its class does that for it; '' where none is."""
    parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    bare = next((n for n in own_nodes(function) if isinstance(n, ast.Return) and _is_none(n.value)), None)
    handlers = [n for n in own_nodes(function) if isinstance(n, ast.ExceptHandler)]
    if bare is not None:
        at: ast.AST = bare
        while isinstance(at, ast.stmt | ast.ExceptHandler) and not isinstance(
            at, ast.If | ast.ExceptHandler | ast.FunctionDef
        ):
            at = parents[at]
        text = f": `{source.code(bare)}` ({source.place(bare)})"
        if isinstance(at, ast.ExceptHandler):
            attempt = parents[at]
            tried = (
                source.code(attempt.body[0]) if isinstance(attempt, ast.Try) and len(attempt.body) == 1 else "its `try`"
            )
            tried = f"`{tried}`" if "`" not in tried else tried
            caught = source.code(at.type) if at.type is not None else "any exception"
            return (
                f"{text} stands in the `except` for {caught}, so {tried} raises for it (a damaged, empty or missing "
                "file, or another format)"
            )
        if isinstance(at, ast.If):
            inside = any(bare in ast.walk(n) for n in at.body)
            return f"{text}, as `{source.code(at.test)}` is {'true' if inside else 'false'} for it"
        return text
    if handlers and not isinstance(function.body[-1], ast.Return):
        return f": its `except` ({source.place(handlers[0])}) ends without a `return`"
    if not any(isinstance(node, ast.Return) for node in own_nodes(function)):
        return ": it has no `return`"
    end = _open_end(function.body)
    if end is not None:
        test = f" where `{source.code(end[0].test)}` is {end[1]} ({source.place(end[0])})" if end[0] is not None else ""
        return f": it ends without `return`{test}"
    methods = [n for n in owner.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("__")] if owner else []
    helper = next((m for m in methods for n in own_nodes(m) if isinstance(n, ast.Return) and _is_none(n.value)), None)
    return f": `{helper.name}` ({source.place(helper)}) returns None for it" if helper is not None else ""


def _open_end(body: list[ast.stmt]) -> tuple[ast.If | None, str] | None:
    """Return the last `if` without a `return` in a branch, and its value there; None where every path returns."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        for branch, value in ((last.body, "true"), (last.orelse, "false")):
            end = _open_end(branch)
            if end is not None:
                return end if end[0] is not None else (last, value)
        return None
    if isinstance(last, ast.With):
        return _open_end(last.body)
    return None if isinstance(last, ast.Return | ast.Raise | ast.Try | ast.While | ast.Match) else (None, "")


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)
