"""Layers whose input has another shape than they were built for: linear, convolution, recurrent, attention, norms."""

from __future__ import annotations

import ast
import math

from ocrlab.debug.diagnosis.explanations.batch_shapes import (
    batch_rest,
    dataset_length,
)
from ocrlab.debug.diagnosis.explanations.explanation import (
    Edit,
    Explanation,
    changed,
    count,
    explains,
    in_parentheses,
    replaced,
    sizes,
    times,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame
from ocrlab.debug.diagnosis.explanations.layers import (
    CHANNELS,
    axis_moved,
    failing_layer,
    gets_the_input,
    joined_parts,
    known_shape,
    layer_built,
    layer_definition,
    layer_definitions,
    layer_input,
    literal,
    module_size,
    moved_edit,
    named_inputs,
    named_layer,
    number_edit,
    operand,
    operand_texts,
    replacing_hooks,
    size_of_another_layer,
    source_code,
    whole_number,
)
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import (
    Origin,
    failing_call,
    failing_expression,
    origin,
)
from ocrlab.debug.diagnosis.explanations.source import (
    Source,
    argument,
    constant,
    dotted,
    last_name,
    parameters,
)


@explains(
    "no_axes",
    "not_a_tensor",
    "matmul",
    "batched_matmul",
    "conv_channels",
    "conv_dimensions",
    "normalized_shape",
    "broadcast",
)
def output_replaced_by_hook(fact: Fact, failure: Failure) -> Explanation | None:
    """A forward hook that returns a value, which takes the place of its layer's output."""
    place = failing_call(failure, failure.frame)
    maker = origin(failure, place[0], place[1].args[0], failure.frame).node if place and place[1].args else None
    called = [last_name(node.func) for node in ast.walk(maker) if isinstance(node, ast.Call)] if maker else []
    number = failing_layer(failure).rpartition(".")[2]
    for hook in replacing_hooks(failure):
        index = constant(hook.layer.slice) if isinstance(hook.layer, ast.Subscript) else None
        follows = isinstance(index, int) and number == str(index + 1)
        if follows or last_name(hook.layer) in called:
            return Explanation(f"{hook.text} What follows gets that value.", hook.fix)
    return None


@explains("no_axes")
def operand_without_axes(fact: Fact, failure: Failure) -> Explanation | None:
    """A single number where a layer takes a vector or a batch."""
    place = failing_call(failure, failure.frame)
    name = place[0].code(place[1].args[0]) if place and place[1].args else ""
    value = failure.value(name)
    if place is None or value is None or value.shape != ():
        return None
    maker = origin(failure, place[0], place[1].args[0], failure.frame)
    origin_text = f" It is made by `{maker.code}` ({maker.place})." if maker.node is not place[1].args[0] else ""
    return Explanation(
        f"`{name}` is a single number without axes, but `{place[0].code(place[1].func)}` takes features in the last "
        f"axis.{origin_text}",
        "Pass the tensor from before it was reduced to one number (by `mean()`, `sum()`, an index or an item).",
    )


@explains("matmul")
def wrong_linear_size(fact: Fact, failure: Failure) -> Explanation | None:
    """A layer that expects another number of features than its input has."""
    features, expected, rows = fact.features, fact.expected, fact.rows
    if features is None or expected is None or failure.in_library("multi_head_attention_forward"):
        return None  # attention multiplies by parts of its weight
    module = failure.module
    linear = module is not None and module.type == "Linear"
    definition = layer_definition(failure, "Linear", 0, "in_features", expected)
    built = layer_built(failure)
    if definition is None and linear and built is not None:
        definition = (built[0], built[1], dotted(built[2]))
    by_weight = failure.in_library("forward", "linear.py") is not None
    if not (linear or definition or by_weight):
        return _plain_product(fact, failure)
    source, call, target = definition or (None, None, "")
    label = (target.removeprefix("self.") if target.startswith("self.") else "") or failing_layer(failure) or target
    name = named_layer(label) or "The Linear layer"
    place = f" ({source.place(call)})" if source and call else ""
    code = (
        f"`{source.code(call)}`"
        if source and call
        else f"`{module.text}`"
        if linear and module and module.text
        else f"built for {count(expected, 'feature')}"
    )
    tensor = layer_input(failure)
    origin_text = _flattened_from(failure, features)
    recurrent = _bidirectional(failure) if features == 2 * expected else ""
    if recurrent:
        return Explanation(
            f"{name}{place} is {code}, but its input has {features} = 2 x {expected} features: {recurrent}.",
            f"Build the layer for both directions: `in_features={features}` (2 x the hidden size), or use one "
            "direction.",
        )
    single = _without_batch_axis(failure, rows, features, expected, label or "the Linear layer")
    if single is not None:
        return single
    apart = _size_of_other_data(failure, f"{name} is built for {expected} features", features, expected)
    if apart is not None:
        return apart
    if tensor is not None and len(tensor) == 4 and tensor[-1] == features:
        flat = math.prod(tensor[1:])
        if flat == expected:
            text = (
                f"{name}{place} is {code}, but its input has the shape {sizes(tensor)} and a Linear layer works "
                f"on the last axis only ({features}). Flattened per sample it has {times(tensor[1:])} = {flat} "
                "features, which is what the layer expects."
            )
            return Explanation(text, "Flatten before the layer: `x = torch.flatten(x, 1)`.")
        text = (
            f"{name}{place} is {code}, but its input {sizes(tensor)} is not flattened: a Linear layer works on "
            f"the last axis only, which has {features} values."
        )
        return Explanation(text, f"Call `torch.flatten(x, 1)` before the layer and set `in_features={flat}`.")
    if tensor is not None and len(tensor) >= 3 and tensor[-1] == features and expected in tensor[1:-1]:
        axis = tensor.index(expected, 1)
        variable = operand(failure, tensor)
        after = axis_moved(variable, tensor, axis, len(tensor) - 1)
        return Explanation(
            f"{name}{place} is {code} and works on the last axis, but its input is {sizes(tensor)}: the {expected} "
            f"features stand in axis {axis}, and the last axis has {features}.",
            f"Move the features last: `{after}`.",
            moved_edit(failure, variable, after),
        )
    if rows == 1 and (tensor is None or len(tensor) == 1) and (joined := _joined_batch(failure)) is not None:
        return _batch_in_one_row(f"{name}{place} is {code}", features, expected, *joined)
    if rows is not None and expected and rows * features % expected == 0 and features != expected and rows == expected:
        text = (
            f"{name}{place} expects {expected} features in the last axis, but its input is "
            f"{sizes((rows, features))}: {expected} stands in the first axis, so the input is transposed."
        )
        return Explanation(text, "Transpose the input (`x.T`), or build it with samples in the first axis.")
    text = (
        f"{name}{place} is {code}, but its input has {features} features for each of {count(rows, 'row')}{origin_text}."
        if rows
        else f"{name}{place} is {code}, but its input has {features} features{origin_text}."
    )
    if "in_features" not in text and f"({expected}," not in text:
        text = text.replace(", but its", f", which gives it {expected} inputs, but its", 1)
    other = size_of_another_layer(failure, "in_features")
    if other is not None:
        right = f"{other[2]}, which is {features}"
        return Explanation(
            text + other[0], f"Take it from the layer that is replaced, before it is replaced: {right}.", other[1]
        )
    parts = _joined_features(failure, definition, features, expected)
    if parts is not None:
        return Explanation(text + parts[0], parts[1], parts[2])
    model_call = _model_call(failure)
    direct = model_call is not None and model_call[3] is not None and model_call[3][-1] == features and not origin_text
    advice = f"If the {features} features are right, set" if direct else "Set"
    advice += f" `in_features={features}`, or use `nn.LazyLinear` which reads it from the first batch"
    advice += (
        ", or put `nn.AdaptiveAvgPool2d` before the flattening so that the image size does not matter."
        if origin_text
        else f"; otherwise correct what makes `{model_call[0].code(model_call[1].args[0])}`."
        if direct and model_call is not None
        else "."
    )
    return Explanation(text, advice, number_edit(definition, 0, "in_features", features))


def _model_call(failure: Failure) -> tuple[Source, ast.Call, Frame, tuple[int, ...] | None] | None:
    """Return where the program calls the outermost module that failed: the call, its frame, the shape of its input."""
    own = failure.own_frames
    inner = next((i for i, f in enumerate(own) if (v := f.values.get("self")) and v.kind == "module"), len(own))
    place = failing_call(failure, own[inner - 1]) if inner else None
    if place is None or not place[1].args:
        return None
    passed = failure.value(dotted(place[1].args[0]), own[inner - 1])
    if passed is None and inner < len(own) and (source := failure.source(own[inner])) is not None:
        function = source.function_at(own[inner].line)
        passed = own[inner].values.get(parameters(function)[1]) if function and parameters(function)[1:] else None
    shape = passed.shape if passed is not None else known_shape(failure, place[0], place[1].args[0], own[inner - 1])
    return place[0], place[1], own[inner - 1], shape


def _without_batch_axis(
    failure: Failure, rows: int | None, features: int, expected: int, layer: str
) -> Explanation | None:
    """Explain a single image: convolutions take it, a flattening then takes its channels for samples."""
    place = _model_call(failure)
    if not rows or rows == 1 or rows * features != expected or place is None:
        return None
    source, call, frame, shape = place
    kinds = {2: "Conv1d", 3: "Conv2d", 4: "Conv3d"}
    kind = kinds.get(len(shape)) if shape else None
    live = [name for _, v in failure.values() for _, name in v.children or ()]
    if kind is None or not (kind in live or any(True for _ in layer_definitions(failure, kind))):
        return None
    node = call.args[0]
    where = origin(failure, source, node, frame)
    part = where.node if isinstance(where.node, ast.Subscript) and isinstance(constant(where.node.slice), int) else None
    number = constant(part.slice) if part is not None else None
    batch = f"{where.source.code(part.value)}[{number}:{number + 1}]" if part is not None and number != -1 else ""  # type: ignore[operator]
    after = f"{in_parentheses(source, node)}.unsqueeze(0)"
    origin_text = f", made by `{where.code}` ({where.place})," if where.node is not node else ""
    return Explanation(
        f"`{source.code(node)}` in `{source.code(call)}` ({source.place(call)}){origin_text} is a single sample "
        f"{sizes(shape or ())} without a batch axis. Convolutions take it, but the flattening keeps the first axis, "
        f"which now holds the {rows} channels: `{layer}` gets {count(rows, 'row')} of {count(features, 'feature')} in "
        f"place of one row of {rows} x {features} = {expected}.",
        f"Add the batch axis: `{source.code(call.func)}({after})`"
        + (f", or take a batch of one: `{batch}`." if batch else ".")
        + f" `in_features={expected}` is right.",
        changed(source, node, after),
    )


# What makes as many columns as the data that it gets has values, and how two parts of the data get the same columns.
BY_TABLE = "encode the whole table before it is split, or give the second part the columns of the first: "
BY_TABLE += "`table.reindex(columns=first.columns, fill_value=0)`"
FITTED = dict.fromkeys(("get_dummies", "pivot_table", "crosstab"), BY_TABLE)
FITTED |= dict.fromkeys(
    ("fit_transform", "fit"), "fit once, on the training data, and call `transform` for every other part"
)
FITTED |= dict.fromkeys(
    ("unique", "Counter", "set"), "collect the values once, from the training data, and pass them to both"
)
FITTED["one_hot"] = "give the number of classes: `num_classes=...`"


def _size_of_other_data(failure: Failure, start: str, features: int, expected: int) -> Explanation | None:
    """Explain a layer whose size was read from other data than its input: both were made apart."""
    place = _model_call(failure)
    if place is None or place[3] is None or place[3][-1] != features:
        return None  # what the layer gets is not what the model gets
    model_input = origin(failure, place[0], place[1].args[0], place[2])
    for source, call, _ in layer_definitions(failure, "Linear"):
        size = argument(call, 0, "in_features")
        read = origin(failure, source, size, None) if size is not None else None
        table = sized_by(read.node) if read is not None else None
        if read is None or table is None:
            continue
        function = read.source.function_at(table.lineno)
        scope = function.name if function is not None else "<module>"
        values = (v for f, v in failure.values(library=False) if f.function == scope and v.name == dotted(table))
        live = next((v for v in values if v.shape), None)
        maker = origin(failure, read.source, table, read.frame)
        if maker.node is model_input.node or (live is not None and (live.shape or ())[-1] != expected):
            continue
        same = [isinstance(w.node, ast.Call) and last_name(w.node.func) for w in (maker, model_input)]
        if live is None and (not same[0] or same[0] != same[1]):
            continue
        text = f"{start}, a size that was read from other data: `{read.code}` ({read.place})"
        name = dotted(table) or read.source.code(table)
        text += f", where `{name}` comes from `{maker.code}` ({maker.place})" if maker.node is not table else ""
        text += f". The input `{place[0].code(place[1].args[0])}` has {features} columns"
        same_node = model_input.node is place[1].args[0]
        text += "." if same_node else f" and comes from `{model_input.code}` ({model_input.place})."
        fix = f"Give both the same columns, made in the same way; `in_features={expected}` is right for `{name}`"
        fitted = _fitted(failure, model_input)
        if fitted is not None:
            text += f" `{fitted[0].code(fitted[1])}` ({fitted[0].place(fitted[1])}) makes a column for each "
            text += "different value in the data that it gets, and the two parts do not have the same values."
            fix = FITTED[last_name(fitted[1].func)]
            fix = f"{fix[0].upper()}{fix[1:]}"
        return Explanation(text, f"{fix}.")
    return None


def sized_by(node: ast.AST) -> ast.expr | None:
    """Return the table `x` of `x.shape[1]`, `x.size(1)`, `len(x.columns)` and `len(x[0])`."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        return node.value.value if constant(node.slice) in (1, -1) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
        return node.func.value if constant(argument(node, 0, "dim")) in (1, -1) else None
    inner = node.args[0] if isinstance(node, ast.Call) and dotted(node.func) == "len" and node.args else None
    if (isinstance(inner, ast.Attribute) and inner.attr == "columns") or isinstance(inner, ast.Subscript):
        return inner.value
    return None


def _fitted(failure: Failure, where: Origin) -> tuple[Source, ast.Call] | None:
    """Return the call that makes as many columns as there are values, in an expression or a function that it calls."""
    todo: list[tuple[Source, ast.AST, int]] = [(where.source, where.node, 0)]
    while todo:
        source, node, depth = todo.pop(0)
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            name = last_name(call.func)
            if name in FITTED and not (name == "one_hot" and argument(call, 1, "num_classes") is not None):
                return source, call
            if depth < 3:
                todo += [(s, f, depth + 1) for s in failure.all_sources() for f in s.functions(name)]
        for name in {dotted(part) for part in ast.walk(node) if isinstance(part, ast.Name) and depth < 3} - {""}:
            binding = source.binding(name, getattr(node, "lineno", 0))
            if binding is not None and binding.kind == "assign" and isinstance(binding.value, ast.Call):
                todo.append((source, binding.value, depth + 1))
    return None


def _joined_features(
    failure: Failure, definition: tuple[Source, ast.Call, str] | None, features: int, expected: int
) -> tuple[str, str, Edit | None] | None:
    """Explain an input that was joined from parts of which the layer's size leaves one out: text, fix and edit."""
    place = failing_call(failure, failure.frame)
    if place is None or not place[1].args or definition is None:
        return None
    code, parts = joined_parts(failure, place[0], place[1].args[0])
    widths = [(part, shape[-1]) for part in parts if (shape := known_shape(failure, place[0], part, failure.frame))]
    source, call, _ = definition
    size = argument(call, 0, "in_features")
    extra = next((part for part, width in widths if expected + width == features), None)
    text = f" It is joined by {code}"
    if len(widths) == len(parts) and sum(width for _, width in widths) == features:
        text += f" from {' and '.join(f'`{place[0].code(part)}` ({width})' for part, width in widths)}"
    elif extra is None:
        return None
    written = source.code(size)
    if extra is None or size is None or isinstance(constant(size), int):
        return (
            f"{text}.",
            f"Build the layer for all of them: `in_features={features}`.",
            changed(source, size, str(features)),
        )
    missing, width = place[0].code(extra), features - expected
    text += (
        f", and `{missing}` ({place[0].place(extra)}) adds {width} features that `{written}` = {expected} leaves out."
    )
    constructor = source.function_at(call.lineno)
    names = [] if constructor is None else [n for n in ast.walk(constructor) if isinstance(n, ast.Name)]
    named = next((n.id for n in names if whole_number(failure, source, n) == width), str(width))
    after = f"{features // expected} * {written}" if width == expected else f"{written} + {named}"
    return (
        text,
        f"Count it too (`in_features={features}`): `{source.code(call).replace(written, after, 1)}`.",
        changed(source, size, after),
    )


def _joined_batch(failure: Failure) -> tuple[Source, ast.Call, str] | None:
    """Return the call that flattened the failing layer's input with its batch axis, and the name of what it flattened.

    It stands in the failing call, or in the last assignment to its argument in the same function.
    """
    place = failing_call(failure, failure.frame)
    if place is None or not place[1].args:
        return None
    source, layer_call = place
    value: ast.AST = layer_call.args[0]
    if isinstance(value, ast.Name):
        scope = source.function_at(layer_call.lineno)
        assigned = [
            node
            for node in (source.nodes if scope is None else ast.walk(scope))
            if isinstance(node, ast.Assign) and node.lineno < layer_call.lineno and dotted(node.targets[0]) == value.id
        ]
        value = max(assigned, key=lambda node: node.lineno).value if assigned else value
    for call in source.calls("flatten", "view", "reshape", "ravel", inside=value):
        flattened = call.func.value if isinstance(call.func, ast.Attribute) else None
        arguments = call.args
        if dotted(flattened) in ("torch", "") and arguments and last_name(call.func) in ("flatten", "ravel"):
            flattened, arguments = arguments[0], arguments[1:]
        to_one_axis = last_name(call.func) in ("flatten", "ravel") or (arguments and constant(arguments[0]) == -1)
        expected_arguments = 0 if last_name(call.func) in ("flatten", "ravel") else 1
        if flattened is not None and to_one_axis and len(arguments) == expected_arguments and not call.keywords:
            return source, call, source.code(flattened)
    return None


def _batch_in_one_row(
    text: str, features: int, expected: int, source: Source, call: ast.Call, name: str
) -> Explanation:
    """A flattening that leaves one row for the whole batch."""
    samples = f" = {features // expected} samples x {expected}" if features % expected == 0 else ""
    after = f"torch.flatten({name}, 1)"
    return Explanation(
        f"{text}, but it gets the whole batch as one row of {features} values{samples}: `{source.code(call)}` "
        f"({source.place(call)}) flattens the batch axis too.",
        f"Keep the batch axis: `{after}`"
        + (". `in_features` is right." if samples else "; then set `in_features` to the values of one sample."),
        replaced(source, call.lineno, source.code(call), after),
    )


def _bidirectional(failure: Failure) -> str:
    """Say which recurrent layer has two directions."""
    live = next((v for _, v in failure.values() if v.type in RECURRENT and "bidirectional=True" in v.text), None)
    for source, call, target in layer_definitions(failure, *RECURRENT):
        both = argument(call, -1, "bidirectional")
        written = live is None and both is not None and literal(failure, source, both) is not False
        if written or (live is not None and target == live.name):
            label = target.removeprefix("self.") or last_name(call.func)
            return (
                f"`{label}` (`{live.text if live else source.code(call)}`, {source.place(call)}) is bidirectional and "
                "returns the forward and the backward states side by side"
            )
    return ""


RECURRENT = ("LSTM", "GRU", "RNN")


def _flattened_from(failure: Failure, features: int) -> str:
    """Say which feature map has so many values: one of the frame, else the last convolution's."""
    for value in named_inputs(failure):
        if value.shape and len(value.shape) == 4 and math.prod(value.shape[1:]) == features:
            return f" (`{value.name}` is {sizes(value.shape)}: {times(value.shape[1:])} = {features})"
    images = [value.shape for _, value in failure.values(library=False) if value.kind == "tensor" and value.shape]
    for *_, height, width in (shape for shape in images if len(shape) == 4):
        for halvings in range(1, 7):
            area = (height >> halvings) * (width >> halvings)
            if area > 1 and features % area == 0 and features // area in _widths(failure):
                return (
                    f" (= {features // area} x {height >> halvings} x {width >> halvings}: the image of {height} x "
                    f"{width}, "
                    f"halved {halvings} times and flattened)"
                )
    for _, call, target in reversed(list(layer_definitions(failure, "Conv2d"))):
        channels = constant(argument(call, 1, "out_channels"))
        if isinstance(channels, int) and channels > 0 and features % channels == 0:
            side = math.isqrt(features // channels)
            if side > 1 and side * side == features // channels:
                made_by = (
                    f"the flattened output of `{target.removeprefix('self.')}`"
                    if target
                    else "the flattened feature map"
                )
                return f" (= {channels} x {side} x {side}, {made_by})"
    return ""


def _widths(failure: Failure) -> set[object]:
    """Return the whole numbers from 4 on that the sources name: possible numbers of channels."""
    return {
        node.value
        for source in failure.all_sources()
        for node in source.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 4
    }


def _plain_product(fact: Fact, failure: Failure) -> Explanation | None:
    """A product of two tensors that the program wrote itself."""
    place = failing_expression(failure, failure.frame, ast.BinOp, ast.Call)
    if place is None:
        return None
    source, node = place
    names = operand_texts(source, node)
    if len(names) < 2:
        return None
    a, b = names[:2]
    stored = [value.shape for name in (a, b) if (value := failure.value(name)) is not None and value.shape]
    left, right = stored if len(stored) == 2 else ((fact.rows, fact.features), (fact.expected, fact.outputs))
    if len(left) != 2 or len(right) != 2 or None in (*left, *right):
        return None
    text = (
        f"`{source.code(node)}` multiplies `{a}` {sizes(left)} by `{b}` {sizes(right)}: the {left[1]} columns of "
        f"`{a}` have to equal the {right[0]} rows of `{b}`."
    )  # type: ignore[arg-type]
    if left[1] == right[1]:
        return Explanation(
            f"{text} `{b}` has them in its second axis, so it is the wrong way round.", f"Transpose it: `{a} @ {b}.T`."
        )
    if left[0] == right[0]:
        return Explanation(
            f"{text} They agree in their first axes, so `{a}` is the wrong way round.", f"Transpose it: `{a}.T @ {b}`."
        )
    for name in (a, b):
        counted = _counted_from_data(failure, name)
        if counted:
            return Explanation(
                f"{text} `{name}` takes its size from {counted}, so that what does not occur there has no row.",
                "Pass the size that is meant (the number of items), and do not take it from the data.",
            )
    return Explanation(
        text, f"Make the two sizes agree: change the layer or the array that makes `{b}` to {left[1]} rows."
    )


def _counted_from_data(failure: Failure, name: str) -> str:
    """Say where a size is taken from the largest value of some data, in the function that makes a tensor."""
    source = failure.source(failure.frame)
    statement = source.statement_at(failure.frame.line) if source and failure.frame else None
    node = (
        next((n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name), None) if statement else None
    )
    if source is None or node is None:
        return ""
    maker = origin(failure, source, node, failure.frame)
    if not isinstance(maker.node, ast.Call):
        return ""
    for where in failure.all_sources():
        for function in where.functions(last_name(maker.node.func)):
            for call in where.calls("max", "unique", inside=function):
                return f"the largest value in `{where.code(call)}` ({where.place(call)})"
    return ""


@explains("batched_matmul")
def wrong_batched_product(fact: Fact, failure: Failure) -> Explanation | None:
    """A batched product whose second operand has its axes in another order."""
    place = failing_expression(failure, failure.frame, ast.Call, ast.BinOp)
    names = operand_texts(*place) if place else []
    if len(names) < 2:
        return None
    a, b = names[:2]
    left, right = failure.value(a), failure.value(b)
    shapes = (left.shape, right.shape) if left and right else (None, None)
    if fact.expected and fact.actual and not all(shapes):
        right_start = fact.actual
        text = (
            f"`{b}` has to begin with {sizes(fact.expected)} to follow `{a}` in a batched product, but it begins "
            "with "
            f"{sizes(right_start)}."
        )
        return Explanation(text, f"Transpose its last two axes: `{b}.transpose(1, 2)`.")
    if not all(shapes) or left is None or right is None:
        return None
    first, second = shapes
    assert first is not None and second is not None
    text = (
        f"`{source_code(place)}` multiplies `{a}` {sizes(first)} by `{b}` {sizes(second)}: the last axis of "
        f"`{a}` ({first[-1]}) has to equal the second axis of `{b}` ({second[-2]})."
    )
    if first[-1] == second[-1]:
        after = (*second[:-2], second[-1], second[-2])
        fix = (
            f"Transpose `{b}`: `{b}.transpose(1, 2)` is {sizes(after)}, and the product is "
            f"{sizes((*first[:-1], second[-2]))}."
        )
        edit = None
        if (
            place is not None
            and failure.frame is not None
            and isinstance(place[1], ast.Call)
            and failure.source(failure.frame)
        ):
            before = place[0].code(place[1])
            edit = replaced(place[0], failure.frame.line, before, before.replace(f", {b}", f", {b}.transpose(1, 2)", 1))
        return Explanation(f"{text} `{b}` was not transposed.", fix, edit)
    return Explanation(text, f"Make these two sizes agree, or transpose `{b}`.")


@explains("conv_channels")
def wrong_channels(fact: Fact, failure: Failure) -> Explanation | None:
    """A convolution that gets another number of channels than it was built for."""
    channels, expected = fact.channels, fact.expected
    shape: tuple[int, ...] = fact.input or ()
    if channels is None or expected is None:
        return None
    layer = failing_layer(failure)
    module = failure.module.text if failure.module and failure.module.text else ""
    weight = fact.weight
    outputs = weight[0] if weight else None
    definition = layer_definition(failure, module.partition("(")[0] or "Conv2d", 0, "in_channels", expected)
    place = f" ({definition[0].place(definition[1])})" if definition else ""
    name = (named_layer(layer) or "The convolution") + place
    built = (
        f"`{module}`"
        if module
        else f"built for {count(expected, 'channel')}" + (f" (weight {sizes(weight)})" if weight else "")
    )
    shape = shape or layer_input(failure) or ()
    text = f"{name} is {built}, but its input {sizes(shape)} has {count(channels, 'channel')} in axis 1."
    if len(shape) == 3 and shape[-1] == expected and "Norm" in module:
        return Explanation(
            f"{text} The {expected} features stand in the last axis: (batch, length, features).",
            f"Swap the axes around it: `{layer.rpartition('.')[2]}(x.transpose(1, 2)).transpose(1, 2)`, or use "
            f"`nn.LayerNorm({expected})`, which works on the last axis.",
        )
    others = [axis for axis in range(2, len(shape)) if shape[axis] == expected]
    if others and shape[1] != expected:
        axis = others[-1]
        variable = operand(failure, shape)
        after = axis_moved(variable, shape, axis, 1)
        edit = moved_edit(failure, variable, after)
        if len(shape) == 4 and axis == 3:
            return Explanation(
                f"{text} The {expected} channels stand last: the batch is in N H W C order, as images are read.",
                f"Move them to axis 1: `{after}`; for a single image `.permute(2, 0, 1)`, which "
                "`transforms.ToTensor()` does.",
                edit,
            )
        form = {3: "(batch, channels, length)", 5: "(batch, channels, depth, height, width)"}
        return Explanation(
            f"{text} The {expected} channels stand in axis {axis}, and the layer takes "
            f"{form.get(len(shape), 'them in axis 1')}: the {channels} steps of axis 1 were taken for channels.",
            f"Move the channels to axis 1: `{after}`.",
            edit,
        )
    tensor = layer_input(failure)
    if tensor is not None and len(tensor) == 3 and len(shape) == 4 and expected == 1:
        variable = operand(failure, tensor)
        return Explanation(
            f"{name} is {built}, but its input is {sizes(tensor)}: the channel axis is missing, so that the "
            f"{tensor[0]} samples of the batch were taken for channels.",
            f"Add the channel axis: `{variable}.unsqueeze(1)`, which gives {sizes((tensor[0], 1, *tensor[1:]))}.",
            moved_edit(failure, variable, f"{variable}.unsqueeze(1)"),
        )
    if len(shape) == 4 and shape[-1] == 1 and shape[0] == expected and shape[1] > max(CHANNELS):
        return Explanation(
            f"{text} It is one image (channels first) with an axis of size 1 at its end, and a batch axis comes first.",
            "Add it in front: `x.unsqueeze(0)` in place of `x.unsqueeze(-1)`, or take batches from a DataLoader.",
        )
    if len(shape) == 4 and shape[-1] in CHANNELS and shape[1] > max(CHANNELS) and expected in (1, 3):
        mode = "RGB" if expected == 3 else "L"
        return Explanation(
            f"{text} The batch is in N H W C order, and its images are {CHANNELS[shape[-1]]} "
            f"({shape[-1]} in the last axis).",
            "Move the channels to axis 1 (`x.permute(0, 3, 1, 2)`), and give the images "
            f"{count(expected, 'channel')}: "
            f'`Image.open(path).convert("{mode}")`.',
        )
    if len(shape) == 3 and shape[0] == expected:
        return Explanation(
            f"{text} {sizes(shape)} is a single sample: its first axis has the {expected} channels and was taken "
            "for the batch.",
            "Add the batch axis: `x.unsqueeze(0)`.",
        )
    first = gets_the_input(failure, shape, definition)
    if first and channels in CHANNELS and expected in (1, 3) and len(shape) >= 3:
        return _image_mode(failure, text, channels, expected, outputs)
    other = size_of_another_layer(failure, "in_channels")
    if other is not None:
        return Explanation(
            text + other[0], f"Take it from the layer that is replaced, before it is replaced: {other[2]}.", other[1]
        )
    fix = (
        f"Set `in_channels={channels}` of this layer, or change the layer before it to "
        f"{count(expected, 'output channel')}."
    )
    return Explanation(text, fix, number_edit(definition, 0, "in_channels", channels))


def _image_mode(failure: Failure, text: str, channels: int, expected: int, outputs: int | None) -> Explanation:
    mode = "RGB" if expected == 3 else "L"
    kind = CHANNELS[channels]
    reason = {
        4: "the images have an alpha channel (RGBA, as PNG files often do)",
        2: "the images have an alpha channel",
        1: "the images are grayscale",
        3: "the images are in colour",
    }[channels]
    for source in failure.all_sources():
        for call in source.calls("open"):
            if "Image" in dotted(call.func):
                before = source.code(call)
                edit = replaced(source, call.lineno, before, f'{before}.convert("{mode}")')
                fix = f'Convert each image when it is opened: `{before}.convert("{mode}")` ({source.place(call)}).'
                return Explanation(
                    f"{text} Four channels are RGBA: {reason}." if channels == 4 else f"{text} So {reason}.", fix, edit
                )
    fix = (
        f'Convert the images when they are read (`Image.open(path).convert("{mode}")`), or build the layer for '
        f"{kind} input: `in_channels={channels}`."
    )
    return Explanation(f"{text} That is the number of channels of {kind} images.", fix)


@explains("conv_dimensions")
def missing_axis(fact: Fact, failure: Failure) -> Explanation | None:
    """A layer that gets a tensor with too few or too many axes."""
    shape, batched = fact.input, fact.batched
    tensor = layer_input(failure)
    shape = shape or tensor
    layer = failing_layer(failure)
    name = named_layer(layer) or (f"`{fact.operator}`" if fact.operator else "The layer")
    if not shape or not batched:
        return None
    wanted = {3: "(N, C, L)", 4: "(N, C, H, W)", 5: "(N, C, D, H, W)", 2: "(N, C)"}.get(batched, f"{batched} axes")
    text = f"{name} takes input of the form {wanted}, but it got {sizes(shape)}."
    if len(shape) == batched - 1:
        return Explanation(
            f"{text} The batch axis is missing."
            if shape[0] in (1, 3) or module_size(failure) == shape[0]
            else f"{text} One axis is missing: the channels, or the batch.",
            f"Add it: `{operand(failure, shape)}.unsqueeze(0)` for a batch of one sample, "
            f"`{operand(failure, shape)}.unsqueeze(1)` for one channel.",
        )
    variable = operand(failure, shape)
    channels = module_size(failure)
    if len(shape) == 2 and batched in (3, 4, 5) and channels == shape[1] != 1:
        tail, ones = ", None" * (batched - 2), ", 1" * (batched - 2)
        maker = _random_maker(failure, variable)
        maker_text = f" `{variable}` is made by `{maker[0]}` ({maker[1]})." if maker else ""
        after = f"{variable}[:, :{tail}]"
        fix = f"Give it those axes: `{after}` is {sizes((*shape, *[1] * (batched - 2)))}"
        fix += f", or make it so: `{maker[0][:-1]}{ones})`." if maker else "."
        return Explanation(
            f"{text} `{variable}` has {shape[1]} values for each of {count(shape[0], 'sample')}, which is the number "
            f"of channels, but no {'length' if batched == 3 else 'height and width'}: a noise or latent vector goes "
            f"in as a map of 1 x 1.{maker_text}"
            if batched > 3
            else f"{text} `{variable}` has {shape[1]} channels for each of {count(shape[0], 'sample')}, but no "
            f"length.{maker_text}",
            fix,
            moved_edit(failure, variable, after),
        )
    if len(shape) == 2 and batched == 4:
        side = math.isqrt(shape[1] // channels) if channels else 0
        if channels and side > 1 and channels * side * side == shape[1]:
            after = f"{variable}.view(-1, {channels}, {side}, {side})"
            return Explanation(
                f"{text} The images were flattened: {shape[1]} = {channels} x {side} x {side}.",
                f"Reshape them before the first convolution: `{after}`.",
                moved_edit(failure, variable, after),
            )
        if max(shape) <= 4 * min(shape):
            return Explanation(f"{text} Batch and channel axes are missing.", f"Add them: `{variable}[None, None]`.")
        return Explanation(
            f"{text} Two axes are missing: a flattened image, or a single one without batch and channel axes.",
            f"Reshape it to {wanted} before the layer: `{variable}.view(-1, channels, height, width)`.",
        )
    if len(shape) == batched - 2:
        return Explanation(f"{text} Batch and channel axes are missing.", f"Add them: `{variable}[None, None]`.")
    return Explanation(
        text,
        f"Reshape or permute the input to {wanted}; there are {len(shape) - batched} axes too many: `x.flatten(0, "
        f"{len(shape) - batched})`."
        if len(shape) > batched
        else f"Reshape the input to {wanted}.",
    )


def _random_maker(failure: Failure, name: str) -> tuple[str, str] | None:
    """Return the call of torch that makes a tensor of given sizes, and its place."""
    for frame in reversed(failure.own_frames):
        source = failure.source(frame)
        binding = source.binding(name, frame.line) if source else None
        call = binding.value if binding is not None else None
        if source is None or not isinstance(call, ast.Call) or call.keywords:
            continue
        if dotted(call.func) in ("torch.randn", "torch.rand", "torch.zeros", "torch.ones"):
            return source.code(call), source.place(call)
    return None


@explains("divisible")
def not_divisible(fact: Fact, failure: Failure) -> Explanation | None:
    """A number that has to be a multiple of another one."""
    frame = failure.frame
    place = failing_call(failure, frame)
    code = f"`{place[0].code(place[1])}` ({frame.place})" if place and frame else "The layer"
    total, parts = fact.total, fact.parts
    names = ("embed_dim", "num_heads")
    inner = next((f for f in reversed(failure.frames) if f.is_library and set(names) <= set(f.values)), None)
    if total is None and inner is not None:
        total, parts = (inner.values[name].number for name in names)
    if total is None and place is not None:
        values = [literal(failure, place[0], value) for value in place[1].args[:2]]
        values = (
            [
                literal(failure, place[0], value) if (value := argument(place[1], index, name)) is not None else None
                for index, name in enumerate(names)
            ]
            if "num_heads" in failure.message
            else values
        )
        total, parts = values if len(values) == 2 and all(isinstance(n, int) for n in values) else (None, None)
    if not isinstance(total, int) or not isinstance(parts, int) or not parts:
        return None
    what = fact.name or ("num_heads" if "num_heads" in failure.message else "parts")
    return Explanation(
        f"{code}: {total} is split into {parts} equal parts, and {total} is not divisible by {parts}."
        + setting(failure, str(what), parts),
        divisors_advice(str(what), total, parts),
    )


@explains("normalize")
def wrong_normalisation(fact: Fact, failure: Failure) -> Explanation | None:
    """Mean and standard deviation for another number of channels than the image has."""
    if not any(frame.function == "normalize" for frame in failure.frames):
        return None
    for source in failure.all_sources():
        for call in source.calls("Normalize", "normalize"):
            channels = fact.left[0] if fact.left else None
            mean = argument(call, 0, "mean")
            number = len(mean.elts) if isinstance(mean, ast.List | ast.Tuple) else fact.right[0] if fact.right else None
            if channels is not None and number is not None and channels != number:
                return Explanation(
                    f"`{source.code(call)}` ({source.place(call)}) has {number} means, but the image has "
                    f"{count(channels, 'channel')} ({CHANNELS.get(channels, 'another kind')}).",
                    'Convert every image to one mode when it is opened (`convert("RGB")`), or give one mean and '
                    "deviation for each channel.",
                )
    return None


def setting(failure: Failure, name: str, value: int) -> str:
    """Say where the program sets a name to a number: an assignment, a keyword or an entry of a dict."""
    last = name.rpartition(".")[2]
    for source in failure.all_sources():
        for node in source.nodes:
            pairs: list[tuple[str, ast.AST | None]] = []
            if isinstance(node, ast.keyword):
                pairs = [(node.arg or "", node.value)]
            elif isinstance(node, ast.Assign):
                pairs = [(last_name(target), node.value) for target in node.targets]
            elif isinstance(node, ast.Dict):
                pairs = [(str(constant(key)), entry) for key, entry in zip(node.keys, node.values, strict=True)]
            for key, entry in pairs:
                if (
                    key.lower() in (last.lower(), f"n_{last}".lower(), f"num_{last}".lower())
                    and constant(entry) == value
                ):
                    assert entry is not None
                    return f" `{key}` is set to {value} at {source.place(entry)}."
    return ""


def divisors_advice(name: str, total: int, parts: int) -> str:
    """Say which numbers of parts divide a size evenly, and which sizes the given number of parts divides."""
    near = [n for n in range(1, total + 1) if total % n == 0]
    lower, upper = max((n for n in near if n <= parts), default=1), min((n for n in near if n >= parts), default=total)
    below, above = total // parts * parts, -(-total // parts) * parts
    return (
        f"Choose `{name.rpartition('.')[2]}` so that it divides {total} (such as {lower} or {upper}), or a size "
        f"that {parts} divides ({below} or {above} in place of {total})."
    )


@explains("batch_norm_single")
def batch_of_one(fact: Fact, failure: Failure) -> Explanation | None:
    """A batch with a single sample in front of BatchNorm."""
    shape = fact.input
    if not shape:
        return None
    layer = named_layer(failing_layer(failure))
    name = f"{layer} ({failure.module.type})" if layer and failure.module else "BatchNorm"
    text = f"{name} got {sizes(shape)}: a single value for each channel, from which no variance can be computed."
    loader = next(
        (
            value
            for _, value in failure.values()
            if value.kind == "loader" and (dataset_length(value) or 0) % max(value.batch_size or 1, 1) == 1
        ),
        None,
    )
    if loader is not None:
        length = dataset_length(loader) or 0
        text += (
            f" `{loader.name}` has {length} samples in batches of {loader.batch_size}: the last batch has "
            f"{length % loader.batch_size}."
        )
        edit = _drop_last(failure, loader.name)
        return Explanation(
            text, f"Use `drop_last=True` in `{loader.name}`, or another batch size that leaves no single sample.", edit
        )
    if shape[0] == 1:
        return Explanation(
            f"{text} The batch has one sample: the last batch of an epoch, or a test with a single input.",
            "Use `drop_last=True` in the training DataLoader, call `model.eval()` before you try a single sample, "
            "or use GroupNorm.",
        )
    return Explanation(
        text, "Use larger inputs, or GroupNorm or LayerNorm in place of BatchNorm where a map shrinks to 1 x 1."
    )


def _drop_last(failure: Failure, name: str) -> Edit | None:
    for source in failure.all_sources():
        for node in source.nodes:
            if (
                isinstance(node, ast.Assign)
                and dotted(node.targets[0]) == name
                and isinstance(node.value, ast.Call)
                and last_name(node.value.func) == "DataLoader"
            ):
                code = source.code(node.value)
                return replaced(source, node.lineno, code, f"{code[:-1]}, drop_last=True)")
    return None


@explains("recurrent_size")
def recurrent_layer(fact: Fact, failure: Failure) -> Explanation | None:
    """An RNN, LSTM or GRU whose input or hidden state has another size."""
    module = failure.module
    name = named_layer(failing_layer(failure)) or "The recurrent layer"
    built = f" (`{module.text}`)" if module and module.text else ""
    tensor = layer_input(failure)
    if fact.expected is not None:
        text = (
            f"{name}{built} takes {fact.expected} features in the last axis, but its "
            f"input{f' {sizes(tensor)}' if tensor else ''} has {fact.features}."
        )
        if tensor and fact.expected in tensor[:-1]:
            return Explanation(
                f"{text} {fact.expected} stands in axis {tensor.index(fact.expected)}.",
                f"Swap the axes: `x.transpose({tensor.index(fact.expected)}, {len(tensor) - 1})`.",
            )
        return Explanation(
            text,
            f"Set `input_size={fact.features}`, or change what makes the input to {fact.expected} features.",
            number_edit(
                layer_definition(failure, module.type if module else "LSTM", 0, "input_size", fact.expected),
                0,
                "input_size",
                fact.features,
            ),
        )
    expected, actual = fact.expected_shape, fact.actual_shape
    if not expected or not actual:
        return None
    text = (
        f"{name}{built} needs a hidden state of {sizes(expected)} (layers, batch, hidden size), but got "
        f"{sizes(actual)}."
    )
    if len(expected) == len(actual) == 3 and expected[1] != actual[1] and expected[::2] == actual[::2]:
        if tensor is not None and len(tensor) == 3 and (wrong := _batch_in_another_axis(failure, tensor, actual[1])):
            return Explanation(f"{text} {wrong.text}", wrong.fix, wrong.edit)
        rest = batch_rest(failure, actual[1], expected[1])
        text += (
            f" {rest.text}"
            if rest
            else f" This batch has {count(expected[1], 'sample')}, the state was made for {actual[1]}."
        )
        return Explanation(
            text,
            "Make the state from the batch: `torch.zeros(layers, x.size(0), hidden)`, or use `drop_last=True` in "
            "the DataLoader.",
        )
    return Explanation(
        text,
        "Build the state with these sizes; with `batch_first=True` the state still has the batch in its second axis.",
    )


def _batch_in_another_axis(failure: Failure, shape: tuple[int, ...], batch: int) -> Explanation | None:
    """Explain a recurrent layer that takes the time steps of its input for the batch."""
    text = failure.module.text if failure.module and failure.module.text else ""
    first = "batch_first=True" in text
    if shape[0 if not first else 1] != batch or shape[0] == shape[1] or not text:
        return None
    name, built = named_layer(failing_layer(failure)) or "the layer", layer_built(failure)
    code = built[0].code(built[1]) if built else ""
    if first:
        return Explanation(
            f"It was built with `batch_first=True` and reads its input {sizes(shape)} as {shape[0]} samples of "
            f"{shape[1]} time steps, but the state was made for {batch}, the size of axis 1.",
            "If axis 0 is the batch, make the state for it: `x.size(0)`. If the input is (time, batch, features), "
            "build the layer without `batch_first=True`.",
        )
    after = f"{code[:-1]}, batch_first=True)" if code else "batch_first=True"
    return Explanation(
        f"{name} was built without `batch_first=True`, so it reads its input {sizes(shape)} as {shape[0]} time "
        f"steps of a batch of {shape[1]}. The state was made for a batch of {batch}, the size of axis 0.",
        f"If the batch stands in axis 0, build the layer so: `{after}`"
        + (f" ({built[0].place(built[1])})." if built else ".")
        + " The state keeps its form (layers, batch, hidden size).",
        replaced(built[0], built[1].lineno, code, after) if built else None,
    )


@explains("attention_mask")
def wrong_attention_mask(fact: Fact, failure: Failure) -> Explanation | None:
    """Attention whose mask has the batch first while its input has the sequence first."""
    definition = next(
        iter(layer_definitions(failure, "MultiheadAttention", "TransformerEncoderLayer", "Transformer")), None
    )
    if "attn_mask" in failure.message and fact.expected_shape and fact.actual_shape:
        return _mask_of_scores(failure, fact.expected_shape, fact.actual_shape)
    layer = named_layer(failing_layer(failure)) or "The attention"
    expected = fact.expected if fact.expected is not None else (fact.expected_shape or (None,))[0]
    actual = fact.actual if fact.actual is not None else (fact.actual_shape or (None,))[0]
    text = f"{layer} expects a mask for {expected} in its first axis, but the mask has {actual}."
    if definition is None:
        return Explanation(
            text, "Give the mask the form (batch, sequence length), or (length, length) for `attn_mask`."
        )
    source, call, _ = definition
    before = source.code(call)
    if argument(call, -1, "batch_first") is None:
        after = f"{before[:-1]}, batch_first=True)"
        text += (
            f" `{before}` ({source.place(call)}) is built without `batch_first=True`, so it reads its input as "
            "(length, "
            "batch, features), while the mask is (batch, length)."
        )
        return Explanation(
            text, f"Build it with the batch first: `{after}`.", replaced(source, call.lineno, before, after)
        )
    return Explanation(
        text, "Make the mask from the same batch as the input: (batch, sequence length), True for padding."
    )


def _mask_of_scores(failure: Failure, expected: tuple[int, ...], actual: tuple[int, ...]) -> Explanation:
    """Explain a mask of the attention scores: one for all, or one for each sample and head."""
    place = failing_call(failure, failure.frame)
    node = argument(place[1], 5, "attn_mask", "mask", "src_mask", "tgt_mask") if place else None
    name = place[0].code(node) if place and node is not None else "mask"
    maker = origin(failure, place[0], node, failure.frame) if place and node is not None else None
    where = f", made by `{maker.code}` ({maker.place})," if maker and maker.node is not node else ""
    text = f"`{name}`{where} is {sizes(actual)}, but the attention needs {sizes(expected)}: "
    each, rest = divmod(expected[0], max(actual[0], 1))
    inner = failure.in_library("multi_head_attention_forward")
    heads = inner.values["num_heads"].number if inner is not None and "num_heads" in inner.values else None
    if len(expected) == len(actual) == 3 and expected[1:] == actual[1:] and not rest and heads in (None, each):
        after = f"{name}.repeat_interleave({each}, dim=0)"
        return Explanation(
            f"{text}a mask with three axes has one matrix for each sample and head, {actual[0]} samples x {each} heads "
            f"= {expected[0]}, and this one has one for each sample.",
            f"Repeat each sample's mask for every head (`num_heads` = {each}): `{after}`.",
            replaced(place[0], place[1].lineno, f"attn_mask={name}", f"attn_mask={after}") if place else None,
        )
    if len(expected) == len(actual) == 2:
        text += f"one row for each of {expected[0]} queries and one column for each of {expected[1]} keys."
        query = known_shape(failure, place[0], argument(place[1], 0, "query", "src"), failure.frame) if place else None
        if query is not None and len(query) == 3 and actual[0] in query[:2] and actual[1] == expected[1]:
            return Explanation(
                f"{text} {actual[0]} is the number of samples: the mask says for each sample which keys are padding.",
                f"Pass it as `key_padding_mask={name}` (`src_key_padding_mask` of a Transformer), True for padding.",
            )
        return Explanation(text, "Make the mask from the lengths of this batch: `(queries, keys)`.")
    return Explanation(
        f"{text}with three axes the first one is samples x heads, then queries and keys.",
        "Make the mask from the lengths of this batch, and repeat it for every head.",
    )


@explains("normalized_shape")
def wrong_normalized_shape(fact: Fact, failure: Failure) -> Explanation | None:
    """LayerNorm or attention that was built for another number of features."""
    expected, shape = fact.expected, fact.input
    features = fact.features if fact.features is not None else (shape[-1] if shape else None)
    if features is None:
        return None
    name = named_layer(failing_layer(failure)) or "The layer"
    built = f" (`{failure.module.text}`)" if failure.module and failure.module.text else ""
    text = (
        f"{name}{built} was built for {expected} features in the last axis, but its "
        f"input{f' {sizes(shape)}' if shape else ''} has {features}."
    )
    if shape and expected in shape[:-1]:
        return Explanation(
            f"{text} {expected} stands in axis {shape.index(expected)}: channels come before the last axis here.",
            f"Move them last: `x.transpose({shape.index(expected)}, -1)`, normalise, and move them back; for images "
            f"`nn.GroupNorm(1, {expected})` does the same.",
        )
    recurrent = _bidirectional(failure) if isinstance(expected, int) and features == 2 * expected else ""
    text += f" {features} = 2 x {expected}: {recurrent}." if recurrent else ""
    return Explanation(text, f"Build it for {features} features, or project the input to {expected}.")


@explains("kernel_too_large")
def input_too_small(fact: Fact, failure: Failure) -> Explanation | None:
    """An image that has been halved until nothing is left."""
    name = named_layer(failing_layer(failure)) or "The layer"
    built = f" (`{failure.module.text}`)" if failure.module and failure.module.text else ""
    images = [
        value
        for _, value in failure.values()
        if value.kind == "tensor" and len(value.shape or ()) == 4 and value.name not in ("weight", "bias")
    ]
    start = max(images, key=lambda value: (value.shape or (0,))[-1], default=None)
    begin = (
        f" The model's input is {sizes(start.shape or ())}: strides and poolings before this layer shrink it too far."
        if start is not None and (start.shape or ())[-2:] > tuple(fact.input or ())[-2:]
        else " Strides and poolings before it have shrunk the input too far."
    )
    text = f"{name}{built} gets a map of {times(fact.input)}, too small for it.{begin}"
    return Explanation(text, "Use larger images, remove a pooling or a stride, or give the layer padding.")
