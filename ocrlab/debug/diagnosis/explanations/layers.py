"""The layers of a program: where each is built, how it is called, what it gets."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass

from ocrlab.debug.diagnosis.explanations.explanation import (
    Edit,
    changed,
    replaced,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame, Value
from ocrlab.debug.diagnosis.explanations.origins import (
    failing_call,
    origin,
)
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted, last_name, returns

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}
OPERATORS |= {ast.Pow: lambda base, power: base**power if 0 <= power < 9 else None}
SAME_SHAPE = frozenset(
    "float double half long int bool to type cuda cpu detach clone contiguous sqrt exp log abs relu sigmoid tanh silu "
    "softmax log_softmax gelu dropout normalize clamp requires_grad_ BatchNorm1d BatchNorm2d LayerNorm GroupNorm "
    "InstanceNorm2d Dropout ReLU LeakyReLU PReLU GELU SiLU Sigmoid Tanh Softmax Identity".split()
)
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


def layer_kind(failure: Failure, call: ast.Call, source: Source) -> str:
    """Return the class of the layer that a call runs, from its live value or from where the program builds it."""
    value = failure.value(dotted(call.func))
    if value is not None and value.kind == "module":
        return str(value.type)
    built = origin(failure, source, call.func, failure.frame)
    return last_name(built.node.func) if isinstance(built.node, ast.Call) else ""


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


def whole_number(failure: Failure, source: Source, node: ast.expr | None, frame: Frame | None = None) -> int | None:
    """Return the whole number that an expression of names, arithmetic and lengths of lists stands for."""
    if node is None:
        return None
    live = frame.values.get(dotted(node)) if frame is not None and failure.source(frame) is source else None
    if live is not None:
        return live.number if isinstance(live.number, int) else None
    where = origin(failure, source, node, frame)
    if isinstance(where.node, ast.BinOp) and type(where.node.op) in OPERATORS:
        sides = [whole_number(failure, where.source, n, where.frame) for n in (where.node.left, where.node.right)]
        try:
            number = OPERATORS[type(where.node.op)](*sides) if None not in sides else None  # type: ignore[operator]
        except ArithmeticError:
            return None
        return number if number is None or abs(number) < 1 << 62 else None
    call = where.node
    if isinstance(call, ast.Call) and dotted(call.func) == "len" and call.args:
        items = origin(failure, where.source, call.args[0], where.frame).node
        return len(items.elts) if isinstance(items, ast.List | ast.Tuple) else None
    number = constant(where.node)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def known_shape(
    failure: Failure, source: Source, node: ast.AST | None, frame: Frame | None, steps: int = 8
) -> tuple[int, ...] | None:
    """Return the shape of an expression as far as live values, indices and layers decide it."""
    value = frame.values.get(dotted(node)) if frame is not None and dotted(node) else None
    if value is not None:
        return value.shape
    if steps <= 0 or node is None:
        return None
    if isinstance(node, ast.Subscript):
        indexed = known_shape(failure, source, node.value, frame, steps - 1)
        return _indexed(failure, source, indexed, node.slice, frame) if indexed is not None else None
    if isinstance(node, ast.UnaryOp):
        return known_shape(failure, source, node.operand, frame, steps - 1)
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Attribute) and dotted(function.value) not in ("torch", "F", "nn.functional", "self"):
        base: ast.expr | None = function.value
        rest = node.args
    else:
        base, rest = (node.args[0], node.args[1:]) if node.args else (None, [])
    shape = known_shape(failure, source, base, frame, steps - 1)
    live = frame.values.get(dotted(function)) if frame is not None else None
    built = origin(failure, source, function, frame)
    kind = str(live.type) if live is not None and live.kind == "module" else last_name(function)
    maker = built.node if built.node is not function and isinstance(built.node, ast.Call) else None
    kind = last_name(maker.func) if maker is not None else kind
    if maker is not None or (live is not None and live.kind == "module"):
        shape = known_shape(failure, source, node.args[0], frame, steps - 1) if node.args else None
    if shape is None or kind in SAME_SHAPE:
        return shape
    if kind in ("Linear", "Embedding") and maker is not None:
        width = whole_number(failure, built.source, argument(maker, 1, "out_features", "embedding_dim"))
        return None if width is None else (*shape[:-1], width) if kind == "Linear" else (*shape, width)
    axis = constant(argument(node, len(node.args) - len(rest), "dim", "axis"))
    if kind in REDUCTIONS and isinstance(axis, int) and argument(node, -1, "keepdim", "keepdims") is None:
        axis += len(shape) if axis < 0 else 0
        return (*shape[:axis], *shape[axis + 1 :])
    if kind == "unsqueeze" and isinstance(axis, int):
        axis += len(shape) + 1 if axis < 0 else 0
        return (*shape[:axis], 1, *shape[axis:])
    if kind == "flatten" and axis == 1 and len(shape) > 1:
        return (shape[0], math.prod(shape[1:]))
    return None


REDUCTIONS = ("mean", "sum", "std", "var", "amax", "amin", "norm", "logsumexp", "argmax")


def _indexed(
    failure: Failure, source: Source, shape: tuple[int, ...], index: ast.expr, frame: Frame | None
) -> tuple[int, ...] | None:
    """Return the shape of a tensor after an index; None where that is not known."""
    result: list[int] = []
    rest, several = list(shape), 0
    for part in index.elts if isinstance(index, ast.Tuple) else [index]:
        whole = isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None
        if isinstance(part, ast.Constant) and part.value is None:
            result.append(1)
            continue
        if not rest:
            return None
        size = rest.pop(0)
        picked = known_shape(failure, source, part, frame)
        value = frame.values.get(dotted(part)) if frame is not None else None
        if whole:
            result.append(size)
        elif picked is not None and value is not None and value.is_integer:
            result, several = [*result, *picked], several + 1
        elif not isinstance(constant(part), int) and not (value is not None and isinstance(value.number, int)):
            return None
    return (*result, *rest) if several < 2 else None


def layer_built(failure: Failure) -> tuple[Source, ast.Call, ast.expr] | None:
    """Return the call that builds the failing layer, and what it is assigned to: `self.fc1` or `net.classifier[3]`."""
    path = failing_layer(failure)
    parts = path.split(".")
    frame_source = failure.source(failure.frame)
    owner = frame_source.class_at(failure.frame.line) if frame_source and failure.frame else None
    matches = []
    for source in failure.all_sources():
        for node in source.nodes:
            if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.Call):
                continue
            names = target_path(node.targets[0])
            inside = names[:1] == ["self"] and owner is not None and source.class_at(node.lineno) is owner
            same = names[1:] == parts[-len(names) + 1 :] if names[1:] else names == parts
            if same and last_name(node.value.func)[:1].isupper():
                matches.append((inside, source, node.value, node.targets[0]))
    chosen = [match for match in matches if match[0]] or matches
    return chosen[0][1:] if len(chosen) == 1 else None


def target_path(node: ast.AST) -> list[str]:
    """Return `["net", "classifier", "3"]` of `net.classifier[3]`; empty for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [*base, node.attr] if (base := target_path(node.value)) else []
    if isinstance(node, ast.Subscript) and isinstance(constant(node.slice), int):
        return [*base, str(constant(node.slice))] if (base := target_path(node.value)) else []
    return []


def size_of_another_layer(failure: Failure, keyword: str) -> tuple[str, Edit | None, str] | None:
    """Explain a new layer of a model whose input size was read from another layer: text, edit, what to read."""
    built = layer_built(failure)
    size = argument(built[1], 0, keyword) if built else None
    if built is None or size is None:
        return None
    source, _, target = built
    where = origin(failure, source, size, None)
    read, new = target_path(where.node), target_path(target)
    if not read or read[-1] not in SIZES or len(read) < 3 or len(new) < 2 or new[0] == "self" or read[1:-1] == new[1:]:
        return None
    code, right = where.code, f"{source.code(target)}.{keyword}"
    text = (
        f" Its size was read from `{code}` ({where.place}), which is another layer than the one that is replaced, "
        f"`{source.code(target)}`."
    )
    return text, changed(where.source, where.node, right), f"`{right}`"


SIZES = ("in_features", "out_features", "in_channels", "out_channels", "num_features", "embedding_dim")


def joined_parts(failure: Failure, source: Source, node: ast.expr) -> tuple[str, list[ast.expr]]:
    """Return the call that joins the tensors of an expression, and these, also through a list that is appended to."""
    where = origin(failure, source, node, failure.frame)
    call = where.node
    if not isinstance(call, ast.Call) or last_name(call.func) not in ("cat", "concat", "hstack") or not call.args:
        return "", []
    listed = origin(failure, where.source, call.args[0], where.frame).node
    parts = list(listed.elts) if isinstance(listed, ast.List | ast.Tuple) else []
    scope = where.source.function_at(call.lineno) or where.source.tree
    name = dotted(call.args[0])
    for appended in where.source.calls("append", inside=scope):
        if name and isinstance(appended.func, ast.Attribute) and dotted(appended.func.value) == name and appended.args:
            parts.append(appended.args[0])
    return f"`{where.code}` ({where.place})", parts


@dataclass(frozen=True)
class ReplacingHook:
    """A forward hook that returns a value, which replaces the output of its layer."""

    layer: ast.expr
    text: str
    detaches: bool
    fix = "Let the hook return nothing: write it as a `def` that stores what it needs and has no `return`."


def replacing_hooks(failure: Failure) -> Iterator[ReplacingHook]:
    """Yield the forward hooks of the program that return a value; a function that makes the hook is looked into."""
    for source in failure.all_sources():
        for call in (c for c in source.calls("register_forward_hook") if c.args and isinstance(c.func, ast.Attribute)):
            hook = call.args[0]
            name = last_name(hook.func if isinstance(hook, ast.Call) else hook)
            functions: list[tuple[Source, ast.AST]] = [(s, f) for s in failure.all_sources() for f in s.functions(name)]
            if isinstance(hook, ast.Call):
                inner = [(s, n) for s, f in functions for n in ast.walk(f) if n is not f]
                functions = [(s, n) for s, n in inner if isinstance(n, ast.FunctionDef | ast.Lambda)]
            for where, function in [(source, hook)] if isinstance(hook, ast.Lambda) else functions:
                values = [function.body] if isinstance(function, ast.Lambda) else [n.value for n in returns(function)]
                value = next((v for v in values if v is not None and not _gives_nothing(v)), None)
                if value is not None:
                    layer, code = call.func.value, where.code(value)  # type: ignore[attr-defined]
                    text = f"The forward hook of `{source.code(layer)}` ({source.place(call)}) returns `{code}` "
                    text += f"({where.place(value)}), and what a forward hook returns replaces the output of its layer."
                    yield ReplacingHook(layer, text, "detach" in where.code(function))


def _gives_nothing(node: ast.expr) -> bool:
    """Whether an expression is None, or a call of a method of Python that returns nothing."""
    silent = ("append", "extend", "add", "update", "clear", "insert", "__setitem__", "print", "setattr", "write")
    silent_call = isinstance(node, ast.Call) and last_name(node.func) in silent
    return silent_call or (isinstance(node, ast.Constant) and node.value is None)
