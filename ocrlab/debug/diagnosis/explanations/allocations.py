"""A tensor too large for the memory: which sizes of the program multiply to it."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, explains, listed
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import failing_call, failing_expression, origin
from ocrlab.debug.diagnosis.explanations.source import argument, constant, dotted

ITEM_SIZES = {"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float16": 2, "bfloat16": 2, "bool": 1}
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "EiB": 1 << 60}
MOST_FACTORS, MOST_SIZES = 3, 24


@explains("allocation")
def too_large(fact: Fact, failure: Failure) -> Explanation | None:
    """A result whose sizes, read from the operands, multiply to what was asked for."""
    frame, place = failure.frame, failing_expression(failure, failure.frame, ast.expr)
    if frame is None or place is None:
        return None
    widened = _largest_value(fact, failure)
    if widened is not None:
        return widened
    sizes = list(_sizes(failure))
    dtypes = [value.dtype for value in frame.values.values() if value.kind in ("tensor", "array")]
    item_sizes = [ITEM_SIZES.get(str(dtype), 4) for dtype in dtypes]
    for item in [ITEM_SIZES.get(fact.dtype, 4)] if fact.dtype else dict.fromkeys([*item_sizes, 4, 8]):
        factors = _factors(fact, item, sizes)
        if factors is None:
            continue
        wanted = " x ".join(f"{size:,}" for size, _ in factors)
        names = [f"{size:,} is {name}" for size, name in dict.fromkeys(factors)]
        total = math.prod(size for size, _ in factors)
        source, node = place
        largest = max(factors)[1]
        is_layer = any(value.kind == "module" and not value.own for _, value in failure.values(library=True))
        return Explanation(
            f"`{source.code(node)}` ({frame.place}) makes one result of {wanted} = {total:,} values of {item} bytes, "
            f"{size_words(total * item)} at once: {listed(names)}.",
            "Make its input smaller before the layer by pooling or strides (`nn.AdaptiveAvgPool2d(8)`) or fewer "
            "channels, and compare the sizes with those of the data."
            if is_layer
            else f"If it is meant to be that large, compute it in chunks along {largest} and keep only what is needed "
            "of each. Otherwise correct the size that is wrong.",
        )
    return None


def _largest_value(fact: Fact, failure: Failure) -> Explanation | None:
    """Explain a result that has a column for every number up to the largest value of its operand."""
    place = failing_call(failure, failure.frame, "one_hot", "bincount")
    if place is None or argument(place[1], 1, "num_classes", "minlength") is not None:
        return None
    source, call = place
    values = call.args[0] if call.args else None
    # the values themselves, inside of the calls that make a tensor of them
    while isinstance(values, ast.Call):
        function = values.func
        method = isinstance(function, ast.Attribute) and dotted(function.value) not in ("torch", "np", "numpy")
        values = function.value if method and isinstance(function, ast.Attribute) else next(iter(values.args), None)
    if values is None:
        return None
    name, live = source.code(values), failure.value(dotted(values))
    size = int(fact.bytes) if fact.bytes is not None else int(float(fact.size) * UNITS[str(fact.unit)])
    width = live.max + 1 if live is not None and live.is_integer and live.max is not None else None
    lengths = {value.shape[0] for _, value in failure.values(library=False) if value.shape and value.name in name}
    if width is None and fact.bytes is not None and len(lengths) == 1 and (size // 8) % (rows := lengths.pop()) == 0:
        width = size // 8 // rows
    if width is not None and width < 100_000:  # as many classes may be meant
        return None
    largest = f", here {width:,}" if width else ""
    return Explanation(
        f"`{source.code(call)}` ({source.place(call)}) gets no number of classes, so it makes a column for each number "
        f"from 0 to the largest value in `{name}`{largest}: {size_words(size)} in all. `{name}` holds raw "
        "ids, which are large numbers with gaps, and not class numbers.",
        f"Number the values first, 0 to the number of different ids minus one: `codes, ids = pd.factorize({name})` "
        f"(torch: `ids, codes = values.unique(return_inverse=True)`), and encode `codes`. For many ids use "
        "`nn.Embedding` on the codes.",
    )


def size_words(size: float) -> str:
    """Return `900 GB`."""
    power = min(int(math.log(max(size, 1), 1000)), 6)
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB')[power]}"


def _sizes(failure: Failure) -> Iterator[tuple[int, str]]:
    """Yield the lengths of axes and the whole numbers in the failing line and the calls below it, with their names."""
    frame, place = failure.frame, failing_expression(failure, failure.frame, ast.expr)
    for where, value in failure.values():
        inside = f" of {where.function}" if where.is_library else ""
        if value.shape is not None:
            yield from ((n, f"axis {axis} of `{value.name}`{inside}") for axis, n in enumerate(value.shape) if n > 1)
        elif isinstance(value.number, int) and value.number > 1:
            yield value.number, f"`{value.name}`{inside}"
    for node in ast.walk(place[1]) if place else ():
        number = constant(origin(failure, place[0], node, frame).node) if isinstance(node, ast.expr) and place else None
        if isinstance(number, int) and number > 1:
            yield number, f"`{place[0].code(node)}`" if place else ""


def _factors(fact: Fact, item: int, sizes: list[tuple[int, str]]) -> list[tuple[int, str]] | None:
    """Return the fewest sizes that multiply to the values that were asked for, to the byte; NumPy names its shape."""
    if fact.shape:
        names = dict(reversed(sizes))
        return [(n, names.get(n, "in the shape of the message")) for n in fact.shape]
    if fact.bytes is None or int(fact.bytes) < 1 << 30:  # of a rounded number many products are near
        return None
    large = sorted(dict.fromkeys(sizes), key=lambda size: -size[0])[:MOST_SIZES]
    for count in range(1, MOST_FACTORS + 1):
        for chosen in itertools.combinations_with_replacement(large, count):
            if math.prod(size for size, _ in chosen) * item == int(fact.bytes):
                return list(chosen)
    return None
