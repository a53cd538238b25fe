"""Types and devices that do not match, or that an operator does not support."""

from __future__ import annotations

import ast

from ocrlab.debug.diagnosis.explanations.autograd import backward_loss
from ocrlab.debug.diagnosis.explanations.explanation import Explanation, changed, explains, replaced, sizes
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame, Value
from ocrlab.debug.diagnosis.explanations.labels import loss_tensors
from ocrlab.debug.diagnosis.explanations.layers import failing_layer
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import Origin, failing_call, failing_expression, origin
from ocrlab.debug.diagnosis.explanations.source import Source, argument, constant, dotted, last_name
from ocrlab.debug.diagnosis.explanations.tables import label_without_an_entry

TORCH_NAMES = {
    "long": "int64",
    "long int": "int64",
    "complexfloat": "complex64",
    "complex<float>": "complex64",
    "complexdouble": "complex128",
    "complex<double>": "complex128",
    "int": "int32",
    "short": "int16",
    "byte": "uint8",
    "char": "int8",
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bool": "bool",
    "unsigned char": "uint8",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "signed char": "int8",
}
METHODS = {
    "int64": "long()",
    "float32": "float()",
    "float64": "double()",
    "float16": "half()",
    "bfloat16": "bfloat16()",
    "bool": "bool()",
    "int32": "int()",
}
LOSS_KERNELS = (
    "log_softmax_lastdim_kernel_impl",
    "log_softmax_kernel_impl",
    "nll_loss_forward_reduce_cuda_kernel_2d",
    "host_softmax",
    "softmax_lastdim_kernel_impl",
    "softmax",
    "nll_loss_out_frame",
)
FACTORIES = {"zeros", "ones", "empty", "full", "rand", "randn", "linspace", "Tensor", "FloatTensor"}


FLOAT_LOSSES = (
    *("binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss"),
    *("huber_loss", "kl_div", "poisson_nll_loss", "soft_margin_loss", "multilabel_soft_margin_loss"),
)


def type_name(text: object) -> str:
    """Return float32 for Float, torch.FloatTensor, torch.float32 and the like."""
    word = str(text).removeprefix("torch.").removeprefix("cuda.").removesuffix("Tensor").lower()
    word = word.removeprefix("cpu").removesuffix("type")
    return TORCH_NAMES.get(word, word)


def tensors(failure: Failure) -> list[tuple[Frame, Value]]:
    """Return the tensors of the program's own frames, innermost first."""
    return [(frame, value) for frame, value in failure.values(library=False) if value.kind in ("tensor", "array")]


@explains("unsupported_dtype")
def operator_without_kernel(fact: Fact, failure: Failure) -> Explanation | None:
    """An operator that has no code for a type, mostly since an argument is not the one that was meant."""
    operator, dtype = str(fact.operator), type_name(fact.dtype)
    output, target = loss_tensors(failure)
    loss = (
        (any(kernel in operator for kernel in LOSS_KERNELS) and failure.in_library("forward", "loss.py"))
        or "cross_entropy" in failure.message
        or failure.in_library("cross_entropy")
    )
    if dtype.startswith(("int", "uint")) and loss:
        swapped = _swapped_arguments(failure, output, target)
        if swapped is not None:
            return swapped
    place = failing_expression(failure, failure.frame, ast.Call, ast.BinOp)
    code = f"`{place[0].code(place[1])}`" if place else f"`{operator}`"
    if dtype in ("float16", "bfloat16"):
        half = _half_origin(failure)
        text = f"{code} runs on the CPU with {dtype} (half precision), for which this operator has no CPU kernel."
        text += (
            f" `{half[0].code(half[1])}` ({half[0].place(half[1])}) makes it half precision whatever the device is."
            if half
            else ""
        )
        return Explanation(
            text,
            "Use half precision on the GPU only and keep float32 on the CPU: drop `.half()` there, or convert for "
            "this call (`x.float()`); `torch.autocast` picks the type for each operator.",
        )
    operand = _operand(failure, place, dtype)
    name = operand.name if operand is not None else ""
    text = f"{code}: the operator works on floating-point numbers, but " + (
        f"`{name}` is {dtype}." if name else f"its input is {dtype}."
    )
    maker = _maker(failure, name)
    text += f" It is made by `{maker.code}` ({maker.place})." if maker else ""
    wanted = "float()"
    if dtype == "bool":
        return Explanation(text, f"Convert it: `{name or 'x'}.float()` (or `~mask` and `&` for logic).")
    return Explanation(text, f"Convert it first: `{name or 'x'}.{wanted}`.")


def _swapped_arguments(failure: Failure, output: Value | None, target: Value | None) -> Explanation | None:
    """Explain a loss whose two arguments stand in the wrong order."""
    for frame in failure.own_frames:
        call = failing_call(failure, frame)
        if call is None or len(call[1].args) != 2:
            continue
        names = [call[0].code(value) for value in call[1].args]
        values = [frame.values.get(dotted(value) or "") for value in call[1].args]
        known_types = all(values) and values[0] is not None and values[1] is not None
        first_integer = values[0].is_integer if known_types and values[0] else True
        second_float = values[1].is_float if known_types and values[1] else True
        if not (first_integer and second_float):
            continue
        before = call[0].code(call[1])
        after = f"{call[0].code(call[1].func)}({names[1]}, {names[0]})"
        first = f"`{names[0]}` (whole numbers{f', {sizes(values[0].shape or ())}' if values[0] else ''})"
        text = (
            f"The arguments of `{before}` ({frame.place}) are in the wrong order: {first} stands first, where "
            f"the loss takes the predictions; `{names[1]}` is the prediction."
        )
        return Explanation(
            text,
            f"Swap them: `{after}`, prediction first, then target.",
            replaced(failure.source(frame), frame.line, before, after),
        )
    return None


def _half_origin(failure: Failure) -> tuple[Source, ast.Call] | None:
    for source in failure.all_sources():
        for call in source.calls("half", "to", "bfloat16"):
            if last_name(call.func) != "to" or "float16" in source.code(call) or "half" in source.code(call):
                return source, call
    return None


def _operand(failure: Failure, place: tuple[Source, ast.AST] | None, dtype: str) -> Value | None:
    names = [dotted(node) for node in ast.walk(place[1]) if isinstance(node, ast.Name | ast.Attribute)] if place else []
    return next((value for name in names if (value := failure.value(name)) is not None and value.dtype == dtype), None)


def _maker(failure: Failure, name: str) -> Origin | None:
    """Return the call that made a variable of the innermost frame."""
    frame = failure.frame
    source = failure.source(frame)
    if source is None or frame is None or not name:
        return None
    statement = source.statement_at(frame.line)
    node = (
        next((n for n in ast.walk(statement) if isinstance(n, ast.Name | ast.Attribute) and dotted(n) == name), None)
        if statement
        else None
    )
    if node is None:
        return None
    where = origin(failure, source, node, frame)
    return where if isinstance(where.node, ast.Call | ast.BinOp) else None


@explains("not_scalar", "real_number")
def function_of_math(fact: Fact, failure: Failure) -> Explanation | None:
    """A function of `math`, which takes a single number, of a tensor or an array with several."""
    frame, place = failure.frame, failing_expression(failure, failure.frame, ast.Call)
    statement = place[0].statement_at(frame.line) if place is not None and frame is not None else None
    for call in (n for n in ast.walk(statement) if isinstance(n, ast.Call) and n.args) if statement else ():
        if place is not None and frame is not None and dotted(call.func).startswith("math."):
            failing = not frame.expression or place[0].code(call) == " ".join(frame.expression.split())
            if not failing or constant(call.args[0]) is not None:
                continue
            library = "np" if "array" in failure.message else "torch"
            after = f"{library}.{last_name(call.func)}"
            code, operand = place[0].code(call.func), place[0].code(call.args[0])
            return Explanation(
                f"`{code}` takes a single number, and `{operand}` ({frame.place}) has several.",
                f"Write `{after}({operand})`.",
                changed(place[0], call.func, after),
            )
    return None


@explains("boolean_arithmetic")
def arithmetic_with_booleans(fact: Fact, failure: Failure) -> Explanation | None:
    """A boolean mask in a subtraction."""
    place = failing_expression(failure, failure.frame, ast.BinOp)
    if place is None or not isinstance(place[1], ast.BinOp):
        return None
    names = [dotted(side) for side in (place[1].left, place[1].right) if dotted(side)]
    name = next(
        (n for n in names if (v := failure.value(n)) is not None and v.dtype == "bool"), names[0] if names else "mask"
    )
    return Explanation(
        f"`{place[0].code(place[1])}` subtracts with `{name}`, which is a boolean tensor.",
        f"Invert a mask with `~{name}`, or convert it: `{name}.float()`.",
    )


@explains("text_to_tensor")
def text_in_a_tensor(fact: Fact, failure: Failure) -> Explanation | None:
    """Texts where numbers are needed."""
    frame = failure.frame
    place = failing_call(failure, frame)
    if place is None or frame is None or not place[1].args:
        return None
    operand = place[0].code(place[1].args[0])
    detail = f" (the text {fact.text!r})" if fact.text else ""
    if fact.type == "object_":
        odd = _columns_without_numbers(failure, operand)
        if odd is not None:
            return odd
        dummies = next(((s, c) for s in failure.all_sources() for c in s.calls("get_dummies")), None)
        where = (
            f" `{dummies[0].code(dummies[1])}` ({dummies[0].place(dummies[1])}) makes boolean columns."
            if dummies
            else ""
        )
        table = operand.removesuffix(".values").removesuffix(".to_numpy()")
        return Explanation(
            f"`{operand}` ({frame.place}) is an array of Python objects (dtype object): its columns have different "
            "types "
            f"(boolean, text or missing values beside numbers).{where}",
            f'Give all of them one type: `{table}.astype("float32").to_numpy()`'
            + (
                ", or `get_dummies(..., dtype=float)`."
                if dummies
                else "; text columns have to be encoded as numbers first."
            ),
        )
    return Explanation(
        f"`{place[0].code(place[1])}` ({frame.place}) makes numbers of `{operand}`, which holds texts{detail}.",
        "Map class names to numbers first (`{name: i for i, name in enumerate(sorted(set(names)))}`); a column of a "
        'CSV file with other signs in it needs `pd.to_numeric(column, errors="coerce")`.',
    )


def _columns_without_numbers(failure: Failure, operand: str) -> Explanation | None:
    """Name the columns of a table whose values are texts, booleans or objects."""
    table = next((value for _, value in failure.values(library=False) if value.kind == "table" and value.dtypes), None)
    if table is None or not operand.startswith(table.name):
        return None
    dropped = operand if ".drop(" in operand else ""
    columns = [
        (name, dtype)
        for name, dtype in zip(table.columns or [], table.dtypes, strict=False)
        if repr(name) not in dropped and f'"{name}"' not in dropped
    ]
    texts = [name for name, dtype in columns if not dtype.lower().startswith(("int", "uint", "float", "bool"))]
    flags = [name for name, dtype in columns if dtype.lower().startswith("bool")]
    if not texts:
        return None
    text = f"`{operand}` is an array of Python objects: `{table.name}` has columns that hold no numbers: "
    text += ", ".join(f"`{name}` ({dtype})" for name, dtype in columns if name in texts)
    text += f"; and boolean ones beside them ({', '.join(f'`{name}`' for name in flags)})." if flags else "."
    return Explanation(
        text,
        f"Encode them as numbers first: `pd.get_dummies({table.name}, columns={texts}, dtype=float)`, or drop them; "
        'then `.to_numpy(dtype="float32")`.',
    )


@explains("ragged_array")
def rows_of_different_lengths(fact: Fact, failure: Failure) -> Explanation | None:
    """A list of lists of different lengths that should become one array."""
    frame = failure.frame
    place = failing_call(failure, frame)
    if place is None or frame is None or not place[1].args:
        return None
    operand = place[0].code(place[1].args[0])
    value = failure.value(operand)
    lengths = [item.get("length") for item in value.items or []] if value is not None else []
    detail = (
        f" ({', '.join(str(n) for n in lengths if n is not None)}, ...)"
        if any(lengths)
        else f" ({fact.first} and {fact.second})"
        if fact.first
        else ""
    )
    return Explanation(
        f"`{operand}` holds rows of different lengths{detail}, and `{place[0].code(place[1])}` ({frame.place}) "
        "needs rows of one length.",
        "Pad them (`torch.nn.utils.rnn.pad_sequence`), cut them to one length, or keep them in a list.",
    )


@explains("image_axes")
def image_with_channels_first(fact: Fact, failure: Failure) -> Explanation | None:
    """An image whose channels stand first, for matplotlib or Pillow."""
    shape: tuple[int, ...] = fact.shape or ()
    place = failing_call(failure, failure.frame)
    if place is None or failure.frame is None or not place[1].args:
        return None
    name = place[0].code(place[1].args[0])
    text = (
        f"`{place[0].code(place[1])}` ({failure.frame.place}) takes an image as (height, width, channels), as "
        "matplotlib's `imshow` and Pillow do, but "
        f"`{name}` is {sizes(shape)}."
    )
    if len(shape) == 3 and shape[0] in (1, 3, 4):
        return Explanation(
            f"{text} The channels stand first, as torch has them.",
            f"Move them last: `{name}.permute(1, 2, 0)` (numpy: `{name}.transpose(1, 2, 0)`)."
            if shape[0] != 1
            else f"Drop the channel axis: `{name}.squeeze(0)`.",
        )
    if len(shape) == 4:
        return Explanation(f"{text} It is a batch.", f"Take one image: `{name}[0]`.")
    return Explanation(text, f"Reshape it to two or three axes; with one channel `{name}.squeeze()`.")


@explains("integer_gradient")
def gradient_of_integers(fact: Fact, failure: Failure) -> Explanation | None:
    """A tensor of whole numbers that should be trained."""
    place = failing_call(failure, failure.frame)
    if place is None or failure.frame is None:
        return None
    return Explanation(
        f"`{place[0].code(place[1])}` ({failure.frame.place}) asks for a gradient of whole numbers, which have none.",
        "Make them floating point: `torch.tensor([1.0, 2.0], requires_grad=True)`, or `dtype=torch.float32`.",
    )


@explains("array_expected")
def list_to_from_numpy(fact: Fact, failure: Failure) -> Explanation | None:
    """torch.from_numpy of something that is not an array."""
    place = failing_call(failure, failure.frame, "from_numpy")
    if place is None or not place[1].args or failure.frame is None:
        return None
    before, name = place[0].code(place[1]), place[0].code(place[1].args[0])
    after = (
        f"torch.tensor({name})"
        if fact.type in ("list", "tuple", "int", "float")
        else f"torch.from_numpy({name}.to_numpy())"
    )
    return Explanation(
        f"`{before}` ({failure.frame.place}) takes a numpy array, but `{name}` is a {fact.type}.",
        f"`{after}`.",
        replaced(failure.source(failure.frame), failure.frame.line, before, after),
    )


@explains("several_indices", "array_index")
def list_by_several_indices(fact: Fact, failure: Failure) -> Explanation | None:
    """A list that is indexed by a tensor, an array or a list of indices."""
    place = failing_expression(failure, failure.frame, ast.Subscript)
    if place is None or failure.frame is None or not isinstance(place[1], ast.Subscript):
        return None
    items, index, code = place[0].code(place[1].value), place[0].code(place[1].slice), place[0].code(place[1])
    value, picks = failure.value(items), failure.value(index)
    number = (picks.shape[0] if picks.shape else picks.length) if picks is not None else None
    if value is None or value.type not in ("list", "tuple") or picks is None or number is None:
        return None
    kind = {"tensor": "a tensor", "array": "an array"}.get(picks.kind, f"a {picks.type}")
    after = f"[{items}[i] for i in {index}{'.tolist()' if picks.kind in ('tensor', 'array') else ''}]"
    return Explanation(
        f"`{items}` is a {value.type}, and `{code}` ({failure.frame.place}) picks entries of it by `{index}`, {kind} "
        f"of {number} indices. Only tensors and arrays can be indexed so; a {value.type} takes one whole number.",
        f"Pick the entries one by one: `{after}`; an array of the entries (`np.array({items}, dtype=object)`) takes "
        "several indices at once.",
        replaced(place[0], place[1].lineno, code, after),
    )


@explains("array_index")
def index_of_no_number(fact: Fact, failure: Failure) -> Explanation | None:
    """A list or an array that is indexed by a text or a float, mostly since it should have been a table or a dict."""
    frame = failure.frame
    place = failing_expression(failure, frame, ast.Subscript)
    if place is None or frame is None or not isinstance(place[1], ast.Subscript):
        return None
    base, index = place[0].code(place[1].value), place[1].slice
    value = failure.value(base)
    kind = f"a {value.type}" if value is not None else "a list or an array"
    if isinstance(index, ast.Constant) and isinstance(index.value, str):
        return Explanation(
            f"`{place[0].code(place[1])}` ({frame.place}) asks for {index.value!r}, but `{base}` is {kind}, which "
            "knows "
            "positions and no names.",
            "Keep the table or the dict (a scaler, `.values` or `to_numpy` returns an array without column names), "
            "or use "
            "the number of the column.",
        )
    code = place[0].code(index)
    if isinstance(index, ast.Tuple):
        base, parts = place[0].code(place[1].value), [place[0].code(part) for part in index.elts]
        after = f"{base}{''.join(f'[{part}]' for part in parts)}"
        return Explanation(
            f"`{place[0].code(place[1])}` ({frame.place}) indexes {kind} by several axes, as only arrays and "
            f"tensors allow.",
            f"Use one index after the other, `{after}`, or make an array of it: `np.array({base})`.",
            replaced(failure.source(frame), frame.line, place[0].code(place[1]), after),
        )
    return Explanation(
        f"`{place[0].code(place[1])}` ({frame.place}) indexes {kind} with `{code}`, which is not a whole number.",
        f"Convert it: `int({code})`; `//` in place of `/` keeps a whole number.",
    )


@explains("index_dtype")
def index_of_another_type(fact: Fact, failure: Failure) -> Explanation | None:
    """Ids or indices that are floating-point numbers."""
    table = failure.in_library("forward", "sparse.py")
    ids = table.values.get("input") if table else None
    dtype = type_name(fact.dtype) if fact.dtype else str(ids.dtype) if ids is not None else "floating point"
    place = failing_call(failure, failure.frame)
    name = place[0].code(place[1].args[0]) if place and place[1].args else ""
    layer = failing_layer(failure)
    what = (
        f"`{layer}` looks up ids"
        if layer
        else f"`{place[0].code(place[1])}` takes indices"
        if place
        else "Ids and indices"
    )
    text = (
        f"{what}, which have to be whole numbers (int64), but "
        + (f"`{name}`" if name else "the input")
        + f" is {dtype}."
    )
    maker = _maker(failure, name)
    if maker is not None and isinstance(maker.node, ast.Call):
        text += f" It is made by `{maker.code}` ({maker.place})"
        if last_name(maker.node.func) in FACTORIES and argument(maker.node, -1, "dtype") is None:
            after = f"{maker.code[:-1]}, dtype=torch.long)"
            text += ", which makes float32 by default."
            return Explanation(text, f"`{after}`.", replaced(maker.source, maker.node.lineno, maker.code, after))
        text += "."
    return Explanation(text, f"Convert it: `{name or 'ids'}.long()`, or make it with `dtype=torch.long`.")


@explains("dtype")
def types_differ(fact: Fact, failure: Failure) -> Explanation | None:
    """Two operands of different types."""
    expected, actual = type_name(fact.expected), type_name(fact.actual)
    mixed_loss = next((name for name in FLOAT_LOSSES if failure.in_library(name)), None)
    if mixed_loss and "int64" in (expected, actual):
        name = _second_argument(failure)
        bare = name.strip("`") if name.startswith("`") else "target"
        maker = _maker(failure, bare)
        origin_text = f" It is made by `{maker.code}` ({maker.place})." if maker else ""
        dtype_node = argument(maker.node, -1, "dtype") if maker and isinstance(maker.node, ast.Call) else None
        return Explanation(
            f"{name} is int64, whole numbers, but `{mixed_loss}` takes targets of the type of the model's output, "
            f"{actual if expected == 'int64' else expected}.{origin_text}",
            f"Convert it: `{bare}.float()`"
            + (", or make it so: `dtype=torch.float32`." if dtype_node is not None else "."),
            changed(maker.source, dtype_node, "torch.float32") if maker and dtype_node is not None else None,
        )
    output, target = loss_tensors(failure)
    if "backward" in (failure.frame.code if failure.frame else "") and "Found dtype" in failure.message:
        loss = backward_loss(failure)
        where = origin(failure, loss[0], loss[1], failure.frame) if loss is not None else None
        names = [dotted(n) for n in ast.walk(where.node) if isinstance(n, ast.Name)] if where is not None else []
        name = next((n for n in names if (v := failure.value(n)) is not None and v.dtype == actual), "")
        node = next(n for n in ast.walk(where.node) if dotted(n) == name) if where is not None and name else None
        maker = origin(failure, where.source, node, failure.frame) if where and isinstance(node, ast.expr) else None
        text = f" In `{where.code}` ({where.place}) `{name}` is {actual}" if where is not None and name else ""
        made_by = f", from `{maker.code}` ({maker.place})" if maker is not None and maker.node is not node else ""
        return Explanation(
            f"The loss is {actual}, but its gradient has to be {expected}: the target (or a constant in the loss) "
            f"has another type than the model's output.{f'{text}{made_by}.' if text else ''}",
            f"Convert it before the loss: `{name or 'target'}.{METHODS.get(expected, 'float()')}`"
            + ("; numpy and pandas make float64: give the type where it is made." if actual == "float64" else "."),
        )
    if (
        target is not None
        and output is not None
        and (target.is_integer or target.dtype in ("float64", "bool", "uint8"))
        and failure.in_library("forward", "loss.py")
    ):
        name = _second_argument(failure)
        if expected == "int64":
            return _indices(failure, name, actual)
        return Explanation(
            f"{name} is {target.dtype}, but this loss takes numbers of the type of the model's output "
            f"({output.dtype}).",
            f"Convert it: `{name.strip('`')}.float()`.",
        )
    if (
        expected == "int64"
        and actual.startswith("float")
        and (failure.in_library("cross_entropy") or "target" in failure.message)
    ):
        return _indices(failure, _second_argument(failure), actual)
    stored = failing_expression(failure, failure.frame, ast.AugAssign)
    if "cast to the desired output type" in failure.message and stored is not None:
        written, code = stored[0].code(getattr(stored[1], "target", None)), stored[0].code(stored[1])
        return Explanation(
            f"`{code}` writes {actual} values into `{written}`, which is {expected} and cannot hold them.",
            f"Make `{written}` {actual} where it is made, or write a new tensor: "
            f"`{written} = {code.replace('=', '', 1)}`.",
        )
    written_part = failing_expression(failure, failure.frame, ast.Subscript)
    statement = written_part[0].statement_at(failure.frame.line) if written_part and failure.frame else None
    if "Index put" in failure.message and isinstance(statement, ast.Assign) and written_part is not None:
        source, part = written_part[0], statement.targets[0]
        base = part.value if isinstance(part, ast.Subscript) else part
        maker = origin(failure, source, base, failure.frame)
        maker_text = f" `{dotted(base)}` comes from `{maker.code}` ({maker.place})." if maker.node is not base else ""
        before, value = source.code(statement), source.code(statement.value)
        cast = any(True for s in failure.all_sources() for _ in s.calls("autocast"))
        reason = " Under autocast the layers return half precision." if cast and "float16" in actual else ""
        after = f"{source.code(part)} = {value}.to({dotted(base)}.dtype)"
        return Explanation(
            f"`{before}` writes {actual} values into `{dotted(base)}`, which is {expected}, and an assignment by index "
            f"does not convert them.{maker_text}{reason}",
            f"Convert what is written: `{after}`; or make `{dotted(base)}` {actual} where it is made.",
            replaced(source, statement.lineno, before, after),
        )
    layer = failing_layer(failure)
    place = failing_call(failure, failure.frame)
    operands = [place[0].code(value) for value in place[1].args] if place else []
    wrong = next((value for _, value in tensors(failure) if value.dtype == actual), None) or next(
        (value for _, value in tensors(failure) if value.dtype == expected and expected in ("float64", "uint8")), None
    )
    double = "float64" in (expected, actual)
    whole = next((n for n in (expected, actual) if n.startswith(("int", "uint", "bool"))), None)
    if whole and "float" in expected + actual:  # the floating-point side is right
        wrong = next((value for _, value in tensors(failure) if value.dtype == whole), None)
        expected, actual = (actual if whole == expected else expected), whole
    culprit = wrong.name if wrong is not None else operands[0] if len(operands) == 1 else ""
    subject = f"`{layer}`" if layer else f"`{place[0].code(place[1])}`" if place else "The operation"
    dtype = "float64" if double else actual
    text = (
        f"{subject} mixes {expected} and {actual}"
        + (f": `{culprit}` is {dtype}" if culprit else "")
        + ("; the model's weights are float32." if "float32" in (expected, actual) and layer else ".")
    )
    maker = _maker(failure, culprit)
    text += f" It is made by `{maker.code}` ({maker.place})." if maker else ""
    mixed = double_constant(failure, maker) if double and maker is not None else None
    if mixed is not None:
        array, expression = mixed
        return Explanation(
            f"{text} `{array.name}` = `{array.code}` ({array.place}) is a float64 array, as numpy makes them by "
            f"default, and so `{expression.code}` ({expression.place}) is float64, whatever the other side is.",
            f"Convert the result (`({expression.code}).astype(np.float32)`, or `.float()` on the tensor), or give "
            f"`{array.name}` a type: `dtype=np.float32`.",
        )
    if double:
        return Explanation(
            f"{text} numpy and Python's own numbers make float64 arrays.",
            f"Convert it once where the data are read: `torch.from_numpy(x).float()` or `{culprit or 'x'}.float()`.",
        )
    transform = next(
        ((s, c) for s in failure.all_sources() for c in s.calls("PILToTensor", "pil_to_tensor", "read_image")), None
    )
    if dtype == "uint8" and transform is not None:
        before = transform[0].code(transform[1])
        after = before.replace("PILToTensor", "ToTensor").replace("pil_to_tensor", "to_tensor")
        return Explanation(
            f"{text} `{before}` ({transform[0].place(transform[1])}) keeps the pixels as uint8 (0 ... 255) and does "
            "not scale "
            "them.",
            f"Use `{after}`, which makes float32 from 0 to 1, or convert the batch: `{culprit or 'x'}.float() / 255`.",
            replaced(transform[0], transform[1].lineno, before, after) if after != before else None,
        )
    if dtype == "uint8":
        return Explanation(
            f"{text} It is an image as it was read (0 ... 255).",
            f"Convert and scale it: `{culprit or 'x'}.float() / 255` (`transforms.ToTensor()` does that).",
        )
    if "float16" in (expected, actual) or "bfloat16" in (expected, actual):
        return Explanation(
            f"{text} One side was converted to half precision, the other was not.",
            "Convert both or none: run the forward pass under `torch.autocast`, and do not call `.half()` yourself.",
        )
    what = "it" if culprit else f"the {actual} side"
    return Explanation(text, f"Convert {what}: `{culprit or 'x'}.{METHODS.get(expected, 'float()')}`.")


def _indices(failure: Failure, name: str, actual: str) -> Explanation:
    """Explain a target that should be class indices."""
    text = f"{name} is {actual}, but this loss takes class indices (int64)."
    gap = label_without_an_entry(failure, _maker(failure, name.strip("`"))) if actual.startswith("float") else None
    if gap is not None:
        after = f"Then use `.astype('int64')`; `{name.strip('`')}.long()` would make an arbitrary number of NaN."
        return Explanation(f"{text}{gap[0]} A column with NaN is float64.", f"{gap[1]} {after}")
    return Explanation(text, f"Convert it: `{name.strip('`')}.long()`.")


def _second_argument(failure: Failure) -> str:
    place = failing_call(failure, failure.frame)
    return f"`{place[0].code(place[1].args[1])}`" if place and len(place[1].args) > 1 else "The target"


@explains("meta")
def weights_without_values(fact: Fact, failure: Failure) -> Explanation | None:
    """A model that was built on the meta device and never got its values."""
    place = next(
        ((s, n) for s in failure.all_sources() for n in s.nodes if isinstance(n, ast.Constant) and n.value == "meta"),
        None,
    )
    where = f" (`{place[0].line(place[1].lineno).strip()}`, {place[0].place(place[1])})" if place else ""
    return Explanation(
        f"The model was built on the meta device{where}, where tensors have a shape and no values; copying into "
        "them with "
        "`load_state_dict` is a no-op, so its weights are still on meta.",
        "Load with `model.load_state_dict(state, assign=True)`, or give the model memory before: "
        '`model.to_empty(device="cpu")`.',
    )


@explains("device")
def devices_differ(fact: Fact, failure: Failure) -> Explanation | None:
    """A tensor on the CPU and another one on the GPU."""
    actual, expected = _device(fact.actual), _device(fact.expected)
    first, second = fact.first, fact.second
    frame = failure.frame
    if fact.parameter:
        call = _model_call(failure)
        name = call[1] if call else "the input"
        text = f"The model's weights are on {expected}, but its input is on {actual}" + (
            f": `{name}` ({call[0]}) was not moved." if call else "."
        )
        if expected == "the CPU":
            return Explanation(
                text, "Move the model once before the training: `model.to(device)`, and build the optimizer after that."
            )
        moved = f"`{name} = {name}.to(device)`" if call else "`images = images.to(device)`"
        return Explanation(text, f"Move every batch to the device of the model: {moved} (and the targets).")
    moved_by_device = [value for _, value in tensors(failure) if value.device == "cpu"]
    on_gpu = [value for _, value in tensors(failure) if value.device not in (None, "", "cpu")]
    where = (
        f" ({frame.place}: `{frame.expression or frame.code}`)" if frame and (frame.expression or frame.code) else ""
    )
    argument_name = fact.argument or fact.operand
    hint = (
        f" The one on the CPU is the argument `{argument_name}` of the operator "
        f"`{str(fact.method or '').removeprefix('wrapper_CUDA_').strip('_')}`."
        if argument_name and fact.method
        else f" `{fact.operand}` is the one."
        if fact.operand
        else ""
    )
    text = f"Tensors of two devices meet{where}: {first or actual} and {second or expected}.{hint}"
    if moved_by_device and on_gpu:
        text = (
            f"Tensors of two devices meet{where}: `{moved_by_device[0].name}` is on the CPU, `{on_gpu[0].name}` "
            f"on {on_gpu[0].device}."
        )
    layer = failing_layer(failure)
    created = _created_on_the_cpu(failure)
    if created and not moved_by_device:
        codes = " and ".join(f"`{source.code(call)}` ({source.place(call)})" for source, call in created[:2])
        verb = "is made" if len(created) == 1 else "are made"
        device = f"{on_gpu[0].name}.device" if on_gpu else "x.device"
        return Explanation(
            f"{text} {codes} {verb} inside of `forward` without a device, and so on the CPU, wherever the model is.",
            f"Pass the device of the input: `{created[0][0].code(created[0][1])[:-1]}, device={device})`; or make it "
            "once in `__init__` and keep it with `register_buffer`, which moves with the model.",
        )
    if moved_by_device:
        return Explanation(
            text,
            f"Move it: `{moved_by_device[0].name}.to({on_gpu[0].name if on_gpu else 'device'}.device)`."
            if on_gpu
            else f"Move it: `{moved_by_device[0].name}.to(device)`.",
        )
    maker = (
        "a tensor that is made inside of `forward` (`torch.zeros(...)`, `torch.arange(...)`) needs "
        "`device=x.device`; a constant of the module belongs into `register_buffer`, so that "
        "`model.to(device)` moves it"
    )
    if argument_name in ("weight", "mat2", "bias") or (layer and argument_name == "mat1"):
        return Explanation(
            text, "Move model and batch to the same device: `model.to(device)` once, `x.to(device)` for each batch."
        )
    return Explanation(text, f"Move both to one device: batches with `.to(device)`; {maker}.")


def _created_on_the_cpu(failure: Failure) -> list[tuple[Source, ast.Call]]:
    """Return the calls inside of a `forward` that make a tensor and name no device."""
    return [
        (source, call)
        for source in failure.all_sources()
        for function in source.functions("forward")
        for call in source.calls(*FACTORIES, "arange", "eye", "randint", "tensor", inside=function)
        if dotted(call.func).startswith("torch.") and not any(word.arg in ("device", None) for word in call.keywords)
    ]


def _device(text: object) -> str:
    word = str(text or "")
    if word == "meta":
        return "the meta device"
    return "the GPU" if "cuda" in word.lower() or word == "GPU" else "the CPU" if word else ""


def _model_call(failure: Failure) -> tuple[str, str] | None:
    """Return place and argument of the outermost call that hands a batch to a model."""
    frames = failure.own_frames
    for frame, following in zip(reversed(frames), [None, *reversed(frames)], strict=False):
        if frame.function == "forward" and following is not frame and len(frames) > 1 and frame is not frames[0]:
            continue
        call = failing_call(failure, frame)
        if call is not None and call[1].args and dotted(call[1].args[0]):
            return frame.place, call[0].code(call[1].args[0])
    return None


@explains("numpy_type")
def type_unknown_to_numpy(fact: Fact, failure: Failure) -> Explanation | None:
    """A bfloat16 tensor that should become a numpy array."""
    frame, source = failure.frame, failure.source(failure.frame)
    place = failing_call(failure, frame, "numpy", "asarray", "array")
    if place is None or frame is None:
        return None
    call, dtype = place[1], type_name(fact.dtype)
    tensor = (
        call.func.value if last_name(call.func) == "numpy" and isinstance(call.func, ast.Attribute) else call.args[0]
    )
    code, base = place[0].code(call), place[0].code(tensor)
    after = code.replace(base, f"{base}.float()", 1)
    cast = source.enclosing(frame.line, ast.With) if source is not None else None
    line = source.line(cast.lineno).strip() if source is not None and isinstance(cast, ast.With) else ""
    text = f"`{base}` ({frame.place}) is {dtype}, a type that numpy does not have."
    if "autocast" in line and source is not None and isinstance(cast, ast.With):
        text += f" `{line.rstrip(':')}` ({source.place(cast)}) makes the layers' outputs {dtype}."
    return Explanation(text, f"Convert it first: `{after}`.", replaced(source, frame.line, code, after))


DOUBLE = ("array", "asarray", "zeros", "ones", "full", "linspace", "empty", "eye", "loadtxt", "genfromtxt")


def double_constant(failure: Failure, where: Origin, steps: int = 6) -> tuple[Origin, Origin] | None:
    """Return the float64 array that numpy created without a dtype, and the expression that uses it."""
    node = where.node
    if (isinstance(node, ast.Call) and last_name(node.func) in ("astype", "float", "float32")) or steps <= 0:
        return None
    for part in ast.walk(node):
        if not isinstance(part, ast.Name | ast.Attribute) or not isinstance(part.ctx, ast.Load):
            continue
        definition = origin(failure, where.source, part, where.frame)
        if definition.node is part:
            continue
        call = definition.node
        root = dotted(call.func).partition(".")[0] if isinstance(call, ast.Call) else ""
        if isinstance(call, ast.Call) and root in ("np", "numpy") and last_name(call.func) in DOUBLE:
            floats = last_name(call.func) not in ("array", "asarray", "full") or any(
                isinstance(n, ast.Constant) and isinstance(n.value, float) for n in ast.walk(call)
            )
            if floats and argument(call, 1, "dtype") is None and isinstance(node, ast.BinOp):
                return Origin(definition.source, call, definition.frame, dotted(part)), where
        elif (deeper := double_constant(failure, definition, steps - 1)) is not None:
            return deeper
    return None
