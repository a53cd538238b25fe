"""Labels and indices out of range, targets of the wrong form, lengths of zero."""

from __future__ import annotations

import ast

from ocrlab.debug.diagnosis.explanations.batch_shapes import single_sample_squeezed
from ocrlab.debug.diagnosis.explanations.explanation import (
    Edit,
    Explanation,
    changed,
    count,
    explains,
    listed,
    replaced,
    sizes,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame, Value
from ocrlab.debug.diagnosis.explanations.layers import failing_layer, layer_definitions
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import Origin, failing_call, origin
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted, last_name, own_nodes

IGNORED = (255, -1, -100, 254, 65535)  # values with which data sets mark what has no label


def loss_tensors(failure: Failure) -> tuple[Value | None, Value | None]:
    """Return the outputs and the targets that a loss of torch got."""
    for frame in reversed(failure.frames):
        both = frame.values.get("input"), frame.values.get("target")
        if (
            frame.is_library
            and both[0] is not None
            and both[1] is not None
            and None not in (both[0].shape, both[1].shape)
        ):
            return both
    place = failing_call(failure, failure.frame)
    values = [failure.value(dotted(value)) for value in place[1].args[:2]] if place else []
    return (values[0], values[1]) if len(values) == 2 else (None, None)


def loss_definition(failure: Failure) -> tuple[Source, ast.Call, str] | None:
    """Return where the program builds its classification loss."""
    return next(iter(layer_definitions(failure, "CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss")), None)


@explains("target_range")
def label_out_of_range(fact: Fact, failure: Failure) -> Explanation | None:
    """A class label that the model has no output for."""
    output, target = loss_tensors(failure)
    if fact.bound or failure.in_library("one_hot"):
        return _one_hot_range(fact, failure)
    classes = output.shape[1] if output is not None and output.shape and len(output.shape) > 1 else None
    low, high = (target.min, target.max) if target is not None else (None, None)
    label = fact.label if fact.label is not None else high
    labels = (
        target.distinct
        if target is not None and target.distinct and target.distinct_count == len(target.distinct)
        else None
    )
    name = _target_name(failure)
    values = (
        f" (labels in this batch: {', '.join(map(str, labels))})"
        if labels
        else f" (labels in this batch: {low} to {high})"
        if low is not None
        else ""
    )
    model = (
        f"the model has {count(classes, 'output')}, for the labels 0 to {classes - 1}"
        if classes
        else "the model has too few outputs"
    )
    if label is None:
        return None
    text = f"{name} holds the label {label}{values}, but {model}."
    definition = loss_definition(failure)
    shift = _subtraction(failure) if label < 0 else None
    if shift is not None:
        return Explanation(
            f"{name} holds the label {label}{values}: `{shift[0].code(shift[1])}` ({shift[0].place(shift[1])}) "
            f"subtracts from labels that begin with {label + 1} already.",
            "Remove the subtraction: the loss counts classes from 0, and so do these labels.",
        )
    if label in IGNORED or label < 0:
        text += (
            f" {label} is not a class here: it marks pixels or samples without a label (void, border, padding), "
            "which the loss has to leave out."
        )
        fix, edit = f"`ignore_index={label}` in the loss.", None
        if definition is not None:
            before = definition[0].code(definition[1])
            after = f"{before[:-1]}{'' if before.endswith('()') else ', '}ignore_index={label})"
            fix = f"Tell the loss to ignore it: `{after}` ({definition[0].place(definition[1])})."
            edit = replaced(definition[0], definition[1].lineno, before, after)
        else:
            fix = f"Tell the loss to ignore it: `F.cross_entropy(outputs, targets, ignore_index={label})`."
        return Explanation(text, fix, edit)
    if classes and classes == label == high and low == 1:
        return Explanation(
            f"{text} No label is 0: the labels are counted from 1.",
            f"Count from 0: pass `{name.strip('`')} - 1` to the loss.",
            _subtracted(failure),
        )
    counted, bare = _counted_labels(failure), name.strip("`") if name.startswith("`") else "labels"
    gaps = labels is not None and low == 0 and len(labels) == classes  # a selection that keeps its old numbers
    if classes and low is not None and high is not None and low >= 0 and (high >= 2 * classes or gaps):
        why = "There are as many different labels as outputs" if gaps else "Numbers so far above the number of outputs"
        return Explanation(
            f"{text} {f'{why}, but they' if gaps else why} are ids with gaps, not the classes 0 to {classes - 1}.",
            f"Number them from 0: `values, labels = torch.unique({bare}, return_inverse=True)` over the whole data "
            "set, and keep `values` to name the classes again."
            + (_more_outputs(failure, classes, high + 1) if gaps else ""),
        )
    if counted is not None and (low is None or low >= 0):
        layer, code, where = counted
        return Explanation(
            f"{name} holds the label {label}{values}, but `{layer}` has as many outputs as there are different labels "
            f"(`{code}`, {where}), for the labels from 0 to that number minus one. So the labels are not numbered "
            f"without gaps from 0: they start from 1 (and run from 1 to {label}), or numbers in between are missing.",
            f"Number them from 0: `{bare} - 1` if they start from 1; with gaps `values, labels = "
            f"torch.unique({bare}, return_inverse=True)`, or `pd.factorize(column, sort=True)`.",
            _subtracted(failure),
        )
    last = _last_layer(failure, classes) if classes and not _made_by_hand(failure) else None
    if classes and last is not None:
        source, call = last
        before = source.code(call)
        needed = max(label, high or 0) + 1
        after = _with_size(before, classes, needed)
        text += f" The last layer is `{before}` ({source.place(call)})."
        return Explanation(
            text,
            f"With {needed} classes: `{after}`. If label {label} should not occur, look at how the labels are "
            "numbered.",
            replaced(source, call.lineno, before, after),
        )
    return Explanation(
        text,
        f"Give the last layer {label + 1} outputs, or renumber the labels to 0 ... "
        f"{classes - 1 if classes else 'C - 1'}.",
    )


def _more_outputs(failure: Failure, classes: int, needed: int) -> str:
    """Say which layer to enlarge where the numbers in a gap are classes too."""
    last = _last_layer(failure, classes)
    after = f": `{_with_size(last[0].code(last[1]), classes, needed)}` ({last[0].place(last[1])})" if last else ""
    return f" If the numbers in between are classes that this batch lacks, the model needs {needed} outputs{after}."


def _subtracted(failure: Failure) -> Edit | None:
    """Return the edit that subtracts 1 where the target's numbers become a tensor."""
    place = failing_call(failure, failure.frame)
    if place is None or len(place[1].args) < 2:
        return None
    where = origin(failure, place[0], place[1].args[1], failure.frame)
    converted = isinstance(where.node, ast.Call) and dotted(where.node.func) in ("torch.tensor", "torch.from_numpy")
    value = where.node.args[0] if isinstance(where.node, ast.Call) and converted and where.node.args else None
    numbers = isinstance(value, ast.Call) and last_name(value.func) in ("to_numpy", "numpy", "array", "asarray")
    return changed(where.source, value, f"{where.source.code(value)} - 1") if numbers else None


def _counted_labels(failure: Failure) -> tuple[str, str, str] | None:
    """Return the last layer whose size is the number of different labels, how it is counted, and where."""
    layers = [
        (source, call, size)
        for source, call, _ in layer_definitions(failure, "Linear", "LazyLinear", "Conv2d")
        if (size := argument(call, 1, "out_features", "out_channels")) is not None
    ]
    for source, call, size in reversed(layers[-1:]):
        where = origin(failure, source, size, None)
        inside = [last_name(n.func) for n in ast.walk(where.node) if isinstance(n, ast.Call)]
        if {"unique", "nunique", "set", "value_counts"} & set(inside):
            return source.code(call), where.code, where.place
    return None


def _subtraction(failure: Failure) -> tuple[Source, ast.AST] | None:
    """Return where 1 is subtracted from the target of the loss."""
    place = failing_call(failure, failure.frame)
    if place is None or len(place[1].args) < 2:
        return None
    target = place[1].args[1]
    definition = origin(failure, place[0], target, failure.frame)
    for source, node in ((place[0], target), (definition.source, definition.node)):
        for part in ast.walk(node):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and constant(part.right) == 1:
                return source, part
    name = dotted(target)
    for source in failure.all_sources():
        for part in source.nodes:
            minus = isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Sub)
            if minus and name and dotted(part.target) == name and constant(part.value) == 1:  # type: ignore[attr-defined]
                return source, part
    return None


def _made_by_hand(failure: Failure) -> bool:
    """Whether the outputs come from a function of torch or numpy and not from a model."""
    place = failing_call(failure, failure.frame)
    if place is None or not place[1].args:
        return False
    maker = origin(failure, place[0], place[1].args[0], failure.frame).node
    return isinstance(maker, ast.Call) and dotted(maker.func).startswith(("torch.", "np.", "numpy."))


def _with_size(code: str, before: int, after: int) -> str:
    head, _, tail = code.rpartition(str(before))
    return f"{head}{after}{tail}" if head else code


def _last_layer(failure: Failure, classes: int) -> tuple[Source, ast.Call] | None:
    matches = [
        (source, call)
        for source, call, _ in layer_definitions(failure, "Linear", "Conv2d", "LazyLinear", "Conv1d")
        if constant(argument(call, 1, "out_features", "out_channels")) == classes
    ]
    return matches[-1] if matches else None


def _target_name(failure: Failure) -> str:
    place = failing_call(failure, failure.frame)
    if place is not None and len(place[1].args) >= 2 and dotted(place[1].args[1]):
        return f"`{place[0].code(place[1].args[1])}`"
    return "The target"


def _one_hot_range(fact: Fact, failure: Failure) -> Explanation | None:
    place = failing_call(failure, failure.frame, "one_hot")
    if place is None:
        return None
    name = place[0].code(place[1].args[0]) if place[1].args else "labels"
    value = failure.value(name)
    inside = f" They go from {value.min} to {value.max}." if value is not None and value.min is not None else ""
    text = f"`{place[0].code(place[1])}`: the labels in `{name}` do not fit into this number of classes.{inside}"
    codes = next(((s, n) for s in failure.all_sources() for n in s.nodes if _category_codes(n)), None)
    if fact.bound == "non-negative" and codes is not None:
        return Explanation(
            f"`{place[0].code(place[1])}` gets a negative label: `{codes[0].code(codes[1])}` "
            f"({codes[0].place(codes[1])}) "
            "gives -1 to missing values (None, NaN).",
            'Fill them first (`column.fillna("unknown")`), drop those rows (`dropna`), or add 1 to the codes.',
        )
    if fact.bound == "non-negative" and (value is None or value.min is None):
        return Explanation(
            f"`{place[0].code(place[1])}` gets a negative label (-1 mostly marks what has no label).",
            f"Leave those out first (`{name}[{name} >= 0]`), or give them a class of their own.",
        )
    if value is not None and value.min is not None and value.min < 0:
        return Explanation(
            f"{text} A negative label marks what has no label.",
            f"Leave those out first (`{name}[{name} >= 0]`), or give them a class of their own.",
        )
    if value is not None and value.max in IGNORED:
        return Explanation(
            f"{text} {value.max} mostly marks what is to be ignored (borders, void), and is not a class.",
            f"Leave it out: `valid = {name} != {value.max}`, encode `{name}.masked_fill(~valid, 0)`, and count only "
            "`valid` positions in the loss.",
        )
    return Explanation(
        text,
        f"Pass `num_classes` of at least {value.max + 1}."
        if value is not None and value.max is not None
        else "Pass `num_classes` of at least the largest label plus one.",
    )


def _category_codes(node: ast.AST) -> bool:
    """Whether a node takes the codes of a pandas category, or factorizes a column."""
    codes = isinstance(node, ast.Attribute) and node.attr == "codes" and last_name(node.value) == "cat"
    return codes or (isinstance(node, ast.Call) and last_name(node.func) == "factorize")


@explains("table_index")
def embedding_index(fact: Fact, failure: Failure) -> Explanation | None:
    """An id that an embedding table has no row for."""
    table = failure.in_library("forward", "sparse.py")
    owner = table.values.get("self") if table else None
    ids = table.values.get("input") if table else None
    frame = failure.frame
    layer = f"`{failing_layer(failure)}`" if failing_layer(failure) else "The embedding"
    rows = _first_number(owner.text) if owner is not None and owner.text else fact.rows
    low, high = (ids.min, ids.max) if ids is not None else (None, fact.index)
    if rows is None:
        return None
    definition = _embedding_definition(failure, rows)
    text = f"{layer} has {count(rows, 'row')}, for the ids 0 to {rows - 1}"
    text += f" (`{owner.text}`)" if owner is not None and owner.text else ""
    if low is not None and low < 0:
        return Explanation(
            f"{text}, but its input holds the id {low}.",
            "Ids have to be 0 or more: look for -1 or -100 as padding, and use `padding_idx` with an id inside the "
            "table.",
        )
    if high is None:
        return Explanation(
            f"{text}, and its input holds an id that is larger.",
            "Build it with the largest id plus one, or look at how the ids are made.",
        )
    text += f", but its input holds the id {high}."
    needed = high + 1
    sized = _size_expression(failure, definition)
    if sized is not None:
        where, code = sized
        text += f" Its size comes from `{code}` = {rows} ({where.place})"
        extra = needed - rows
        reserved = _reserved(failure, extra)
        text += f", which leaves out {reserved}." if reserved else "."
        after = f"{code} + {extra}" if code.isidentifier() or code.endswith(")") or "." in code else str(needed)
        edit = replaced(where.source, where.node.lineno, f"({code})", f"({after})") or replaced(
            where.source, where.node.lineno, f"({code},", f"({after},"
        )
        return Explanation(text, f"Make it {needed} rows: `{after}`.", edit)
    if frame is not None and _is_position(failure, frame):
        grown = _grown_sequence(failure, rows, definition)
        if grown is not None:
            return Explanation(f"{text} The ids are positions. {grown[0]}", grown[1], grown[2])
        return Explanation(
            f"{text} The ids are positions: the sequence is longer than the table.",
            f"Build the table for the longest sequence ({needed} or more), or cut the sequences to {rows}.",
        )
    return Explanation(
        text,
        f"Build it with at least {needed} rows, and make sure that special tokens (padding, unknown, begin, end) "
        "are counted.",
    )


def _first_number(text: str) -> int | None:
    inner = text.partition("(")[2].replace("num_embeddings=", "").split(",")[0].strip()
    return int(inner) if inner.isdigit() else None


def _embedding_definition(failure: Failure, rows: int) -> tuple[Source, ast.Call] | None:
    name = failing_layer(failure).rpartition(".")[2]
    every = list(layer_definitions(failure, "Embedding", "EmbeddingBag"))
    by_name = [(s, c) for s, c, target in every if name and target.rpartition(".")[2] == name]
    return by_name[0] if by_name else (every[0][0], every[0][1]) if len(every) == 1 else None


def _size_expression(failure: Failure, definition: tuple[Source, ast.Call] | None) -> tuple[Origin, str] | None:
    """Return where the number of rows is calculated, if that is not a literal."""
    if definition is None:
        return None
    source, call = definition
    size = argument(call, 0, "num_embeddings")
    if size is None:
        return None
    where = origin(failure, source, size, None)
    if isinstance(where.node, ast.Call) and last_name(where.node.func) in ("len", "max", "int"):
        return where, where.code
    return None


def _reserved(failure: Failure, extra: int) -> str:
    """Name what was added to the ids: constants such as PAD and UNK, or an offset where the ids are made."""
    for source in failure.all_sources():
        names = []
        for node in source.tree.body:
            if isinstance(node, ast.Assign):
                targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else [node.targets[0]]
                names += [
                    t.id
                    for t in targets
                    if isinstance(t, ast.Name)
                    and t.id.strip("_").upper().removesuffix("_ID").removesuffix("_IDX") in SPECIAL
                ]
        offset = next(
            (
                node
                for table in source.nodes
                if isinstance(table, ast.DictComp)  # which gives each word its id
                for node in ast.walk(table.value)
                if isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Add)
                and constant(node.right) == extra
                and isinstance(node.left, ast.Name)
            ),
            None,
        )
        if offset is not None:
            special = f" ({listed(names)} come first)" if names else ""
            return f"the offset of `{source.code(offset)}` ({source.place(offset)}): the ids start at {extra}{special}"
        if len(names) >= extra > 0:
            return f"the special tokens {listed(names)}"
        unknown = next(
            (
                node
                for node in source.nodes
                if isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and last_name(node.value.func) == "len"
                and any(word in dotted(node.targets[0]).lower() for word in ("unk", "oov", "pad", "missing", "other"))
            ),
            None,
        )
        if unknown is not None:
            code = source.code(unknown)
            return f"the id of unknown words, which are not in the vocabulary: `{code}` ({source.place(unknown)})"
    return ""


SPECIAL = ("PAD", "UNK", "BOS", "EOS", "SOS", "CLS", "SEP", "MASK", "PADDING", "UNKNOWN", "START", "END", "OOV")


def _is_position(failure: Failure, frame: Frame) -> bool:
    call = failing_call(failure, frame)
    value = call[1].args[0] if call and call[1].args else None
    if call is None or value is None:
        return False
    where = origin(failure, call[0], value, frame)
    return isinstance(where.node, ast.Call) and last_name(where.node.func) == "arange"


def _grown_sequence(
    failure: Failure, rows: int, definition: tuple[Source, ast.Call] | None
) -> tuple[str, str, Edit | None] | None:
    """Explain a sequence that a loop makes longer in each pass and hands to the model whole: text, fix and edit."""
    size = argument(definition[1], 0, "num_embeddings") if definition else None
    limit = dotted(size).partition(".")[0]
    globals_ = {n.id for n in own_nodes(definition[0].tree) if isinstance(n, ast.Name)} if definition else set()
    limit = dotted(size) if limit and limit in globals_ else ""
    for frame in failure.own_frames[:-1]:
        source = failure.source(frame)
        loop = source.enclosing(frame.line, ast.For, ast.While) if source else None
        statement = source.statement_at(frame.line) if source else None
        if source is None or loop is None or statement is None:
            continue
        calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
        passed = [arg for call in calls for arg in call.args if isinstance(arg, ast.Name)]
        for node in ast.walk(loop):
            joined = node.value if isinstance(node, ast.Assign) else None
            if not isinstance(joined, ast.Call) or last_name(joined.func) not in ("cat", "concat", "hstack"):
                continue
            name = dotted(node.targets[0])  # type: ignore[attr-defined]
            operand = next((arg for arg in passed if arg.id == name), None)
            if operand is None or not any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(joined)):
                continue
            function = source.function_at(frame.line)
            after = f"{name}[:, -{limit or rows}:]"
            return (
                f"{f'`{function.name}`' if function else 'The loop'} makes `{name}` longer in each pass, "
                f"`{source.code(joined)}` ({source.place(joined)}), and passes all of it ({frame.place}), so after "
                f"{rows} tokens there is no row for the next position.",
                f"Pass the last {rows} tokens only: `{after}`. A longer context needs a larger table and training "
                "with it.",
                changed(source, operand, after),
            )
    return None


@explains("ctc_lengths")
def lengths_of_ctc(fact: Fact, failure: Failure) -> Explanation | None:
    """Lengths that the time steps or the targets of a CTC loss do not have."""
    place = failing_call(failure, failure.frame)
    if place is None or failure.frame is None or len(place[1].args) < 4:
        return None
    outputs, targets, steps, lengths = (place[0].code(value) for value in place[1].args[:4])
    code = f"`{place[0].code(place[1])}` ({failure.frame.place})"
    if fact.length is None:
        inner, which = failure.in_library("ctc_loss"), f"{fact.operand}_lengths"
        counts = inner.values.get(which) if inner else None
        value = inner.values.get("log_probs") if inner else failure.value(outputs)
        axes, number = value.shape if value else None, (counts.shape if counts else None) or ()
        if axes and len(axes) == 3 and len(number) == 1 and axes[0] == number[0] != axes[1]:
            after = f"{outputs}.transpose(0, 1)"
            return Explanation(
                f"{code}: `{outputs}` is {sizes(axes)}, and the loss takes it as (time, batch, classes): "
                f"{axes[0]} time steps of a batch of {axes[1]}. But there are {number[0]} lengths, so axis 0 is the "
                "batch and axis 1 the time.",
                f"Put the time first: `{after}`. The lengths are right.",
                replaced(place[0], place[1].lineno, f"({outputs},", f"({after},"),
            )
        if axes and len(axes) == 3 and len(number) == 1:
            return Explanation(
                f"{code}: `{outputs}` is {sizes(axes)}, (time, batch, classes), so the batch has "
                f"{count(axes[1], 'sample')}, but `{steps if fact.operand == 'input' else lengths}` has {number[0]}.",
                f"Give one length for each of the {axes[1]} samples.",
            )
        return Explanation(
            f"{code} needs one length for each sample of the batch in `{steps}` and in `{lengths}`.",
            f"Make both of the batch size: `torch.full((N,), T)` for `{steps}`.",
        )
    if fact.operand == "input":
        value = failure.value(outputs)
        shape = f" ({sizes(value.shape)}: time, batch, classes)" if value is not None and value.shape else ""
        return Explanation(
            f"{code}: `{steps}` holds {fact.length}, but `{outputs}`{shape} has {fact.size} time steps.",
            f"Take the number of steps from the output: `torch.full(({outputs}.size(1),), {outputs}.size(0))`; if "
            f"`{outputs}` is (batch, time, classes), call `.permute(1, 0, 2)` first.",
        )
    return Explanation(
        f"{code}: `{lengths}` holds {fact.length}, but `{targets}` has room for {fact.size} labels.",
        f"Pad `{targets}` to the longest label of the batch, or correct `{lengths}`.",
    )


@explains("empty_length")
def empty_sequence(fact: Fact, failure: Failure) -> Explanation | None:
    """A sequence of length 0 in a packed batch."""
    place = failing_call(failure, failure.frame, "pack_padded_sequence")
    lengths = argument(place[1], 1, "lengths") if place else None
    value = failure.value(dotted(lengths)) if lengths is not None else None
    if value is None:
        frame = failure.in_library("pack_padded_sequence")
        value = frame.values.get("lengths") if frame else None
    at = value.argmin if value is not None and value.min == 0 else None
    name = f"`{dotted(lengths)}`" if lengths is not None and dotted(lengths) else "the lengths"
    text = (
        f"A sequence in the batch is empty: {name} holds 0"
        + (f" for sample {at} of the batch" if at is not None else "")
        + ", and an empty sequence cannot be packed."
    )
    condition = _filter(failure)
    if condition:
        text += f" {condition}"
    return Explanation(
        text,
        "Drop the samples that end up empty before the batch is made, keep at least one token for them (an "
        "unknown-word id), or clamp: `lengths.clamp(min=1)` with padding in their place.",
    )


def _filter(failure: Failure) -> str:
    """Name the comprehension that filters tokens away."""
    for source in failure.all_sources():
        for node in source.nodes:
            if (
                isinstance(node, ast.ListComp)
                and node.generators[0].ifs
                and isinstance(node.generators[0].iter, ast.Call)
                and last_name(node.generators[0].iter.func) in ("split", "findall", "tokenize")
            ):
                return (
                    f"`if {source.code(node.generators[0].ifs[0])}` ({source.place(node)}) can remove every word of it."
                )
    return ""


@explains("target_probability")
def not_probabilities(fact: Fact, failure: Failure) -> Explanation | None:
    """BCELoss on values outside of 0 ... 1."""
    output, target = loss_tensors(failure)
    value = target if fact.operand == "target" else output
    span = f": it goes from {value.min:.4g} to {value.max:.4g}" if value is not None and value.min is not None else ""
    definition = loss_definition(failure)
    if fact.operand == "target":
        return Explanation(
            f"The target of the binary cross entropy has to lie between 0 and 1{span}.",
            "Labels of several classes need `nn.CrossEntropyLoss`; masks that are stored as 0 and 255 have to be "
            "divided by 255.",
        )
    text = (
        f"`{definition[0].code(definition[1])}` ({definition[0].place(definition[1])})"
        if definition
        else "Binary cross entropy"
    )
    text += (
        f" takes probabilities from 0 to 1, but the model's output is not limited to them{span}: there is no "
        "sigmoid (or the values are NaN)."
    )
    edit = (
        replaced(definition[0], definition[1].lineno, "BCELoss", "BCEWithLogitsLoss")
        if definition and "Logits" not in definition[0].code(definition[1])
        else None
    )
    return Explanation(
        text,
        "Use `nn.BCEWithLogitsLoss()`, which applies the sigmoid itself and is stable, or call `torch.sigmoid` on "
        "the output.",
        edit,
    )


@explains("target_dimensions")
def wrong_target_form(fact: Fact, failure: Failure) -> Explanation | None:
    """Class targets with an axis too many, one-hot targets of integers, images as masks."""
    output, target = loss_tensors(failure)
    name = _target_name(failure)
    shape = target.shape if target is not None else None
    if shape is None and fact.actual_shape:
        shape = fact.actual_shape
    text = f"{name} is {sizes(shape)}" if shape else f"{name} has an axis too many"
    outputs = output.shape if output is not None else fact.input
    bare = name.strip("`") if name.startswith("`") else "target"
    if fact.dtype is not None:
        text = (
            f"{name}{f' {sizes(shape)}' if shape else ''} has the shape of class probabilities but holds whole "
            f"numbers ({fact.dtype}): it is one-hot."
        )
        return Explanation(
            text,
            f"Pass class indices: `{bare}.argmax(1)`; or make it floating point: `{bare}.float()`. Where several "
            "classes hold at once (multi-label), use `nn.BCEWithLogitsLoss` with the floating-point target.",
        )
    if shape and len(shape) == 2 and shape[1] == 1:
        return Explanation(
            f"{text}: one class index for each sample, with an extra axis.", f"Remove the axis: `{bare}.squeeze(1)`."
        )
    if shape and outputs and shape == outputs:
        return Explanation(
            f"{text}, the same as the outputs: it is one-hot, and the loss takes one class index for each sample.",
            f"Pass `{bare}.argmax(1)`, or floating-point probabilities (`{bare}.float()`); where several classes hold "
            "at once (multi-label), use `nn.BCEWithLogitsLoss`.",
        )
    if shape and len(shape) == 4:
        axis = 1 if shape[1] in (1, 3, 4) else 3
        if shape[axis] == 1:
            return Explanation(
                f"{text}: a mask has one class index for each pixel, (N, H, W), without a channel axis.",
                f"Remove the axis: `{bare}.squeeze({axis})`.",
            )
        return Explanation(
            f"{text}: the masks were read as colour images, and the loss takes one class index for each pixel, (N, "
            "H, W).",
            "Read the masks as class indices (mode `L` or `P`), or map the colours to indices in `__getitem__`.",
        )
    if shape is None and fact.actual is not None:
        return Explanation(
            f"{name} has {fact.actual} axes, and the loss takes one class index for each sample or pixel: one axis "
            "less than the outputs, without the axis of the classes.",
            f"An extra axis of size 1 has to go: `{bare}.squeeze(1)`. If axis 1 has one entry for each class "
            f"(one-hot), pass `{bare}.argmax(1)`.",
        )
    single = single_sample_squeezed(failure, outputs) if shape == (1,) and outputs and len(outputs) == 1 else None
    if single is not None:
        return single
    expected = fact.expected_shape or ((fact.input[0], *fact.input[2:]) if fact.input else None)
    if expected and shape:
        return _classes_in_another_axis(expected, failure, bare, tuple(shape), outputs)
    return Explanation(
        f"{text}, but the loss takes one class index for each sample or pixel"
        + (f" of outputs {sizes(outputs)}" if outputs else "")
        + ".",
        f"Pass class indices: `{bare}.argmax(1)` for one-hot targets, `{bare}.squeeze(1)` for an extra axis; where "
        "several classes hold at once (multi-label), use `nn.BCEWithLogitsLoss` with floating-point targets.",
    )


def _classes_in_another_axis(
    expected: tuple[int, ...], failure: Failure, target: str, shape: tuple[int, ...], outputs: tuple[int, ...] | None
) -> Explanation:
    """Explain outputs with the classes in the last axis, or maps of another size than the mask."""
    place = failing_call(failure, failure.frame)
    output = place[0].code(place[1].args[0]) if place and place[1].args else "outputs"
    form = "(batch, classes, ...)"
    if outputs and outputs[:-1] == shape:
        last = len(outputs) - 1
        order = ", ".join(map(str, (0, last, *range(1, last))))
        after = f"{output}.transpose(1, 2)" if last == 2 else f"{output}.permute({order})"
        edit = None
        if place is not None:
            edit = replaced(place[0], place[1].lineno, f"({output},", f"({after},")
        return Explanation(
            f"`{output}` is {sizes(outputs)} with the {outputs[-1]} classes in the last axis, but the loss takes the "
            f"classes in axis 1, {form}: it took the {outputs[1]} of axis 1 as classes and asks for targets of "
            f"{sizes(expected)}. `{target}` {sizes(shape)} is right.",
            f"Move the classes to axis 1: `{after}`; or flatten both: `{output}.reshape(-1, {outputs[-1]})` and "
            f"`{target}.reshape(-1)`.",
            edit,
        )
    if len(expected) == len(shape) >= 3:
        return Explanation(
            f"The outputs are maps of {sizes(expected[1:])}, but the mask `{target}` {sizes(shape)} is "
            f"{sizes(shape[1:])}: the model shrinks the image, or the mask was resized differently.",
            f"Bring the outputs to the size of the mask: `F.interpolate({output}, size={target}.shape[-2:], "
            'mode="bilinear")`.',
        )
    if outputs and len(outputs) == 1 and shape == (1,):
        return Explanation(
            f"`{output}` {sizes(outputs)} are the scores of one sample without a batch axis, and `{target}` (1,) has "
            "one.",
            f"Add the axis: `{output}.unsqueeze(0)`, or pass both without it.",
        )
    return Explanation(
        f"The loss takes outputs of the form {form} and, for these, targets of {sizes(expected)}; "
        f"`{target}` is {sizes(shape)}"
        + (f" and `{output}` {sizes(outputs)}." if outputs else f". The shape of `{output}` is not known."),
        f"If the classes stand in the last axis of `{output}`, move them: `{output}.transpose(1, 2)`, or flatten both: "
        f"`{output}.flatten(0, 1)` and `{target}.flatten()`; otherwise cut both to the same length.",
    )


@explains("gather_axes")
def index_without_axis(fact: Fact, failure: Failure) -> Explanation | None:
    """`gather` or `scatter` whose index has another number of axes than the tensor."""
    place = failing_call(failure, failure.frame, *GATHER)
    if place is None or failure.frame is None:
        return None
    call = place[1]
    function = last_name(call.func)
    method = isinstance(call.func, ast.Attribute) and dotted(call.func.value) != "torch"
    index = argument(call, 1 if method else 2, "index")
    base = call.func.value if method and isinstance(call.func, ast.Attribute) else argument(call, 0, "input")
    axis = argument(call, 0 if method else 1, "dim")
    if index is None or base is None:
        return None
    name, of, code = place[0].code(index), place[0].code(base), place[0].code(call)
    value, table = failure.value(dotted(index)), failure.value(dotted(base))
    shape = value.shape if value is not None else None
    table_size = f"{sizes(table.shape)}, " if table is not None and table.shape else ""
    text = (
        f"`{code}` ({failure.frame.place}) takes an index with as many axes as `{of}` ({table_size}one row for each "
        f"sample), but `{name}` " + (f"is {sizes(shape)}." if shape is not None else "has another number of axes.")
    )
    if shape is not None and len(shape) == 1:
        text += f" It is a vector with one index for each row, and `{function}` needs it as a column."
        after = code.replace(name, f"{name}.unsqueeze(1)", 1) if code.count(name) == 1 else f"{name}.unsqueeze(1)"
        fix = f"Give the index a second axis: `{after}`"
        fix += ", and remove it from the result: `.squeeze(1)`, so that it has the shape of a flat target."
        edit = replaced(place[0], call.lineno, code, f"{after}.squeeze(1)") if function == "gather" else None
        return Explanation(text, fix, edit if code.count(name) == 1 else None)
    where = place[0].code(axis) if axis is not None else "1"
    return Explanation(
        text, f"Add or remove axes of the index: `{name}.unsqueeze({where})`, `{name}.squeeze({where})`."
    )


GATHER = ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "take_along_dim")


@explains("class_weights")
def wrong_class_weights(fact: Fact, failure: Failure) -> Explanation | None:
    """Class weights for another number of classes than the model has outputs."""
    output, _ = loss_tensors(failure)
    classes = fact.classes or (
        output.shape[1] if output is not None and output.shape and len(output.shape) > 1 else None
    )
    definition = loss_definition(failure)
    weights = fact.weight[0] if fact.weight else None
    text = "The loss" + (
        f" `{definition[0].code(definition[1])}` ({definition[0].place(definition[1])})" if definition else ""
    )
    text += f" has {count(weights, 'class weight')}" if weights else " has class weights of another number"
    text += f", but the model has {count(classes, 'output')}." if classes else " than the model has outputs."
    return Explanation(
        text,
        f"Give one weight for each of the {classes or ''} outputs, or correct the number of outputs of the last "
        "layer.".replace("  ", " "),
    )
