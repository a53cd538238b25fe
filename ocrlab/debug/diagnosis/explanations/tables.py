"""Tables of pandas on their way to a tensor: which column holds a text or a missing value, in which row, and why."""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Mapping
from typing import Any

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, count, explains, listed
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import Origin, failing_call, origin
from ocrlab.debug.diagnosis.explanations.source import argument, constant, last_name, root

STEPS = 8


def texts_of(failure: Failure, place: Origin) -> Mapping[str, Any]:
    """Return the columns of a table that hold texts: how many, in which row the first, and a few of them."""
    for _, value in failure.values(library=False):
        if value.kind == "table" and value.texts and value.name in {root(place.node), place.code}:
            return dict(value.texts) | {"": value.rows}
    columns = literal_columns(failure, place)
    odd = {
        name: {"count": len(rows), "row": rows[0][0], "values": list(dict.fromkeys(text for _, text in rows))[:4]}
        for name, cells in columns.items()
        if (rows := [(row, cell) for row, cell in enumerate(cells) if isinstance(cell, str) and not _is_number(cell)])
    }
    return odd | {"": max(map(len, columns.values()), default=0)} if odd else {}


def literal_columns(failure: Failure, place: Origin) -> dict[str, list[Any]]:
    """Return the columns of a table that the program writes down itself, as a dict of lists or as CSV in a text."""
    dropped: set[object] = set()
    for _ in range(STEPS):
        place = origin(failure, place.source, place.node, place.frame)
        node = place.node
        called = last_name(node.func) if isinstance(node, ast.Call) else ""
        first = node.args[0] if isinstance(node, ast.Call) and node.args else None
        if called == "DataFrame" and isinstance(first, ast.Dict):
            pairs = [(constant(k), v) for k, v in zip(first.keys, first.values, strict=True)]
            return {
                str(k): [constant(e) for e in v.elts]
                for k, v in pairs
                if k and isinstance(v, ast.List) and k not in dropped
            }
        if called == "read_csv" and isinstance(first, ast.Call) and first.args:
            text = constant(origin(failure, place.source, first.args[0], place.frame).node)
            separator = constant(argument(node, 1, "sep")) if isinstance(node, ast.Call) else None
            lines = list(csv.reader(io.StringIO(str(text or "")), delimiter=str(separator or ",")))
            rows = [line for line in lines[1:] if len(line) == len(lines[0])]
            return (
                {name: [row[n] for row in rows] for n, name in enumerate(lines[0]) if name not in dropped}
                if lines
                else {}
            )
        if called == "drop":
            dropped |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
        base = node.func if isinstance(node, ast.Call) else node
        if not isinstance(base, ast.Attribute | ast.Subscript):
            return {}
        place = Origin(place.source, base.value, place.frame)
    return {}


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


@explains("text_to_tensor")
def column_with_texts(fact: Fact, failure: Failure) -> Explanation | None:
    """A column of numbers in which some cells are texts, such as `?` for an unknown value."""
    frame, place = failure.frame, failing_call(failure, failure.frame)
    if place is None or frame is None:
        return None
    nodes = [*place[1].args, *([place[1].func.value] if isinstance(place[1].func, ast.Attribute) else [])]
    for node in nodes:
        columns = dict(texts_of(failure, Origin(place[0], node, frame)))
        rows = columns.pop("", None)
        mixed = {
            name: odd
            for name, odd in columns.items()
            if odd["count"] < (rows or 0) and (not fact.text or fact.text in odd["values"])
        }
        if not mixed:
            continue
        (name, odd), table = next(iter(mixed.items())), root(node)
        values = listed([repr(value) for value in odd["values"]])
        signs = repr(odd["values"][0]) if len(odd["values"]) == 1 else repr(odd["values"])
        return Explanation(
            f"The column `{name}` of `{table}` holds {values} beside numbers ({count(odd['count'], 'cell')} of {rows}, "
            f"the first in row {odd['row']}), so pandas keeps all of it as text, and `{place[0].code(place[1])}` "
            f"({frame.place}) gets no array of numbers.",
            f"Read it as a missing value, `pd.read_csv(..., na_values={signs})`, or convert the column: "
            f"`{table}[{name!r}] = pd.to_numeric({table}[{name!r}], errors='coerce')`; then leave these rows out, "
            f"`dropna(subset=[{name!r}])`, before inputs and targets are made of the table, and take "
            "`.to_numpy(dtype='float32')`.",
        )
    return None


@explains("missing_integers")
def missing_values_in_a_column(fact: Fact, failure: Failure) -> Explanation | None:
    """Whole numbers from a column with NaN: a `map` without an entry for some values, a merge, gaps in a file."""
    frame, place = failure.frame, failing_call(failure, failure.frame, "astype")
    if place is None or frame is None or not isinstance(place[1].func, ast.Attribute):
        return None
    source, column = place[0], place[1].func.value
    name = constant(column.slice) if isinstance(column, ast.Subscript) else None
    table = root(column)
    assignment = _column_assignment(failure, source, column, frame.line)
    live = next((v for _, v in failure.values(library=False) if v.name == table and v.kind == "table"), None)
    gap = ((live.missing if live is not None else None) or {}).get(str(name))
    code = source.code(column)
    text = f"`{code}` has missing values (NaN)" + (
        f" in {count(gap['count'], 'row')}, the first is {gap['row']}" if gap else ""
    )
    text += f", which whole numbers cannot hold ({frame.place}: `{source.code(place[1])}`)."
    look = f"`{table}[{code}.isna()]` shows the rows."
    if assignment is None or not _is_mapping(assignment.node):
        where = f" It comes from `{assignment.code}` ({assignment.place})." if assignment is not None else ""
        return Explanation(
            text + where,
            f"{look} Leave them out before inputs and labels are made (`{table}.dropna(subset=[{name!r}])`), or give "
            "them a value that is right for them; filling in 0 would make a class or a measurement of them, and torch "
            "does not read pandas' `Int64`.",
        )
    reason, fix = _unmapped_values(failure, assignment, gap)
    return Explanation(f"{text}{reason}", f"{fix} {look}")


def label_without_an_entry(failure: Failure, maker: Origin | None) -> tuple[str, str] | None:
    """Say why labels from a column are floats: its `map` gives NaN for some values. With a fix; None for others."""
    for node in ast.walk(maker.node) if maker is not None else ():
        if maker is not None and isinstance(node, ast.Subscript):
            assignment = _column_assignment(failure, maker.source, node, maker.node.lineno)
            if assignment is not None and _is_mapping(assignment.node):
                return _unmapped_values(failure, assignment, None)
    return None


def _is_mapping(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("map", "replace") and bool(node.args)


def _unmapped_values(failure: Failure, assignment: Origin, gap: Mapping[str, Any] | None) -> tuple[str, str]:
    """Say which values a `map` has no entry for, as far as they are known, with a fix."""
    mapping = assignment.node
    assert isinstance(mapping, ast.Call)
    keys_code = assignment.source.code(mapping.args[0])
    keys_place = origin(failure, assignment.source, mapping.args[0], None)
    keys = [str(constant(k)) for k in keys_place.node.keys] if isinstance(keys_place.node, ast.Dict) else []
    mapped = mapping.func.value if isinstance(mapping.func, ast.Attribute) else mapping
    spelling = [n.func.attr for n in ast.walk(mapped) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    part = next((n for n in ast.walk(mapped) if isinstance(n, ast.Subscript)), None)
    origin_column = constant(part.slice) if part is not None else None
    cells = literal_columns(failure, Origin(assignment.source, mapped, None)).get(str(origin_column)) or []
    spelled = [_respelled(str(cell), spelling) for cell in cells]
    unknown = [(row, word) for row, word in enumerate(spelled) if keys and word not in keys]
    if not unknown and gap and str(origin_column) in gap["texts"]:
        unknown = [(gap["row"], _respelled(gap["texts"][str(origin_column)].strip("'\""), spelling))]
    text = f" `{assignment.code}` ({assignment.place}) gives NaN for each value that is not a key of `{keys_code}`"
    if not unknown:
        return (
            f"{text}.",
            "Correct the spelling (capitals, blanks) with `.str.strip().str.lower()` before `.map`, or add the missing "
            f"keys to `{keys_code}`; do not fill in a class for them.",
        )
    row, value = unknown[0]
    near = next((key for key in keys if key.lower() == value.strip().lower()), None)
    text += f": row {row} has {value!r}" + (
        f", and the keys are {listed([repr(k) for k in keys], 6)}." if keys else "."
    )
    lower = f"`{assignment.source.code(part or mapped)}.str.strip().str.lower().map({keys_code})`"
    fix = (
        f"Bring all values to one spelling, {lower}" + ("." if near == near.lower() else " with keys in lower case.")  # type: ignore[union-attr]
        if near is not None
        else f"Add {value!r} to `{keys_code}`, correct it in the data, or leave its rows out."
    )
    if near is not None:
        text += f" It differs from {near!r} only in capitals or blanks."
    return text, fix


def _respelled(text: str, methods: list[str]) -> str:
    """Return a text after the methods of `.str` that a column goes through."""
    for name in ("strip", "lower", "upper", "title", "capitalize"):
        text = getattr(text, name)() if name in methods else text
    return text


def _column_assignment(failure: Failure, source: Any, column: ast.expr, line: int) -> Origin | None:
    """Return the expression that gave a column its values."""
    if isinstance(column, ast.Name):
        where = origin(failure, source, column, failure.frame)
        return where if where.node is not column else None
    wanted = ast.unparse(column)
    for other in failure.all_sources():
        for node in sorted((n for n in other.nodes if isinstance(n, ast.Assign)), key=lambda n: -n.lineno):
            if any(ast.unparse(t) == wanted for t in node.targets) and not (other is source and node.lineno >= line):
                return Origin(other, node.value, None, wanted)
    return None
