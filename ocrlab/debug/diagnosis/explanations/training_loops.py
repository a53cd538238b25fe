"""Blanks for the sentences on loops: planned steps, updates of some batches only, what a loop changes, branches."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ocrlab.debug.diagnosis.explanations.explanation import listed
from ocrlab.debug.diagnosis.explanations.failure import Value
from ocrlab.debug.diagnosis.explanations.messages import TRACED
from ocrlab.debug.diagnosis.explanations.origins import origin
from ocrlab.debug.diagnosis.explanations.rules import Blanks
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted, last_name

CHANGING = {"pop", "popitem", "remove", "discard", "add", "clear", "update", "append", "insert", "setdefault"}


def batches(loader: Value) -> int | None:
    """Return how many batches a loader yields; None where that is not known."""
    rows = (loader.dataset or {}).get("length")
    size = loader.batch_size
    if not isinstance(rows, int) or not isinstance(size, int) or size < 1:
        return None
    return rows // size if loader.drop_last else -(-rows // size)


def planned_steps(blanks: Blanks) -> Mapping[str, object] | None:
    """Compare the steps that a scheduler was built for with the batches of the loader."""
    failure, source, frame = blanks.failure, blanks.source, blanks.frame
    if source is None or frame is None:
        return None
    built = origin(failure, source, blanks.argument("base"), frame)
    total = int(blanks["total"])
    loop = source.enclosing(frame.line, ast.For)
    name = (
        next((dotted(n) for n in ast.walk(loop.iter) if dotted(n) in frame.values), "")
        if isinstance(loop, ast.For)
        else ""
    )
    loader = frame.values.get(name)
    if loader is None or loader.kind != "loader":
        loaders = [value for value in frame.values.values() if value.kind == "loader"]
        loader = loaders[0] if len(loaders) == 1 else None
    count = batches(loader) if loader is not None else None
    if loader is None or not count or not isinstance(built.node, ast.Call):
        return None

    def number(node: ast.expr | None) -> object:
        return constant(origin(failure, built.source, node, built.frame).node) if node is not None else None

    per_epoch = argument(built.node, -1, "steps_per_epoch")
    epochs = number(argument(built.node, -1, "epochs"))
    rows = (loader.dataset or {}).get("length")
    text = f" `{loader.name}` yields {count} batches an epoch ({rows} samples by {loader.batch_size})"
    fix = f"`steps_per_epoch=len({loader.name})`"
    if per_epoch is not None and isinstance(epochs, int) and epochs > 0:
        planned = total // epochs
        way = origin(failure, built.source, per_epoch, built.frame)
        rounded = isinstance(way.node, ast.BinOp) and isinstance(way.node.op, ast.FloorDiv)
        text += f", {epochs} epochs make {count * epochs} steps, and `steps_per_epoch` is {planned}"
        down = ", which rounds down and leaves out the last, smaller batch" if rounded else ""
        text += f" (`{way.code}`, {way.place}{down})"
        return {
            "planned": f"{text}.",
            "repair": f"Use {fix} ({count}){', or `drop_last=True` in the loader' if rounded else ''}.",
        }
    text += (
        f", so {total} steps last {total / count:.3g} epochs."
        if total >= count
        else ", so its steps end within the first epoch."
    )
    steps = f"`epochs * len({loader.name})`"
    return {
        "planned": text,
        "repair": f"Build it for all batches: {steps} steps ({count} for each epoch), or step it once an epoch, "
        "outside of the batch loop, if the total counts epochs.",
    }


def rare_update(blanks: Blanks) -> Mapping[str, object] | None:
    """Say under which condition a scaler's update runs that does not hold for the failing call."""
    source, frame = blanks.source, blanks.frame
    if source is None or frame is None:
        return None
    function = source.function_at(frame.line)
    base = blanks["base"]
    updates = [
        call
        for call in source.calls("update", inside=function)
        if isinstance(call.func, ast.Attribute) and source.code(call.func.value) == base
    ]
    for call in updates:
        test = source.enclosing(call.lineno, ast.If)
        if isinstance(test, ast.If) and not test.lineno <= frame.line <= (test.end_lineno or 0):
            return {
                "update": f"`{source.code(call)}` ({source.place(call)}) only if `{source.code(test.test)}` "
                f"({source.place(test)})"
            }
    return None


def changed_in_its_loop(blanks: Blanks) -> Mapping[str, object] | None:
    """Return what in a loop changes what the loop goes through."""
    frame = blanks.frame
    source = blanks.failure.source(frame)
    loop = source.enclosing(frame.line, ast.For) if source and frame else None
    if source is None or not isinstance(loop, ast.For):
        return None
    node: ast.expr = loop.iter
    views = ("keys", "items", "values")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in views:
        node = node.func.value
    looped, written = source.code(node), source.code(loop.iter)
    for part in ast.walk(loop):
        called = isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in CHANGING
        changed: list[ast.expr] = [part.func.value] if called else []  # type: ignore[union-attr,attr-defined]
        if isinstance(part, ast.Delete | ast.Assign):
            changed = [target.value for target in part.targets if isinstance(target, ast.Subscript)]
        if isinstance(part, ast.AST) and any(source.code(target) == looped for target in changed):
            return {
                "change": source.code(part),
                "place": source.place(part),
                "looped": looped,
                "head": f"for {source.code(loop.target)} in {written}",
                "target": source.code(loop.target),
                "written": written,
                "copy": f"list({written})",
            }
    return None


def branch_on_a_tensor(blanks: Blanks) -> Mapping[str, object] | None:
    """Return the branch that torch.compile could not trace, and what its test was made from."""
    failure = blanks.failure
    places = list(TRACED.finditer(failure.message))
    if not places:
        return None
    place = places[-1]
    branch, line = place["code"].strip(), int(place["line"])
    name = place["file"].rpartition("/")[2]
    source: Source | None = next((s for s in failure.all_sources() if s.name == name and branch in s.line(line)), None)
    statement = source.statement_at(line) if source else None
    test = statement.test if isinstance(statement, ast.If | ast.While | ast.Assert) else None
    origin_text = ""
    if source is not None and test is not None:
        for part in (node for node in ast.walk(test) if isinstance(node, ast.Name)):
            where = origin(failure, source, part, None, 1)
            if where.node is not part and isinstance(where.node, ast.Call):
                origin_text = f"`{part.id} = {where.code}` ({where.place}), "
    code = source.code(test) if source is not None and test is not None else "condition"
    owner = source.class_at(line) if source else None
    return {
        "branch": branch.rstrip(":"),
        "place": f"{name}:{line}{f', in `{owner.name}`' if owner else ''}",
        "test": code,
        "from": origin_text,
    }


def column_lengths(blanks: Blanks) -> Mapping[str, object] | None:
    """Return the lengths of the columns that a table is made of."""
    table = blanks.argument("data@0")
    if blanks.source is None or not isinstance(table, ast.Dict):
        return None
    lengths = {}
    for node in table.values:
        value = blanks.failure.value(dotted(node)) if dotted(node) else None
        length = (
            value.length
            if value is not None and value.length is not None
            else (value.shape or [None])[0]
            if value
            else None
        )
        if isinstance(node, ast.Call) and last_name(node.func) == "range" and len(node.args) == 1:
            stop = blanks.failure.value(dotted(node.args[0]))
            length = stop.number if stop is not None else constant(node.args[0])
        if isinstance(length, int):
            lengths[blanks.source.code(node)] = length
    if len(set(lengths.values())) < 2:
        return None
    return {"lengths": listed([f"`{name}` has {length}" for name, length in lengths.items()], 6)}
