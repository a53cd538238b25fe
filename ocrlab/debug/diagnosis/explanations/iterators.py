"""Iterators and generators that were read to their end before the line that finds nothing in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ocrlab.debug.diagnosis.explanations.explanation import ANY, Edit, Explanation, a, explains, replaced
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame
from ocrlab.debug.diagnosis.explanations.messages import Fact, facts
from ocrlab.debug.diagnosis.explanations.notebook_state import again, earlier_run, failing_cell, run_before
from ocrlab.debug.diagnosis.explanations.origins import Origin, origin, own_statement_nodes
from ocrlab.debug.diagnosis.explanations.source import Source, dotted, last_name, own_nodes

LAZY = {
    "filter": "filter object",
    "map": "map object",
    "zip": "zip object",
    "enumerate": "enumerate object",
    "iter": "iterator",
    "reversed": "reversed iterator",
    "reader": "csv reader",
    "DictReader": "csv reader",
    "open": "open file",
} | dict.fromkeys(
    ("parameters", "named_parameters", "chain", "islice", "iglob", "rglob", "iterdir", "finditer", "itertuples"),
    "generator",
)
NOTHING_LEFT = (
    "used_up",
    "empty_parameters",
    "empty_values",
    "empty_list",
    "zero_division",
    "empty_dataset",
    "index",
    "unpack",
    "name",
)
PASSED_ON = ("filter", "map", "zip", "enumerate", "iter", "chain", "islice", "tqdm")  # read only when they are read
NOT_READ = ("print", "type", "isinstance", "id", "repr", "callable", "hasattr", "str", "next", "close", "hash")


def lazy_kind(failure: Failure, place: Origin) -> str:
    """Return what an expression makes that can be read only once: `generator`, `filter object`; empty for others."""
    if isinstance(place.node, ast.GeneratorExp):
        return "generator"
    called = last_name(place.node.func) if isinstance(place.node, ast.Call) else ""
    functions = [f for source in failure.all_sources() for f in source.functions(called)] if called else []
    if functions:
        return "generator" if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in own_nodes(functions[0])) else ""
    return LAZY.get(called, "")


def readers(source: Source, name: str) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Yield the statements of a source that read the iterator of a name to its end, with the node of the name."""
    for statement in (n for n in source.nodes if isinstance(n, ast.stmt)):
        parents = {child: n for n in own_statement_nodes(statement) for child in ast.iter_child_nodes(n)}
        for node in [n for n in parents if dotted(n) == name and isinstance(getattr(n, "ctx", None), ast.Load)]:
            at: ast.AST = node
            while isinstance(call := parents.get(at), ast.Call) and last_name(call.func) in PASSED_ON:
                at = call
            parent = parents.get(at)
            if isinstance(parent, ast.Call):
                reads = at in parent.args and last_name(parent.func) not in (*NOT_READ, *PASSED_ON)
            elif isinstance(parent, ast.For):
                leaves = any(isinstance(n, ast.Break | ast.Return) for n in own_nodes(parent))
                reads = at is parent.iter and not leaves
            else:
                reads = isinstance(parent, ast.comprehension | ast.Starred | ast.YieldFrom)
            if reads:
                yield statement, node


@explains(ANY)  # before the general words on what is empty
def read_to_its_end(_: Fact, failure: Failure) -> Explanation | None:
    """A name of the failing line, or of a loop before it, whose iterator another statement has read already."""
    frame, source = failure.frame, failure.source(failure.frame)
    matches = [fact for fact in facts(failure.type, failure.message) if fact.kind in NOTHING_LEFT]
    if frame is None or source is None or not matches or matches[0].empty or matches[0].index is not None:
        return None
    here = source.statement_at(frame.line)
    parts = list(own_statement_nodes(here)) if here is not None else []
    nodes: list[tuple[ast.expr, ast.For | None]] = [
        (n, None) for n in parts if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Load)
    ]
    scope = source.function_at(frame.line) or source.tree
    loops = [n for n in own_nodes(scope) if isinstance(n, ast.For) and n.lineno < frame.line]
    nodes += [(n.iter, n) for n in loops if dotted(n.iter)]
    for node, loop in nodes:
        where = origin(failure, source, node, frame)
        kind = lazy_kind(failure, where)
        if not kind or where.node is node or (loop is None and matches[0].kind == "name"):
            continue
        reader = _reader(failure, where, dotted(node), source, frame, loop)
        if reader is None:
            continue
        other, statement, why = reader
        shown = other.code(statement).partition(":\n")[0].partition(": ")[0]
        text = (
            f"`{dotted(node)}` is {a(kind)} (`{where.code}`, {where.place}), which can be read only once: `{shown}` "
            f"({other.place(statement)}) {why}: it is exhausted."
        )
        return Explanation(text, _fix(failure, where, dotted(node), kind), _edit(where, kind))
    return None


def _reader(
    failure: Failure, where: Origin, name: str, source: Source, frame: Frame, loop: ast.For | None
) -> tuple[Source, ast.stmt, str] | None:
    """Return the statement that has read an iterator, its source, and in words when."""
    cell = failing_cell(failure)
    done = "has read it to its end already"
    if cell is not None and where.source is not source:
        order = run_before(failure, cell)
        maker = next((c for c in order if c.source is where.source), None)
        since = [c for c in order if maker is not None and (c.count or 0) >= (maker.count or 0)]
        for other in reversed(since):
            statements = [
                s for s, _ in readers(other.source, name) if other is not maker or s.lineno > where.node.lineno
            ]
            if statements:
                return other.source, statements[-1], done
    uses = sorted(
        (s for names in {name, where.name} for s, _ in readers(where.source, names)),
        key=lambda s: s.lineno,
        reverse=True,
    )
    end = frame.line if where.source is source and loop is None else loop.lineno if loop is not None else 10**9
    earlier = [s for s in uses if where.node.lineno < s.lineno < end and where.source is source]
    if earlier:
        return where.source, earlier[0], done
    if loop is not None and where.source is source:
        outer = [
            n for n in source.nodes if isinstance(n, ast.For | ast.While) and loop in ast.walk(n) and n is not loop
        ]
        if any(where.node not in ast.walk(n) for n in outer):
            return source, loop, "has read it to its end in the first pass of the loop around it"
    maker = next((c for c in failure.cells if c.source is where.source), None)
    evidence = earlier_run(failure, maker, cell) if cell is not None and maker is not cell else ""
    statement = source.statement_at(frame.line)
    if evidence and statement is not None:
        return source, statement, f"takes from it in every run of the cell ({evidence})"
    return None


def _as_list(where: Origin) -> str:
    """Return an expression with the same values in a list."""
    node, code = where.node, where.code
    if isinstance(node, ast.GeneratorExp):
        return f"[{code[1:-1]}]" if code.startswith("(") else f"list({code})"
    if isinstance(node, ast.Call) and last_name(node.func) == "filter" and len(node.args) == 2:
        test, values = node.args
        if isinstance(test, ast.Lambda) and len(test.args.args) == 1:
            name = test.args.args[0].arg
            return f"[{name} for {name} in {where.source.code(values)} if {where.source.code(test.body)}]"
    return f"list({code})"


def _fix(failure: Failure, where: Origin, name: str, kind: str) -> str:
    cell = failing_cell(failure)
    maker = next((c for c in failure.cells if c.source is where.source), None)
    run = f" Now run {again(failure, maker, cell)}." if cell is not None and maker not in (None, cell) else ""  # type: ignore[arg-type]
    if kind == "iterator" and isinstance(where.node, ast.Call) and where.node.args:
        container = where.source.code(where.node.args[0])
        return (
            f"Take a new iterator where values are needed, `next(iter({container}))`, or loop over `{container}` "
            "itself: that starts anew each time."
        )
    if kind == "open file":
        return f"Read the lines once into a list, or go back to the start with `{name}.seek(0)`."
    return f"Make it a list, which can be read any number of times: `{where.name or name} = {_as_list(where)}`.{run}"


def _edit(where: Origin, kind: str) -> Edit | None:
    return (
        None
        if kind in ("iterator", "open file")
        else replaced(where.source, where.node.lineno, where.code, _as_list(where))
    )
