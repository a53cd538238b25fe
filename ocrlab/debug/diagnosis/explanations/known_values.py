"""What is known of the values of a failing line: what each is, and which line made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ocrlab.debug.diagnosis.explanations.explanation import a, count, listed, sizes
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame, Value
from ocrlab.debug.diagnosis.explanations.origins import origin, own_statement_nodes, unpacked
from ocrlab.debug.diagnosis.explanations.source import Source, dotted
from ocrlab.redaction import named_secrets

MOST_VALUES, MOST_CODE = 6, 100
MOST_KEYS = 8


def known_values(failure: Failure) -> list[str]:
    """Return a sentence for each value that the failing line of the program uses, in the order of the line.

    Values whose names are those of secrets are left out.
    """
    frame = failure.frame
    if frame is None:
        return []
    source = failure.source(frame)
    place = source or Source(frame.expression or frame.code, frame.file)
    sentences = []
    for node in _operands(place, frame, in_file=source is not None):
        name = dotted(node)
        value = failure.value(name)
        if named_secrets.names_secret(name.rpartition(".")[2]):
            continue
        what = describe(value) if value is not None else ""
        where = _origin(failure, source, node, frame) if source is not None else ""
        if what or where:
            sentences.append(f"`{name}`{' is ' if what else ''}{what}{' and' if what and where else ''}{where}")
    return list(dict.fromkeys(sentences))[:MOST_VALUES]


def describe(value: Value) -> str:
    """Return what a value is, in a few words; empty for functions and objects of which only the type is known."""
    if value.kind in ("tensor", "array", "table") and value.shape is not None:
        kind = {"tensor": "", "array": "an array ", "table": "a table "}[value.kind]
        device = f" on {value.device}" if value.device not in (None, "cpu") else ""
        limits = f", values {value.min} to {value.max}" if value.is_integer and value.min is not None else ""
        columns = f" with the columns {listed(list(value.columns), MOST_KEYS)}" if value.columns else ""
        return f"{kind}{sizes(value.shape)}{f' {value.dtype}' if value.dtype else ''}{device}{limits}{columns}"
    if value.kind == "plain":
        return str(value.text)
    if value.kind in ("text", "path"):
        return f"the {'text' if value.kind == 'text' else 'path'} {value.text}"
    if value.kind == "image":
        return f"an image of {' x '.join(map(str, value.size or ()))} pixels, mode {value.mode}"
    if value.kind == "module":
        return f"the module {value.text}"
    if value.kind == "container" and value.length is not None:
        keys = f" with the keys {listed([repr(key) for key in value.keys], MOST_KEYS)}" if value.keys else ""
        types = f" ({', '.join(value.types)})" if value.types and not keys else ""
        return f"{a(str(value.type))} of {count(value.length, 'item')}{types}{keys}"
    return ""


def _operands(source: Source, frame: Frame, *, in_file: bool) -> Iterator[ast.expr]:
    """Yield the names and attributes in the failing expression, each in its longest form that has a value."""
    statements = source.statements_at(frame.line) if in_file else list(source.tree.body)
    inside = [node for statement in statements for node in own_statement_nodes(statement)]
    expression = " ".join(frame.expression.split())
    exact = [node for node in inside if expression and isinstance(node, ast.expr) and source.code(node) == expression]
    todo: list[ast.AST] = [exact[0]] if exact else list(statements)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = dotted(node)
            if name in frame.values or (name and isinstance(node, ast.Name)):
                if name not in ("self", "cls"):
                    yield node
                continue
        todo = [*(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)), *todo]


def _origin(failure: Failure, source: Source, node: ast.expr, frame: Frame) -> str:
    where = origin(failure, source, node, frame)
    where = unpacked(where) or where
    if where.node is node or not where.code or len(where.code) > MOST_CODE or where.code == source.code(node):
        return ""
    return f" comes from `{where.code}` ({where.place})"
