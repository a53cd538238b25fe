"""Batches: samples of different sizes, the last batch of an epoch, outputs and targets of different shapes."""

from __future__ import annotations

import ast
import math

from ocrlab.debug.diagnosis.explanations.explanation import (
    Explanation,
    changed,
    count,
    explains,
    replaced,
    sizes,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.layers import (
    CHANNELS,
    layer_kind,
    literal,
    whole_number,
)
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import (
    Origin,
    dataset_class,
    failing_call,
    loader_of,
    origin,
    unpacked,
)
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted, last_name, own_nodes


def batch_rest(failure: Failure, first: int | None, second: int | None) -> Explanation | None:
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


def single_sample_squeezed(failure: Failure, outputs: tuple[int, ...] | None = None) -> Explanation | None:
    """Explain a batch of one sample whose batch axis a `squeeze()` without an axis has removed."""
    place, frame = failing_call(failure, failure.frame), failure.frame
    calls = [(s, c) for s in failure.all_sources() for c in s.calls("squeeze")]
    calls = [(s, c) for s, c in calls if not c.keywords and len(c.args) == (dotted(c.func) == "torch.squeeze")]
    forward = [f for s, _ in calls for f in s.functions("forward")]
    run = {last_name(node.func) for f in forward for node in ast.walk(f) if isinstance(node, ast.Call)} | {"forward"}
    passed = [origin(failure, place[0], node, frame).node for node in place[1].args] if place else []
    inside = {part for node in passed for part in ast.walk(node)}
    calls = [(s, c) for s, c in calls if c in inside or ((f := s.function_at(c.lineno)) is not None and f.name in run)]
    calls.sort(key=lambda call: call[1] not in inside)
    if not calls or frame is None:
        return None
    source, call = calls[0]
    base = call.func.value if isinstance(call.func, ast.Attribute) and not call.args else call.args[0]
    name, code = source.code(base), source.code(call)
    loader = next((v for _, v in failure.values() if v.kind == "loader" and v.batch_size), None)
    rest = batch_rest(failure, loader.batch_size, 1) if loader is not None and loader.batch_size != 1 else None
    shape = f": the outputs are {sizes(outputs)} and not {sizes((1, *outputs))}" if outputs is not None else ""
    where = origin(failure, source, base, frame)
    maker = (unpacked(where) or where).node
    kind = layer_kind(failure, maker, source) if isinstance(maker, ast.Call) else ""
    after = f"{name}.squeeze(-1)" if outputs == () else f"{name}.squeeze(dim)"
    if "pool" in where.source.code(maker).lower() or "pool" in kind.lower():
        after = f"{name}.flatten(1)"
    elif kind in ("GRU", "LSTM", "RNN"):  # the last state, with the number of layers in front
        after = f"{name}.squeeze(0)"
    drop = f"; `drop_last=True` in `{loader.name}` leaves that batch out" if rest is not None and loader else ""
    return Explanation(
        f"This batch has one sample, and `{code}` ({source.place(call)}) removes every axis of size 1, the batch axis "
        f"too{shape}." + (f" {rest.text}" if rest is not None else ""),
        f"Remove only the axes that are meant and keep the batch axis: `{after}`{drop}.",
        changed(source, call, after) if "(dim)" not in after else None,
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


@explains("batch_size")
def rows_of_outputs_and_targets(fact: Fact, failure: Failure) -> Explanation | None:
    """Outputs and targets with another number of rows, mostly from a view that spreads samples over rows."""
    outputs, targets = fact.outputs, fact.targets
    single = single_sample_squeezed(failure, (outputs,)) if targets == 1 else None
    if single is not None:
        return single
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
    if target[:1] == (1,) and output == target[1:] and (single := single_sample_squeezed(failure, output)):
        return single
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
        each, rest = divmod(output[0], target[0])
        if len(output) == 1 and each > 1 and not rest:
            side = math.isqrt(each)
            shape = f", a map of {side} x {side}" if side * side == each else ""
            image = _image_size(failure, side) if side * side == each else None
            if image is not None:
                return Explanation(
                    f"{text} There are {each} values for each of {target[0]} samples{shape}. {image[0]}", image[1]
                )
            return Explanation(
                f"{text} There are {each} values for each of {target[0]} samples{shape}: the model does not reduce a "
                "sample to one value before the axes are joined.",
                "Print the shape before that `view` or `flatten`. A map that is left over means that the input has "
                "another size than the model is built for: resize it, add a layer, or take the mean over the map.",
            )
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


def _image_size(failure: Failure, side: int) -> tuple[str, str] | None:
    """Explain a map that a model of convolutions leaves over: which input it got, and which it is built for."""
    for source in failure.all_sources():
        for owner in [source.tree, *(node for node in source.nodes if isinstance(node, ast.ClassDef))]:
            layers = [
                call for call in source.calls(*SHRINKING, inside=owner) if source.class_at(call.lineno) in (owner, None)
            ]
            steps = [_shrinking(failure, source, call) for call in layers]
            if len(steps) < 2 or None in steps:
                continue
            results = {size: _through(size, [step for step in steps if step]) for size in range(1, 1025)}
            single = [size for size, result in results.items() if result == 1]
            images = [(v.name, v.shape) for _, v in failure.values(library=False) if v.shape and len(v.shape) == 4]
            fitting = [
                (n, shape[-1]) for n, shape in images if shape[-1] == shape[-2] and results.get(shape[-1]) == side
            ]
            if not single or not fitting:
                continue
            image, number = fitting[0]
            setting = _class_count(failure, number)
            setting = f" (`{setting}`)" if not setting.isdigit() else ""
            name = f"`{owner.name}`" if isinstance(owner, ast.ClassDef) else "the model"
            limits = f"{single[0]}" if len(single) == 1 else f"{single[0]} to {single[-1]}"
            text = (
                f"The last layer of {name} is meant to leave 1 x 1, and its {len(steps)} layers do so for images of "
                f"{limits} pixels a side: but `{image}` "
                f"has {number} x {number} pixels{setting}, of which they leave {side} x {side}."
            )
            return text, (
                f"Use images of {single[0]} x {single[0]}, add another layer with stride 2 before the last one, or "
                "reduce what is left to one value: `nn.AdaptiveAvgPool2d(1)`."
            )
    return None


SHRINKING = ("Conv2d", "MaxPool2d", "AvgPool2d")


def _shrinking(failure: Failure, source: Source, call: ast.Call) -> tuple[int, int, int, int] | None:
    """Return kernel size, stride, padding and dilation of a layer; None where one of them is not known."""
    conv = last_name(call.func) == "Conv2d"
    kernel = whole_number(failure, source, argument(call, 2 if conv else 0, "kernel_size"))
    defaults = (("stride", 1 if conv else kernel), ("padding", 0), ("dilation", 1))
    rest = []
    for position, (name, default) in enumerate(defaults, 3 if conv else 1):
        node = argument(call, position, name) if conv or name != "dilation" else None
        rest.append(default if node is None else whole_number(failure, source, node))
    stride, padding, dilation = rest
    return (kernel, stride, padding, dilation) if kernel and stride and padding is not None and dilation else None


def _through(size: int, layers: list[tuple[int, int, int, int]]) -> int:
    for kernel, stride, padding, dilation in layers:
        size = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 if size > 0 else 0
    return size


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
    if isinstance(statement, ast.For) and (explanation := _pairs(failure, source, statement, names, maker)):
        return explanation
    returned_by = _returned_by(failure, value)
    if returned_by is not None:
        where, node, called = returned_by
        width = len(node.value.elts) if isinstance(node.value, ast.Tuple) else fact.expected
        if width != fact.expected:
            return Explanation(
                f"`{names}` takes {fact.expected} values, but `{called}` returns {width}: `{where.code(node)}` "
                f"({where.place(node)}).",
                f"Write {count(width, 'name')} on the left (`*_` takes the rest), or return {fact.expected} values.",
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


def _pairs(failure: Failure, source: Source, loop: ast.For, names: str, value: Value | None) -> Explanation | None:
    """Explain a loop with several names over a dict, or over numbered tuples."""
    code = source.code(loop.iter)
    if isinstance(loop.iter, ast.Dict) or (value is not None and value.type in ("dict", "OrderedDict", "defaultdict")):
        return Explanation(
            f"`for {names} in {code}` goes through the keys of a dict, and takes each key apart into `{names}`.",
            f"Loop over keys and values: `for {names} in {code}.items():`.",
            replaced(source, loop.lineno, f"in {code}:", f"in {code}.items():"),
        )
    numbered = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "enumerate"
    if numbered and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) > 2:
        parts = [source.code(part) for part in loop.target.elts]
        after = f"{parts[0]}, ({', '.join(parts[1:])})"
        return Explanation(
            f"`enumerate` gives pairs of a number and an item, and `{names}` takes {len(parts)} values.",
            f"Take the item apart in parentheses: `for {after} in {code}:`.",
            replaced(source, loop.lineno, f"for {names} in", f"for {after} in"),
        )
    return None


def _returned_by(failure: Failure, value: ast.expr) -> tuple[Source, ast.Return, str] | None:
    """Return the statement by which a function of the program, or a model's forward, returns what is unpacked."""
    if not isinstance(value, ast.Call):
        return None
    live = failure.value(dotted(value.func)) if dotted(value.func) else None
    for source in failure.all_sources():
        functions = list(source.functions(last_name(value.func)))
        if live is not None and live.kind == "module":
            functions = [
                f
                for c in source.classes(str(live.type))
                for f in c.body
                if isinstance(f, ast.FunctionDef) and f.name == "forward"
            ]
        for function in functions:
            returns = [n for n in own_nodes(function) if isinstance(n, ast.Return) and n.value is not None]
            if len(returns) == 1:
                owner = source.class_at(function.lineno)
                return source, returns[0], f"{owner.name}.{function.name}" if owner is not None else function.name
    return None


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
                if size is not None and single and isinstance(literal(failure, source, size), int):
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
