"""Shapes that do not fit in an operation: concatenation, broadcasting, masks, views, einsum, axes."""

from __future__ import annotations

import ast
import itertools
import math
from dataclasses import replace

from ocrlab.debug.diagnosis.explanations.batch_shapes import (
    batch_rest,
    single_sample_squeezed,
)
from ocrlab.debug.diagnosis.explanations.explanation import (
    Edit,
    Explanation,
    changed,
    count,
    explains,
    in_parentheses,
    listed,
    replaced,
    sizes,
    times,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.layer_shapes import (
    divisors_advice,
    setting,
)
from ocrlab.debug.diagnosis.explanations.layers import (
    REDUCTIONS,
    known_shape,
    operand_texts,
    source_code,
)
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import (
    failing_call,
    failing_expression,
    origin,
    own_statement_nodes,
    returned,
)
from ocrlab.debug.diagnosis.explanations.source import Source, constant, dotted, last_name

# Layers of which one can make a map smaller or larger.
HALVING: tuple[str, ...] = (
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "AvgPool2d",
)
HALVING += ("Upsample", "interpolate", "max_pool2d", "avg_pool2d", "ConvTranspose1d", "ConvTranspose3d", "PixelShuffle")


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
    sources = list(failure.all_sources())
    halved = not sources or any(next(source.calls(*HALVING), None) is not None for source in sources)
    if abs(first - second) > 4 or first < 3 or flat or not halved:
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
            names = operand_texts(place[0], node)
    shapes = [
        (name, value.shape) for name in names if (value := failure.value(name)) is not None and value.shape is not None
    ]
    batch = batch_rest(failure, fact.first, fact.second)
    for first, second in _axis_pairs(failure, place, names):
        missing = _missing_axes(first, second, place, failure)
        if missing is not None and not batch:
            return missing
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
    missing = _missing_axes((a, left), (b, right), place, failure)
    if missing is not None:
        return missing
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
    makers = [maker for name in (a, b) if (maker := _sized_by(failure, name, (x, y)))]
    return Explanation(
        f"{text}{' '.join(['', *makers])}",
        f"Make both {max(x, y)} long in that axis where they are built, or slice the longer one to {min(x, y)}.",
    )


def _axis_pairs(
    failure: Failure, place: tuple[Source, ast.AST] | None, names: list[str]
) -> list[tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]]:
    """Return the operands of the failing operation in pairs, with their shapes as far as these are known."""
    nodes = [n for n in ast.walk(place[1]) if isinstance(n, ast.expr)] if place else []
    shapes_by_name = {}
    for name in names:
        node = next((n for n in nodes if place and place[0].code(n) == name), None)
        shape = known_shape(failure, place[0], node, failure.frame) if place else None
        if shape is not None:
            shapes_by_name[name] = shape
    return list(itertools.combinations(shapes_by_name.items(), 2))


def _missing_axes(
    first: tuple[str, tuple[int, ...] | list[int]],
    second: tuple[str, tuple[int, ...] | list[int]],
    place: tuple[Source, ast.AST] | None,
    failure: Failure,
) -> Explanation | None:
    """Explain an operand that lacks axes: its own axes fit axes of the other one, but not the last ones."""
    (small, few), (large, many) = sorted((first, second), key=lambda operand: len(operand[1]))
    if len(few) == len(many) or not few or any(n == 1 for n in few):
        return None
    unequal = [k for k, (x, y) in enumerate(zip(reversed(few), reversed(many), strict=False), 1) if x != y != 1]
    fits = [axes for axes in itertools.combinations(range(len(many)), len(few)) if [many[a] for a in axes] == list(few)]
    if not fits or not unequal or place is None:
        return None
    names = {0: "sample", 1: "channel"} if len(many) > 2 else {0: "row", 1: "column"}
    each = [" and ".join(names.get(axis, f"entry of axis {axis}") for axis in axes) for axes in fits]
    node = next((n for n in ast.walk(place[1]) if isinstance(n, ast.expr) and place[0].code(n) == small), None)
    bare = in_parentheses(place[0], node) if node is not None else small
    code = [f"{bare}[{', '.join(':' if axis in axes else 'None' for axis in range(len(many)))}]" for axes in fits]
    at, axes = unequal[0], listed([str(axis) for axis in fits[0]])
    missing = next(axis for axis in range(len(many)) if axis not in fits[0])
    reading = f"one value for each {each[0]}" if len(few) < 3 else f"axis {missing} is missing"
    text = (
        f"`{source_code(place)}` combines `{small}` {sizes(few)} with `{large}` {sizes(many)}. Axes are lined up from "
        f"the last one, so the {few[-at]} of `{small}` meet the {many[-at]} of axis {len(many) - at} of `{large}`, but "
        f"they fit {'axes' if len(few) > 1 else 'axis'} {axes}: {reading}."
    )
    maker = origin(failure, place[0], node, failure.frame) if node is not None else None
    reduced = maker.node if maker is not None and isinstance(maker.node, ast.Call) else None
    if (
        maker is not None
        and reduced is not None
        and last_name(reduced.func) in REDUCTIONS
        and len(few) + 1 == len(many)
    ):
        after = f"{maker.code[:-1]}, keepdim=True)"
        reason = f"`{maker.code}` ({maker.place}) drops the axis over which it reduces."
        return Explanation(f"{text} {reason}", f"Keep it: `{after}`.", changed(maker.source, reduced, after))
    if len(fits) > 1:
        fix = "".join(
            f"If it has one value for each {what}, write `{new}`. " for what, new in zip(each, code, strict=True)
        )
        return Explanation(text.replace(": one value for each", ", for example: one value for each"), fix.strip())
    fix = f"Add the missing {count(len(many) - len(few), 'axis', 'axes').partition(' ')[2]}: `{code[0]}`" + (
        f" (as a method: `{bare}.view({', '.join(['-1', *['1'] * (len(many) - 1)])})`)" if fits[0] == (0,) else ""
    )
    index = code[0].removeprefix(bare)
    source, line = failure.source(failure.frame), failure.frame.line if failure.frame else 0
    change = replaced(source, line, small, code[0])
    statement = source.statement_at(line) if source else None
    for operation in ast.walk(statement) if source and statement else ():
        sides = [operation.left, operation.right] if isinstance(operation, ast.BinOp) else []
        for side, other in zip(sides, sides[::-1], strict=True):
            assert source is not None
            same = [known_shape(failure, source, n, failure.frame) for n in (side, other)] == [tuple(few), tuple(many)]
            text_of = source.code(side)
            if same and text_of != small and change is not None and change.after.count(text_of) == 1:
                change = replace(change, after=change.after.replace(text_of, f"{text_of}{index}"))
                fix += f"; the same for `{text_of}`"
    return Explanation(text, f"{fix}.", change)


def _sized_by(failure: Failure, name: str, numbers: tuple[int, int]) -> str:
    """Say where a call creates an operand with one of two literal sizes."""
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
    axes = [value.shape for name in operands if (value := failure.value(name)) is not None and value.shape]
    inputs, arrow, output = str(equation or "").replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not arrow or len(axes) != len(operands) or [len(word) for word in letters] != [len(shape) for shape in axes]:
        return Explanation(
            text, "Write under each axis of an operand its letter, and give axes of different sizes different letters."
        )
    letters_that_fit = _other_letters(letters, axes, operands, output)
    if letters_that_fit is not None:
        after, why = letters_that_fit
        before = place[0].code(place[1].args[0])
        written = f"{before[0]}{','.join(after)}->{output}{before[-1]}"
        fix = f"Write the letters in the order of the axes: `{written}`"
        maker = _split_axes(failure, place[0], place[1].args[1:], after, letters)
        edit = changed(place[0], place[1].args[0], written)
        if maker is not None:
            text, fix, edit = (
                f"{text} {maker[0]}",
                f"{maker[1]}, or write the letters as the axes are: `{written}`",
                maker[2],
            )
        return Explanation(f"{text} {why}", f"{fix}.", edit)
    return Explanation(
        text,
        f"Axes that are meant to be equal have to be made equal (`{fact.letter}`: {fact.first} and {fact.second}); "
        "others need letters of their own.",
    )


def _other_letters(
    letters: list[str], shapes: list[tuple[int, ...]], names: list[str], output: str
) -> tuple[list[str], str] | None:
    """Return the nearest letters that fit the shapes, and why: another letter, or two axes in the other order."""

    def fits(words: list[str]) -> bool:
        size_of: dict[str, int] = {}
        pairs = [pair for word, shape in zip(words, shapes, strict=True) for pair in zip(word, shape, strict=True)]
        return all(size_of.setdefault(letter, size) == size for letter, size in pairs) and set(output) <= set(size_of)

    def alone(words: list[str]) -> int:  # letters that one operand is summed over, without a counterpart
        return sum("".join(words).count(letter) == 1 and letter not in output for letter in set("".join(words)))

    candidates: list[tuple[list[str], str]] = []
    for at, word in enumerate(letters):
        for axis, letter in enumerate(word):
            for other in dict.fromkeys("".join(letters)):
                after = [*letters]
                after[at] = f"{word[:axis]}{other}{word[axis + 1 :]}"
                why = (
                    f"Axis {axis} of `{names[at]}` has {shapes[at][axis]} entries, as many as `{other}`, so it should "
                    f"be labelled `{other}` and not `{letter}`: `{after[at]}`."
                )
                candidates += [(after, why)] if other not in word else []
    every = range(len(letters))
    for chosen in [*([at] for at in every), list(every)]:
        for first, second in itertools.combinations(range(min(len(letters[at]) for at in chosen)), 2):
            after = [_swapped(word, first, second) if at in chosen else word for at, word in enumerate(letters)]
            which = " and ".join(f"`{names[at]}`" for at in chosen)
            candidates.append((after, f"The sizes fit if axes {first} and {second} of {which} change places."))
    return min((option for option in candidates if fits(option[0])), key=lambda option: alone(option[0]), default=None)


def _swapped(word: str, first: int, second: int) -> str:
    letters = list(word)
    letters[first], letters[second] = letters[second], letters[first]
    return "".join(letters)


def _split_axes(
    failure: Failure, source: Source, nodes: list[ast.expr], after: list[str], before: list[str]
) -> tuple[str, str, Edit | None] | None:
    """Say which function of the program reshaped all operands so that two axes stand in another order."""
    makers = [returned(failure, origin(failure, source, node, failure.frame)) for node in nodes]
    if len({maker.place for maker in makers}) != 1 or after == before:
        return None
    where, call = makers[0].source, makers[0].node
    moved = [axis for axis in range(len(before[0])) if after[0][axis] != before[0][axis]]
    if not isinstance(call, ast.Call) or last_name(call.func) not in ("view", "reshape") or len(moved) != 2:
        return None
    if len(call.args) != len(before[0]):
        return None
    first, second = moved
    parts = [where.code(part) for part in call.args]
    text = (
        f"`{where.code(call)}` ({where.place(call)}) makes them, so `{parts[second]}` stands in axis {second}, but the "
        f"letters have `{before[0][first]}` in axis {first}."
    )
    fixed = f"{where.code(call)}.transpose({first}, {second})"
    return text, f"Move it: `{fixed}` ({where.place(call)})", changed(where, call, fixed)


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
    batch = batch_rest(
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


def _reshape_edit(failure: Failure, place: tuple[Source, ast.Call] | None) -> Edit | None:
    source = failure.source(failure.frame)
    return replaced(source, failure.frame.line, ".view(", ".reshape(") if source and place and failure.frame else None


@explains("dimension_range")
def axis_out_of_range(fact: Fact, failure: Failure) -> Explanation | None:
    """An axis that a tensor does not have."""
    dimensions = fact.dimensions if fact.dimensions is not None else fact.high + 1
    place = failing_expression(failure, failure.frame, ast.Call)
    operands = operand_texts(*place) if place else []
    value = next((v for name in operands if (v := failure.value(name)) is not None and v.shape is not None), None)
    what = f"`{value.name}` is {sizes(value.shape or ())}" if value else "The tensor"
    where = f" in `{source_code(place)}`" if place else ""
    text = (
        f"{what}{':' if value else ' has'} {count(dimensions, 'axis', 'axes')}, so that axis {fact.axis} does "
        f"not exist{where}."
    )
    if dimensions == 1:
        loaders = [v for _, v in failure.values() if v.kind == "loader" and v.batch_size]
        if loaders and batch_rest(failure, loaders[0].batch_size, 1) and (single := single_sample_squeezed(failure)):
            return replace(single, text=f"{text} {single.text}")
        return Explanation(
            f"{text} It is one-dimensional: a `squeeze()` or an index has removed the batch axis, or the model "
            "returns one value per sample.",
            "Keep the batch axis: `squeeze(-1)` in place of `squeeze()`, `x.unsqueeze(0)` for a single sample; for "
            "class scores the output has to be (batch, classes).",
        )
    return Explanation(text, f"Use an axis from {-dimensions} to {dimensions - 1}.")
