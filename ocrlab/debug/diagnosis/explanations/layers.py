"""The layers of a program: where each is built, how it is called, what it gets."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ocrlab.debug.diagnosis.explanations.explanation import (
    Edit,
    changed,
    replaced,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.origins import (
    failing_call,
    origin,
)
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted

CHANNELS = {1: "grayscale", 2: "grayscale with alpha", 3: "RGB", 4: "RGBA"}


def layer_definitions(failure: Failure, *kinds: str) -> Iterator[tuple[Source, ast.Call, str]]:
    """Yield the calls that build layers of some kinds, with the name that each is assigned to."""
    for source in failure.all_sources():
        for call in source.calls(*kinds):
            statement = source.statement_at(call.lineno)
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            direct = isinstance(statement, ast.Assign) and statement.value is call
            yield source, call, dotted(target) if direct else ""


def layer_definition(
    failure: Failure, kind: str, position: int, keyword: str, size: int
) -> tuple[Source, ast.Call, str] | None:
    """Return the only call that builds a layer with a literal size, by preference under the failing module's name."""
    name = failing_layer(failure).rpartition(".")[2]
    matches = [
        (source, call, target)
        for source, call, target in layer_definitions(failure, kind, f"Lazy{kind}")
        if (size_node := argument(call, position, keyword)) is not None and literal(failure, source, size_node) == size
    ]
    by_name = [match for match in matches if name and match[2].rpartition(".")[2] == name]
    chosen = by_name or matches
    return chosen[0] if len(chosen) == 1 else None


def module_size(failure: Failure) -> int | None:
    """Return the first number in the repr of the failing module: its number of channels or features."""
    inner = failure.module.text.partition("(")[2] if failure.module and failure.module.text else ""
    first = inner.split(",")[0].rpartition("=")[2].rstrip(")")
    return int(first) if first.isdigit() else None


def failing_layer(failure: Failure) -> str:
    """Return `fc1`, `encoder.0` or `model`: how the program calls the module that failed."""
    if failure.module is None or failure.module.path:
        return str(failure.module.path) if failure.module else ""
    call = failing_call(failure, failure.frame)
    name = dotted(call[1].func) if call else ""
    value = failure.value(name) if name else None
    return name if value is not None and value.kind == "module" and value.text == failure.module.text else ""


def named_layer(path: str) -> str:
    """Return how a sentence begins with a layer: `fc1`, or `Layer `3`` for a number; empty without a path."""
    return f"Layer `{path}`" if path.rpartition(".")[2].isdigit() else f"`{path}`" if path else ""


def named_inputs(failure: Failure) -> list[Value]:
    """Return the tensors of the program's innermost frame."""
    return [value for value in (failure.frame.values.values() if failure.frame else ()) if value.kind == "tensor"]


def operand(failure: Failure, shape: tuple[int, ...]) -> str:
    """Return how the program's innermost frame calls the tensor of a shape that a layer got; `x` where none is."""
    place = failing_call(failure, failure.frame)
    first = [dotted(value) for value in place[1].args[:1]] if place else []
    same = [value.name for value in named_inputs(failure) if value.shape == tuple(shape)]
    return next((name for name in [*first, *same] if name in same), "x")


def axis_moved(name: str, shape: tuple[int, ...], axis: int, to: int) -> str:
    """Return the call that moves an axis of a tensor: a transposition of two neighbours, else a permutation."""
    if abs(axis - to) == 1:
        return f"{name}.transpose({min(axis, to)}, {max(axis, to)})"
    order = [index for index in range(len(shape)) if index != axis]
    order.insert(to, axis)
    return f"{name}.permute({', '.join(map(str, order))})"


def moved_edit(failure: Failure, name: str, after: str) -> Edit | None:
    """Return the edit that passes the moved tensor in the failing call."""
    place, frame = failing_call(failure, failure.frame), failure.frame
    source = failure.source(frame)
    if place is None or frame is None or source is None or not place[1].args or dotted(place[1].args[0]) != name:
        return None
    code = source.code(place[1])
    return replaced(source, place[1].lineno, code, code.replace(f"({name}", f"({after}", 1))


def layer_input(failure: Failure) -> tuple[int, ...] | None:
    for frame in reversed(failure.frames):
        if frame.is_library and (value := frame.values.get("input")) is not None and value.shape:
            return value.shape
    return None


def operand_texts(source: Source, node: ast.AST) -> list[str]:
    if isinstance(node, ast.BinOp):
        return [source.code(node.left), source.code(node.right)]
    if isinstance(node, ast.Call):
        method = (
            [source.code(node.func.value)]
            if isinstance(node.func, ast.Attribute) and dotted(node.func.value) not in ("torch", "np", "numpy", "F")
            else []
        )
        return method + [source.code(value) for value in node.args]
    return []


def source_code(place: tuple[Source, ast.AST] | None) -> str:
    """Return the text of an expression."""
    return place[0].code(place[1]) if place else ""


def gets_the_input(failure: Failure, shape: tuple[int, ...], definition: tuple[Source, ast.Call, str] | None) -> bool:
    """Whether a layer's input is that of the whole model: by its shape, without values by the order of the layers."""
    outermost = next(
        (f for f in failure.frames if (v := f.values.get("self")) is not None and v.kind == "module"), None
    )
    shapes = [v.shape for v in outermost.values.values() if v.kind == "tensor"] if outermost else []
    if shapes:
        return shape in shapes
    if definition is None:
        return True
    source, call, _ = definition
    owner = source.class_at(call.lineno)
    layers = [c for s, c, _ in layer_definitions(failure, "Conv2d") if s is source and s.class_at(c.lineno) is owner]
    return not layers or layers[0] is call


def number_edit(
    definition: tuple[Source, ast.Call, str] | None, position: int, keyword: str, after: int
) -> Edit | None:
    """Return the edit that gives a layer another number, where that stands in its call."""
    value = argument(definition[1], position, keyword) if definition is not None else None
    return changed(definition[0], value, str(after)) if definition and isinstance(constant(value), int) else None


def literal(failure: Failure, source: Source, node: ast.expr) -> object:
    """Return the number or text that an expression stands for, also through names and default values."""
    return constant(origin(failure, source, node, None).node)
