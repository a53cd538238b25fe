"""Shapes that do not fit: matrix products, convolutions, concatenation, broadcasting, views, recurrent layers."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from ocrlab.debug.diagnosis.explanations.explanation import (
    Edit,
    Explanation,
    changed,
    count,
    explains,
    replaced,
    sizes,
    times,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import (
    Origin,
    dataset_class,
    failing_call,
    failing_expression,
    loader_of,
    origin,
    own_statement_nodes,
)
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted, last_name

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
    """Return the only call that builds a layer with a literal size, or the one that the failing module's name has."""
    name = failing_layer(failure).rpartition(".")[2]
    matches = [
        (source, call, target)
        for source, call, target in layer_definitions(failure, kind, f"Lazy{kind}")
        if (given := argument(call, position, keyword)) is not None and _literal(failure, source, given) == size
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


@explains("matmul")
def wrong_linear_size(fact: Fact, failure: Failure) -> Explanation | None:
    """A layer that expects another number of features than its input has."""
    features, expected, rows = fact.features, fact.expected, fact.rows
    if features is None or expected is None:
        return None
    module = failure.module
    linear = module is not None and module.type == "Linear"
    definition = layer_definition(failure, "Linear", 0, "in_features", expected)
    by_weight = failure.in_library("forward", "linear.py") is not None
    if not (linear or definition or by_weight):
        return _plain_product(fact, failure)
    source, call, target = definition or (None, None, "")
    label = target.removeprefix("self.") or failing_layer(failure)
    name = named_layer(label) or "The Linear layer"
    place = f" ({source.place(call)})" if source and call else ""
    code = (
        f"`{source.code(call)}`"
        if source and call
        else f"`{module.text}`"
        if linear and module and module.text
        else f"built for {count(expected, 'feature')}"
    )
    tensor = _layer_input(failure)
    origin_text = _flattened_from(failure, features)
    recurrent = _bidirectional(failure) if features == 2 * expected else ""
    if recurrent:
        return Explanation(
            f"{name}{place} is {code}, but its input has {features} = 2 x {expected} features: {recurrent}.",
            f"Build the layer for both directions: `in_features={features}` (2 x the hidden size), or use one "
            "direction.",
        )
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
    advice = f"Set `in_features={features}`, or use `nn.LazyLinear` so that it is read off the first batch"
    advice += (
        ", or put `nn.AdaptiveAvgPool2d` before the flattening so that the image size does not matter."
        if origin_text
        else "."
    )
    return Explanation(text, advice, _number_edit(definition, 0, "in_features", features))


def _bidirectional(failure: Failure) -> str:
    """Say which recurrent layer has two directions."""
    for source, call, target in layer_definitions(failure, "LSTM", "GRU", "RNN"):
        both = argument(call, -1, "bidirectional")
        if both is not None and _literal(failure, source, both) is not False:
            label = target.removeprefix("self.") or last_name(call.func)
            return (
                f"`{label}` (`{source.code(call)}`, {source.place(call)}) is bidirectional and returns the forward "
                "and "
                "the backward states side by side"
            )
    return ""


def _layer_input(failure: Failure) -> tuple[int, ...] | None:
    for frame in reversed(failure.frames):
        if frame.is_library and (value := frame.values.get("input")) is not None and value.shape:
            return value.shape
    return None


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
    names = _operands(source, node)
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


def _operands(source: Source, node: ast.AST) -> list[str]:
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


@explains("batched_matmul")
def wrong_batched_product(fact: Fact, failure: Failure) -> Explanation | None:
    """A batched product whose second operand has its axes in another order."""
    place = failing_expression(failure, failure.frame, ast.Call, ast.BinOp)
    names = _operands(*place) if place else []
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


def source_code(place: tuple[Source, ast.AST] | None) -> str:
    """Return the text of an expression."""
    return place[0].code(place[1]) if place else ""


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
    shape = shape or _layer_input(failure) or ()
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
    tensor = _layer_input(failure)
    if tensor is not None and len(tensor) == 3 and len(shape) == 4 and expected == 1:
        variable = operand(failure, tensor)
        return Explanation(
            f"{name} is {built}, but its input is {sizes(tensor)}: the channel axis is missing, so that the "
            f"{tensor[0]} samples of the batch were taken for channels.",
            f"Add the channel axis: `{variable}.unsqueeze(1)`, which gives {sizes((tensor[0], 1, *tensor[1:]))}.",
            moved_edit(failure, variable, f"{variable}.unsqueeze(1)"),
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
    first = _gets_the_input(failure, shape, definition)
    if first and channels in CHANNELS and expected in (1, 3) and len(shape) >= 3:
        return _image_mode(failure, text, channels, expected, outputs)
    fix = (
        f"Set `in_channels={channels}` of this layer, or change the layer before it to "
        f"{count(expected, 'output channel')}."
    )
    return Explanation(text, fix, _number_edit(definition, 0, "in_channels", channels))


def _gets_the_input(failure: Failure, shape: tuple[int, ...], definition: tuple[Source, ast.Call, str] | None) -> bool:
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
    return Explanation(f"{text} So {reason}.", fix)


def _number_edit(
    definition: tuple[Source, ast.Call, str] | None, position: int, keyword: str, after: int
) -> Edit | None:
    """Return the edit that gives a layer another number, where that stands in its call."""
    value = argument(definition[1], position, keyword) if definition is not None else None
    return changed(definition[0], value, str(after)) if definition and isinstance(constant(value), int) else None


@explains("conv_dimensions")
def missing_axis(fact: Fact, failure: Failure) -> Explanation | None:
    """A layer that gets a tensor with too few or too many axes."""
    shape, batched = fact.input, fact.batched
    tensor = _layer_input(failure)
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
        made = f" `{variable}` is made by `{maker[0]}` ({maker[1]})." if maker else ""
        after = f"{variable}[:, :{tail}]"
        fix = f"Give it those axes: `{after}` is {sizes((*shape, *[1] * (batched - 2)))}"
        fix += f", or make it so: `{maker[0][:-1]}{ones})`." if maker else "."
        return Explanation(
            f"{text} `{variable}` has {shape[1]} values for each of {count(shape[0], 'sample')}, which is the number "
            f"of channels, but no {'length' if batched == 3 else 'height and width'}: a noise or latent vector goes "
            f"in as a map of 1 x 1.{made}"
            if batched > 3
            else f"{text} `{variable}` has {shape[1]} channels for each of {count(shape[0], 'sample')}, but no "
            f"length.{made}",
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


@explains("concatenate")
def wrong_concatenation(fact: Fact, failure: Failure) -> Explanation | None:
    """Tensors whose sizes differ by rounding where a decoder joins an encoder's features."""
    first, second = fact.first, fact.second
    place = failing_call(failure, failure.frame, "cat", "concat", "concatenate", "hstack", "vstack")
    parts: list[str] = []
    if place is not None and place[1].args and isinstance(place[1].args[0], ast.List | ast.Tuple):
        parts = [place[0].code(part) for part in place[1].args[0].elts]
    position = fact.position if isinstance(fact.position, int) else 1
    a = f"`{parts[0]}`" if parts else "the first tensor"
    b = f"`{parts[position]}`" if position < len(parts) else "the other one"
    where = f" ({failure.frame.place})" if failure.frame else ""
    text = (
        f"{a} has {first} rows or columns and {b} has {second}, so that they cannot be joined along axis "
        f"{fact.axis if fact.axis is not None else 1}{where}."
    )
    flat = any(len(v.shape or ()) < 3 for name in parts if (v := failure.value(name)) is not None)
    if abs(first - second) > 4 or first < 3 or flat:
        axis = fact.differing_axis if fact.differing_axis is not None else 0 if fact.axis == 1 else None
        other = f" along axis {axis}: `dim={axis}`" if axis is not None else " along the axis in which they differ"
        return Explanation(text, f"Make both the same size in the other axes first, or join them{other}.")
    image = _image_size(failure, max(first, second))
    small = min(first, second)
    if image is not None:
        height, path, multiple = image
        low, high = height // multiple * multiple, -(-height // multiple) * multiple
        text += (
            f" The input has {height} rows or columns, and is halved to {', '.join(map(str, path))}: an odd "
            f"size is rounded down, so the way back up gives {small}."
        )
        fix = (
            f"Use sizes that are divisible by {multiple}: pad or resize the input from {height} to {high}"
            + (f" or {low}" if low else "")
            + f", or bring the upsampled map to the size of {b} before joining: `F.interpolate(x, "
            "size=skip.shape[-2:])`."
        )
        return Explanation(text, fix)
    odd = max(first, second)
    text += (
        f" {odd} is odd: halving rounds down, so the way back up gives {small}."
        if odd % 2 and small % 2 == 0
        else f" {small} is odd: halving rounds up, so the way back up gives {odd}."
        if small % 2 and odd == small + 1
        else ""
    )
    return Explanation(
        text,
        "Pad or resize the input to a size that is divisible by 2 for each halving (usually by 32), or interpolate "
        "the upsampled map to the size of the skip connection before joining: `F.interpolate(x, "
        "size=skip.shape[-2:])`.",
    )


def _image_size(failure: Failure, skip: int) -> tuple[int, list[int], int] | None:
    """Return the size of the input whose halvings lead to `skip`, those halvings, and what the input must divide by."""
    for _, value in failure.values():
        for size in (value.shape or ())[-2:] if value.kind == "tensor" and len(value.shape or ()) == 4 else ():
            path = [size]
            while path[-1] > skip and path[-1] > 1:
                path.append(path[-1] // 2)
            if path[-1] == skip and size > skip:
                path.append(skip // 2)
                return size, path[1:], 2 ** (len(path) - 1)
    return None


@explains("broadcast")
def wrong_broadcast(fact: Fact, failure: Failure) -> Explanation | None:
    """Two operands whose axes do not fit."""
    place = _two_operands(failure) or failing_expression(
        failure, failure.frame, ast.BinOp, ast.Compare, ast.AugAssign, ast.Call
    )
    names: list[str] = []
    if place is not None:
        node = place[1]
        if isinstance(node, ast.Compare):
            names = [place[0].code(node.left), place[0].code(node.comparators[0])]
        elif isinstance(node, ast.AugAssign):
            names = [place[0].code(node.target), place[0].code(node.value)]
        else:
            names = _operands(place[0], node)
    shapes = [
        (name, value.shape) for name in names if (value := failure.value(name)) is not None and value.shape is not None
    ]
    batch = _batch_rest(failure, fact.first, fact.second)
    if len(shapes) >= 2:
        (a, left), (b, right) = shapes[:2]
        text = f"`{source_code(place)}` combines `{a}` {sizes(left)} with `{b}` {sizes(right)}"
    elif fact.left and fact.right:
        left, right = fact.left, fact.right
        a, b = (
            ([*names, "the left operand", "the right operand"])[:2]
            if len(names) >= 2
            else ("the left operand", "the right operand")
        )
        text = (
            f"{f'`{source_code(place)}` combines' if place else 'The operation combines'} {sizes(left)} with "
            f"{sizes(right)}"
        )
    elif fact.first is not None and batch:
        return batch
    elif fact.first is not None and place is not None and len(names) >= 2 and failure.frame is not None:
        shown = "".join(f" `{name}` is {sizes(shape)}." for name, shape in shapes)
        text = (
            f"`{source_code(place)}` ({failure.frame.place}) combines `{names[0]}` with `{names[1]}`, which have "
            f"the sizes {fact.first} and {fact.second} in axis {fact.axis}; only equal sizes or 1 can be "
            f"combined.{shown}"
        )
        return Explanation(
            text, "Make both the same size: look for a slice, a filter or a batch that only one of them went through."
        )
    else:
        return None
    aligned = [(x, y) for x, y in zip(reversed(left), reversed(right), strict=False)]
    bad = [(index, x, y) for index, (x, y) in enumerate(aligned, 1) if x != y and 1 not in (x, y)]
    if not bad:
        return None
    index, x, y = bad[0]
    text += f": counted from the last axis, axis {index} has {x} and {y}, and only equal sizes or 1 can be combined."
    if batch:
        return Explanation(f"{text} {batch.text}", batch.fix, batch.edit)
    if len(left) == len(right) == 2 and left == right[::-1]:
        return Explanation(f"{text} One of the two is transposed.", f"Transpose it: `{b}.T`.")
    if len(left) == 2 and len(right) == 1 and left[0] == right[0]:
        return Explanation(
            f"{text} `{b}` has one value for each row of `{a}`.",
            f"Give it a second axis: `{b}.unsqueeze(1)` (numpy: `{b}[:, None]`).",
        )
    if len(right) == 2 and len(left) == 1 and right[0] == left[0]:
        return Explanation(
            f"{text} `{a}` has one value for each row of `{b}`.",
            f"Give it a second axis: `{a}.unsqueeze(1)` (numpy: `{a}[:, None]`).",
        )
    if len(left) == len(right) == 4 and left[:2] == right[:2] and place is not None and isinstance(place[1], ast.Call):
        return Explanation(
            f"`{a}` is {sizes(left)} and `{b}` {sizes(right)}: both are maps of {left[1]} channels, but {left[2]} x "
            f"{left[3]} "
            f"against {right[2]} x {right[3]} pixels. Strides round an odd size down, and a transposed convolution "
            "does not "
            "know the size that it should give back.",
            "Give `nn.ConvTranspose2d` an `output_padding` (or other kernel and padding) that leads to the size of "
            "the "
            f"target, or resize: `F.interpolate({a}, size={b}.shape[-2:])`.",
        )
    if abs(x - y) == 1 and max(x, y) > 3:
        return Explanation(
            f"{text} They differ by one: a convolution or a pooling rounded an odd size, or one sequence has an "
            "extra element (a start, an end or a class token).",
            "Make both sides equal: pad the input to an even size, or cut one element off the longer side.",
        )
    makers = [made for name in (a, b) if (made := _sized_by(failure, name, (x, y)))]
    return Explanation(
        f"{text}{' '.join(['', *makers])}",
        f"Make both {max(x, y)} long in that axis where they are built, or slice the longer one to {min(x, y)}.",
    )


def _sized_by(failure: Failure, name: str, numbers: tuple[int, int]) -> str:
    """Say where an operand is made with one of two sizes written into the call."""
    source = failure.source(failure.frame)
    statement = source.statement_at(failure.frame.line) if source and failure.frame else None
    node = (
        next((n for n in ast.walk(statement) if isinstance(n, ast.expr) and dotted(n) == name), None)
        if statement
        else None
    )
    if source is None or node is None:
        return ""
    where = origin(failure, source, node, failure.frame)
    written = {constant(part) for part in ast.walk(where.node)} & set(numbers) if where.node is not node else set()
    return f"`{name}` is made by `{where.code}` ({where.place})." if written else ""


def _two_operands(failure: Failure) -> tuple[Source, ast.AST] | None:
    """Return the only operation of the failing line between two names."""
    source, frame = failure.source(failure.frame), failure.frame
    statement = source.statement_at(frame.line) if source and frame else None
    if source is None or statement is None or frame is None or frame.expression:
        return None
    nodes = [
        node
        for node in own_statement_nodes(statement)
        if (isinstance(node, ast.BinOp) and dotted(node.left) and dotted(node.right))
        or (isinstance(node, ast.Compare) and dotted(node.left) and dotted(node.comparators[0]))
    ]
    return (source, nodes[0]) if len(nodes) == 1 else None


@explains("mask_shape")
def wrong_mask(fact: Fact, failure: Failure) -> Explanation | None:
    """A mask of another shape than the tensor that it selects from."""
    place = failing_expression(failure, failure.frame, ast.Subscript)
    if place is None or not isinstance(place[1], ast.Subscript):
        return None
    base, mask = place[0].code(place[1].value), place[0].code(place[1].slice)
    text = (
        f"`{place[0].code(place[1])}`: the mask `{mask}` is {sizes(fact.mask)}, but `{base}` is "
        f"{sizes(fact.indexed)}, and they differ in axis {fact.axis}."
    )
    if fact.mask and len(fact.mask) == 1 and fact.mask[0] in fact.indexed:
        axis = fact.indexed.index(fact.mask[0])
        return Explanation(f"{text} It fits axis {axis}.", f"Select along that axis: `{base}[{':, ' * axis}{mask}]`.")
    return Explanation(text, "Build the mask from the tensor that it selects from, or index the same axes in both.")


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
        values = [_literal(failure, place[0], value) for value in place[1].args[:2]]
        values = (
            [
                _literal(failure, place[0], value) if (value := argument(place[1], index, name)) is not None else None
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


@explains("empty_list")
def nothing_to_join(fact: Fact, failure: Failure) -> Explanation | None:
    """An empty list that is stacked or joined."""
    place = failing_call(failure, failure.frame)
    if place is None or not place[1].args or failure.frame is None:
        return None
    name = place[0].code(place[1].args[0])
    return Explanation(
        f"`{name}` is empty in `{place[0].code(place[1])}` ({failure.frame.place}): nothing was added to it.",
        "Look at the loop or the filter that fills it: a loader without batches (`drop_last=True` with fewer "
        "samples than a batch), or a condition that nothing meets.",
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


@explains("einsum")
def wrong_subscripts(fact: Fact, failure: Failure) -> Explanation | None:
    """Operands of einsum whose sizes differ under one letter."""
    place = failing_call(failure, failure.frame, "einsum")
    if place is None or not place[1].args:
        return None
    equation = constant(place[1].args[0])
    operands = [place[0].code(value) for value in place[1].args[1:]]
    shapes = [
        f"`{name}` {sizes(value.shape)}"
        for name in operands
        if (value := failure.value(name)) is not None and value.shape
    ]
    text = (
        f"In `{place[0].code(place[1])}` the letter `{fact.letter}` stands for {fact.first} in one operand and "
        f"{fact.second} in another" + (f" ({' and '.join(shapes)})." if shapes else ".")
    )
    return Explanation(
        text,
        "Check the order of the letters against the shapes, or transpose an operand."
        if equation
        else "Check the letters against the shapes.",
    )


def _batch_rest(failure: Failure, first: int | None, second: int | None) -> Explanation | None:
    """Explain two sizes that are the batch size and the rest of the last batch."""
    loader = next((value for _, value in failure.values() if value.kind == "loader"), None)
    if loader is None or first is None or second is None or loader.batch_size not in (first, second):
        return None
    length = dataset_length(loader)
    rest = second if loader.batch_size == first else first
    if length is None or length % loader.batch_size != rest or rest == loader.batch_size:
        return None
    text = (
        f"{loader.batch_size} is the batch size and {rest} the rest: {length} samples in batches of "
        f"{loader.batch_size} leave a last batch of {rest}."
    )
    return Explanation(
        text,
        f"Use `drop_last=True` in `{loader.name}`, or take the size from the batch (`x.size(0)`) where the state is "
        "made.",
    )


def dataset_length(loader: Value) -> int | None:
    """Return how many samples the data set of a loader has, where a stored value tells."""
    dataset = loader.facts.get("dataset") or {}
    if isinstance(dataset.get("length"), int):
        return int(dataset["length"])
    if dataset.get("shape"):
        return int(dataset["shape"][0])
    lengths = {
        item.get("length") if item.get("length") is not None else (item.get("shape") or [None])[0]
        for item in (dataset.get("attributes") or {}).values()
        if item.get("kind") in ("container", "tensor", "array", "table")
    } - {None}
    return int(lengths.pop()) if len(lengths) == 1 else None


@explains("view")
def wrong_view(fact: Fact, failure: Failure) -> Explanation | None:
    """A view or reshape to a size that the tensor does not have."""
    place = failing_call(failure, failure.frame, "view", "reshape", "view_as", "unflatten")
    code = f"`{source_code(place)}`" if place else "The view"
    if fact.strides:
        return Explanation(
            f"{code} needs a tensor that lies in memory in the order of its axes; after `transpose`, `permute`, "
            "`.T` or a slice it does not.",
            "Use `.reshape(...)`, or `.contiguous()` before `.view(...)`.",
            _reshape_edit(failure, place),
        )
    target, size = fact.target, fact.size
    if not target or not size:
        return None
    name = place[0].code(place[1].func.value) if place and isinstance(place[1].func, ast.Attribute) else ""
    value = failure.value(name)
    shape = value.shape if value is not None else None
    stated = f"`{name}` is {sizes(shape)} = {size} values" if shape else f"the tensor has {size} values"
    fixed = math.prod(n for n in target if n > 0)
    if -1 in target:
        text = f"{code}: {stated}, which is not a multiple of {times([n for n in target if n > 0])} = {fixed}."
        if shape and len(shape) > 1 and target[0] == -1:
            per_sample = math.prod(shape[1:])
            return Explanation(
                f"{text} Each of the {shape[0]} samples has {times(shape[1:])} = {per_sample}.",
                f"Keep the batch axis and flatten the rest: `torch.flatten({name}, 1)`, which gives "
                f"{sizes((shape[0], per_sample))}; the next layer then takes {per_sample} features.",
            )
        return Explanation(text, "Correct the sizes in the view, or the layer before it.")
    text = f"{code}: {stated}, but {times(target)} = {fixed}."
    batch = _batch_rest(
        failure, target[0], size * target[0] // fixed if fixed and size * target[0] % fixed == 0 else None
    )
    if batch:
        return Explanation(f"{text} {batch.text}", batch.fix.replace("where the state is made", "in the view"))
    divided = _uneven_parts(failure, place, shape, target)
    if divided is not None:
        return divided
    if fixed and size * target[0] % fixed == 0 and size < fixed and target[0] > 1:
        rows = size * target[0] // fixed
        return Explanation(
            f"{text} With {count(rows, 'sample')} in place of {target[0]} it would fit: the batch size is written "
            "into the view, and this batch (the last one of an epoch?) is smaller.",
            "Take it from the tensor: `x.view(x.size(0), ...)`, or use `drop_last=True` in the DataLoader.",
        )
    if shape and len(shape) > 1 and len(target) == 2 and target[0] == shape[0]:
        per_sample = math.prod(shape[1:])
        return Explanation(
            f"{text} Each of the {shape[0]} samples has {times(shape[1:])} = {per_sample} values, not {target[1]}.",
            f"Flatten what is there: `torch.flatten({name}, 1)`; the next layer then takes {per_sample} features.",
        )
    return Explanation(
        text,
        "Write -1 for one of the sizes so that it is calculated, and check the others against the shape of the tensor.",
    )


def _uneven_parts(
    failure: Failure, place: tuple[Source, ast.Call] | None, shape: tuple[int, ...] | None, target: tuple[int, ...]
) -> Explanation | None:
    """Explain a view that splits an axis into parts, where `//` has rounded the size of a part down."""
    if place is None or not shape or len(target) != len(shape) + 1:
        return None
    rounded = [
        (node, index)
        for index, node in enumerate(place[1].args)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    ]
    for node, index in rounded:
        for other in (index - 1, index + 1):
            rest = [n for i, n in enumerate(target) if i not in (index, other)]
            left = [n for n in shape if n not in rest] if index < len(target) else []
            if len(left) != 1 or not 0 <= other < len(target) or left[0] // max(target[other], 1) != target[index]:
                continue
            total, parts = left[0], target[other]
            if total % parts == 0:
                continue
            name = place[0].code(node.right)
            text = (
                f"`{place[0].code(place[1])}` ({place[0].place(place[1])}): the axis of {total} is split into {parts} "
                f"(`{name}`), but {total} is not divisible by {parts}: `{place[0].code(node)}` is {target[index]}, and "
                f"{parts} x {target[index]} = {parts * target[index]} leaves {total - parts * target[index]} over."
            )
            return Explanation(text + setting(failure, name, parts), divisors_advice(name, total, parts))
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


def _reshape_edit(failure: Failure, place: tuple[Source, ast.Call] | None) -> Edit | None:
    source = failure.source(failure.frame)
    return replaced(source, failure.frame.line, ".view(", ".reshape(") if source and place and failure.frame else None


@explains("batch_size")
def rows_of_outputs_and_targets(fact: Fact, failure: Failure) -> Explanation | None:
    """Outputs and targets with another number of rows, mostly from a view that spreads samples over rows."""
    outputs, targets = fact.outputs, fact.targets
    text = f"The loss gets {count(outputs, 'row')} of outputs and {count(targets, 'target')}."
    if outputs > targets and outputs % targets == 0:
        factor = outputs // targets
        for source in failure.all_sources():
            for call in source.calls("view", "reshape"):
                arguments = [constant(value) for value in call.args]
                output = _loss_operand(failure, "input")
                classes = output.shape[-1] if output is not None and output.shape else None
                if (
                    len(arguments) == 2
                    and arguments[0] == -1
                    and isinstance(arguments[1], int)
                    and arguments[1] != classes
                ):
                    wide = arguments[1]
                    name = source.code(call.func.value) if isinstance(call.func, ast.Attribute) else "x"
                    text += (
                        f" `{source.code(call)}` ({source.place(call)}) makes them: each sample has "
                        f"{wide * factor} = {factor} x {wide} values there, which the view spreads over "
                        f"{factor} rows, so that {count(targets, 'sample')} become {outputs}."
                    )
                    fix = (
                        f"Keep the batch axis: `torch.flatten({name}, 1)`, and build the next layer for "
                        f"{wide * factor} features."
                    )
                    after = f"torch.flatten({name}, 1)"
                    return Explanation(text, fix, replaced(source, call.lineno, source.code(call), after))
        text += (
            f" There are {factor} rows for each sample: an axis (time steps, crops, pixels) was folded into the batch."
        )
        return Explanation(
            text,
            f"Fold the targets in the same way, or unfold the outputs before the loss: `outputs.view({targets}, "
            f"{factor}, -1)`.",
        )
    output = _loss_operand(failure, "input")
    if output is not None and len(output.shape or ()) == 2 and output.shape and output.shape[1] == targets:
        return Explanation(
            f"{text} The outputs are {sizes(output.shape)}: samples stand in the second axis.",
            "Transpose the outputs: `outputs.T`.",
        )
    if targets > outputs and targets % max(outputs, 1) == 0:
        return Explanation(
            f"{text} There are {targets // outputs} targets for each output row: the model returns one row where the "
            "targets have several.",
            "Make the model return a row for each target; if the targets are one-hot, pass `targets.argmax(1)`.",
        )
    return Explanation(
        text,
        "Both have to come from the same batch: look for a slice, a filter or a `drop_last` that is applied to one "
        "of them only.",
    )


def _loss_operand(failure: Failure, name: str) -> Value | None:
    for frame in reversed(failure.frames):
        if frame.is_library and frame.values.get(name) is not None and frame.values[name].shape is not None:
            return frame.values[name]
    return None


@explains("target_size")
def shape_of_target(fact: Fact, failure: Failure) -> Explanation | None:
    """A target of another shape than the output."""
    target, output = fact.target, fact.output
    if target is None or output is None:
        return None
    names = _loss_names(failure)
    t, o = (f"`{names[1]}`", f"`{names[0]}`") if names else ("The target", "the output")
    text = f"{t} is {sizes(target)} and {o} {sizes(output)}."
    if len(output) == len(target) + 1 and output[-1] == 1 and output[:-1] == target:
        return Explanation(
            f"{text} The output has an extra axis of size 1.",
            f"Remove it: `{names[0] if names else 'output'}.squeeze(-1)`, or give the target one: "
            f"`{names[1] if names else 'target'}.unsqueeze(-1)`.",
        )
    if len(target) == len(output) + 1 and target[-1] == 1 and target[:-1] == output:
        return Explanation(
            f"{text} The target has an extra axis of size 1.",
            f"Remove it: `{names[1] if names else 'target'}.squeeze(-1)`.",
        )
    if len(target) == len(output) == 2 and target[0] == output[0] and target[1] < output[1]:
        for source in failure.all_sources():
            for call in source.calls("one_hot"):
                if argument(call, 1, "num_classes") is None:
                    before = source.code(call)
                    after = f"{before[:-1]}, num_classes={_class_count(failure, output[1])})"
                    text += (
                        f" `{before}` ({source.place(call)}) has no `num_classes`, so its width is the largest "
                        f"label of the batch plus one: this batch has no label {output[1] - 1}."
                    )
                    return Explanation(
                        text, f"Give the number of classes: `{after}`.", replaced(source, call.lineno, before, after)
                    )
        return Explanation(
            f"{text} The targets have fewer classes than the model has outputs.",
            f"Encode the targets with all {output[1]} classes (`F.one_hot(labels, num_classes={output[1]})`).",
        )
    if len(target) == 1 and len(output) == 2 and target[0] == output[0]:
        return Explanation(
            f"{text} The target has one class index for each sample, the output one value for each of {output[1]} "
            "classes.",
            "Use `nn.CrossEntropyLoss` for one class per sample, or one-hot targets (`F.one_hot(target, "
            "num_classes=...).float()`) for this loss.",
        )
    if len(target) == len(output) and target[0] != output[0] and target[1:] == output[1:]:
        return Explanation(
            f"{text} They have another number of samples.",
            "Both have to come from the same batch: look for a filter or a slice that is applied to one of them only.",
        )
    if math.prod(target) == math.prod(output):
        return Explanation(
            f"{text} Both have {math.prod(output)} values in another arrangement.",
            "Bring the target into the output's shape: `target.view_as(output)`, if the order is the same, else "
            "`permute` it.",
        )
    return Explanation(
        text,
        f"Resize the output or the target so that both are {sizes(target)}: for images `F.interpolate(output, "
        f"size={sizes(target[-2:])})`."
        if len(target) == 4
        else "Make both the same shape before the loss.",
    )


def _class_count(failure: Failure, number: int) -> str:
    """Return the name of the program's constant with this value, or the number."""
    for source in failure.all_sources():
        for node in source.tree.body:
            if (
                isinstance(node, ast.Assign)
                and constant(node.value) == number
                and isinstance(node.targets[0], ast.Name)
            ):
                return node.targets[0].id
    return str(number)


def _loss_names(failure: Failure) -> list[str]:
    place = failing_call(failure, failure.frame)
    names = [place[0].code(value) for value in place[1].args[:2]] if place else []
    return names if len(names) == 2 else []


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
    tensor = _layer_input(failure)
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
            _number_edit(
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
        rest = _batch_rest(failure, actual[1], expected[1])
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


@explains("attention_mask")
def wrong_attention_mask(fact: Fact, failure: Failure) -> Explanation | None:
    """Attention whose mask has the batch first while its input has the sequence first."""
    definition = next(
        iter(layer_definitions(failure, "MultiheadAttention", "TransformerEncoderLayer", "Transformer")), None
    )
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


@explains("dimension_range")
def axis_out_of_range(fact: Fact, failure: Failure) -> Explanation | None:
    """An axis that a tensor does not have."""
    dimensions = fact.dimensions if fact.dimensions is not None else fact.high + 1
    place = failing_expression(failure, failure.frame, ast.Call)
    operands = _operands(*place) if place else []
    value = next((v for name in operands if (v := failure.value(name)) is not None and v.shape is not None), None)
    what = f"`{value.name}` is {sizes(value.shape or ())}" if value else "The tensor"
    where = f" in `{source_code(place)}`" if place else ""
    text = (
        f"{what}{':' if value else ' has'} {count(dimensions, 'axis', 'axes')}, so that axis {fact.axis} does "
        f"not exist{where}."
    )
    if dimensions == 1:
        return Explanation(
            f"{text} It is one-dimensional: a `squeeze()` or an index has removed the batch axis, or the model "
            "returns one value per sample.",
            "Keep the batch axis: `squeeze(-1)` in place of `squeeze()`, `x.unsqueeze(0)` for a single sample; for "
            "class scores the output has to be (batch, classes).",
        )
    return Explanation(text, f"Use an axis from {-dimensions} to {dimensions - 1}.")


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


@explains("unpack")
def wrong_unpacking(fact: Fact, failure: Failure) -> Explanation | None:
    """More or fewer values than names on the left side."""
    source, frame = failure.source(failure.frame), failure.frame
    if frame is None:
        return None
    statement = source.statement_at(frame.line) if source else None
    target = (
        statement.targets[0]
        if isinstance(statement, ast.Assign)
        else statement.target
        if isinstance(statement, ast.For)
        else None
    )
    value = (
        statement.value
        if isinstance(statement, ast.Assign)
        else statement.iter
        if isinstance(statement, ast.For)
        else None
    )
    if source is None or target is None or value is None:
        return None
    names, code = source.code(target), source.code(value)
    if isinstance(statement, ast.For):
        loader = loader_of(failure, Origin(source, value, frame, code))
        if loader is not None:
            dataset = dataset_class(failure, loader)
            returned = None
            if dataset is not None:
                for function in dataset[1].body:
                    if isinstance(function, ast.FunctionDef) and function.name == "__getitem__":
                        returned = next((node for node in ast.walk(function) if isinstance(node, ast.Return)), None)
            if dataset and returned is not None and returned.value is not None:
                width = len(returned.value.elts) if isinstance(returned.value, ast.Tuple) else 1
                text = (
                    f"`{names}` takes {fact.expected} values from each batch, but "
                    f"`{dataset[1].name}.__getitem__` returns {width} (`{dataset[0].code(returned.value)}`, "
                    f"{dataset[0].place(returned)})."
                )
                return Explanation(
                    text,
                    f"Write as many names on the left as the data set returns ({width}), or return {fact.expected} "
                    "values from `__getitem__`.",
                )
    maker = failure.value(dotted(value)) if dotted(value) else None
    if (isinstance(value, ast.Attribute) and value.attr == "shape") or (
        isinstance(value, ast.Call) and last_name(value.func) in ("size", "shape")
    ):
        owner = value if isinstance(value, ast.Attribute) else value.func if isinstance(value, ast.Call) else None
        tensor = failure.value(source.code(owner.value)) if isinstance(owner, ast.Attribute) else None
        if tensor is not None and tensor.shape is not None:
            text = (
                f"`{tensor.name}` is {sizes(tensor.shape)}, {count(len(tensor.shape), 'axis', 'axes')}, but "
                f"`{names}` takes {fact.expected}."
            )
            return Explanation(
                text,
                "Reshape the input to the axes that this line expects (a missing batch or channel axis: "
                "`unsqueeze`), or unpack what is there.",
            )
    number: int | None = fact.actual if fact.actual is not None else maker.length if maker else None
    what = f"Each item of `{code}`" if isinstance(statement, ast.For) else f"`{code}`"
    text = (
        f"{what} gives "
        f"{count(number, 'value') if number is not None else f'another number of values than {fact.expected}'}, "
        f"but `{names}` takes {fact.expected}."
    )
    return Explanation(
        text, "Write as many names on the left as there are values on the right; `*rest` takes the remaining ones."
    )


def _literal(failure: Failure, source: Source, node: ast.expr) -> object:
    """Return the number or text that an expression stands for, also through names and default values."""
    return constant(origin(failure, source, node, None).node)


@explains("stack")
def unequal_samples(fact: Fact, failure: Failure) -> Explanation | None:
    """Samples of a batch whose sizes differ."""
    first, second = fact.first_shape, fact.second_shape
    indices = failure.in_library("fetch")
    batch = indices.values.get("possibly_batched_index") if indices else None
    numbers = batch.numbers if batch is not None else None
    in_collate = (
        any("collate" in frame.file or "collate" in frame.function for frame in failure.frames)
        or failure.worker is not None
    )
    if not first or not second:
        return _ragged(fact, failure)
    window = _window_past_the_end(failure) if len(first) == len(second) and first[1:] == second[1:] else None
    if window is not None:
        return Explanation(
            f"The samples of one batch have different sizes: {sizes(first)} and {sizes(second)}. {window[0]}", window[1]
        )
    position = fact.position
    pair = (
        f" (samples {numbers[0]} and {numbers[position]})"
        if numbers and isinstance(position, int) and position < len(numbers)
        else ""
    )
    text = f"The samples of one batch have different sizes: {sizes(first)} and {sizes(second)}{pair}."
    if not in_collate:
        text = f"The tensors to be stacked have different sizes: {sizes(first)} and {sizes(second)}."
    if len(first) == len(second) >= 3 and first[0] == second[0] and first[1:] != second[1:]:
        for source in failure.all_sources():
            for call in source.calls("Resize", "SmallestMaxSize", "RandomResize"):
                size = argument(call, 0, "size")
                single = size is not None and not isinstance(size, ast.Tuple | ast.List)
                if size is not None and single and isinstance(_literal(failure, source, size), int):
                    n, before = source.code(size), source.code(call)
                    after = before.replace(f"({n}", f"(({n}, {n})", 1)
                    text += (
                        f" `{before}` ({source.place(call)}) has a single number: it brings the shorter edge to "
                        f"{n} and keeps the aspect ratio, so the other edge depends on the picture."
                    )
                    return Explanation(
                        text,
                        f"Give both edges: `{after}`, or add `CenterCrop({n})` after it.",
                        replaced(source, call.lineno, before, after),
                    )
        return Explanation(
            f"{text} The images have different heights and widths, and a batch is one tensor.",
            "Resize or crop all to one size in the transform (`transforms.Resize((height, width))`), or pad them in "
            "a `collate_fn`.",
        )
    if len(first) == len(second) >= 3 and first[0] != second[0] and first[1:] == second[1:]:
        kinds = [CHANNELS.get(n, f"{n}-channel") for n in (first[0], second[0])]
        return Explanation(
            f"{text} Axis 0 differs: {kinds[0]} and {kinds[1]} images.",
            'Convert every image when it is opened: `Image.open(path).convert("RGB")`.',
        )
    if len(first) != len(second):
        return Explanation(
            f"{text} They do not even have the same number of axes.",
            "Return tensors of the same number of axes from `__getitem__` (grayscale images lack a channel axis: "
            '`unsqueeze(0)`, or `convert("RGB")`).',
        )
    if first[1:] == second[1:]:
        boxes = len(first) == 2 and first[1] in (4, 5)
        text += (
            f" They have different lengths ({first[0]} and {second[0]}), and `default_collate` can stack "
            "tensors of one size only."
        )
        if boxes:
            return Explanation(
                f"{text} Images have different numbers of boxes.",
                "Keep them as a list: `DataLoader(..., collate_fn=lambda batch: tuple(zip(*batch)))`, as "
                "torchvision's detectors expect.",
            )
        return Explanation(
            text,
            "Pad them in a `collate_fn`: `torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)`, and return "
            "the lengths beside them; or cut all samples to one length in `__getitem__`.",
        )
    return Explanation(text, "Bring all samples to one size in `__getitem__`, or write a `collate_fn` that pads them.")


def _window_past_the_end(failure: Failure) -> tuple[str, str] | None:
    """Explain windows of a series of which the last ones run past its end: text and fix."""
    for source in failure.all_sources():
        for owner in (node for node in source.nodes if isinstance(node, ast.ClassDef)):
            methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
            item, length = methods.get("__getitem__"), methods.get("__len__")
            if item is None or length is None:
                continue
            ends = [
                node.slice.upper
                for node in ast.walk(item)
                if isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Slice)
                and isinstance(node.slice.upper, ast.BinOp)
            ]
            counted = next(
                (n.value for n in ast.walk(length) if isinstance(n, ast.Return) and n.value is not None), None
            )
            extra = [
                source.code(end.right) for end in ends if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add)
            ]
            code = source.code(counted)
            lacking = [name for name in extra if name.startswith("self.") and name not in code]
            if lacking and code:
                text = (
                    f"`{owner.name}.__len__` returns `{code}` ({source.place(length)}), but a sample also reads "
                    f"`{lacking[0]}` values after that: the last windows run past the end and are shorter."
                )
                return text, f"Count only whole windows: `return {code} - {lacking[0]} + 1` in `__len__`."
    return None


def _ragged(fact: Fact, failure: Failure) -> Explanation | None:
    if fact.first_size is not None and fact.axis:
        text = (
            f"The samples of one batch have different sizes: {fact.first_size} and {fact.second_size} in axis "
            f"{fact.axis} of the batch."
        )
        return Explanation(
            text,
            "Bring all samples to one size in `__getitem__` (for images `transforms.Resize((height, width))`), or "
            "pad them in a `collate_fn`.",
        )
    if fact.lists:
        batch = next(
            (
                value
                for frame, value in failure.values(library=True)
                if value.name in ("batch", "elem") and value.length
            ),
            None,
        )
        detail = (
            f" (the first one has {batch.items[0].get('length')} elements)"
            if batch is not None and batch.items and batch.items[0].get("length")
            else ""
        )
        return Explanation(
            f"The data set returns lists whose lengths differ from sample to sample{detail}; `default_collate` can "
            "only combine lists of one length.",
            "Return padded tensors of one size, or pass a `collate_fn` that pads or keeps the lists: "
            "`collate_fn=lambda batch: tuple(zip(*batch))`.",
        )
    if fact.resize:
        return Explanation(
            "A data worker wrote samples of different sizes into one shared tensor.",
            "Bring all samples to one size in `__getitem__`, or write a `collate_fn` that pads them; with "
            "`num_workers=0` the message names the sizes.",
        )
    return Explanation(
        "The arrays to be stacked have different shapes.",
        "Bring all of them to one shape first, or keep them in a list.",
    )
