"""Gradients that are NaN or infinite although the loss is a number: which operation of the loss has no slope there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ocrlab.debug.diagnosis.explanations.autograd import backward_loss
from ocrlab.debug.diagnosis.explanations.explanation import Explanation, explains, in_parentheses
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import Origin, origin
from ocrlab.debug.diagnosis.explanations.source import Source, constant, dotted, last_name, own_nodes

ROOT, ANGLE, LOGARITHM, DIVISION = "root", "angle", "logarithm", "division"
OPERATIONS = {
    "sqrt": ROOT, "norm": ROOT, "vector_norm": ROOT, "std": ROOT, "rsqrt": ROOT, "acos": ANGLE, "arccos": ANGLE,
    "asin": ANGLE, "log": LOGARITHM, "log2": LOGARITHM, "log10": LOGARITHM, "div": DIVISION, "reciprocal": DIVISION,
}  # fmt: skip
BACKWARD = {
    "Sqrt": "sqrt", "Norm": "norm", "LinalgVectorNorm": "norm", "Std": "std", "Acos": "acos", "Asin": "asin",
    "Log": "log", "Div": "div",
}  # fmt: skip
FINITE = (ROOT, ANGLE)  # operations with a result at the place where their slope is infinite
WHY = {
    ROOT: "the slope of a square root is infinite at 0, and {code} is 0 where two rows are equal or a row is all zeros",
    ANGLE: "the slope of {code} is infinite at 1 and -1, where two vectors have the same or the opposite direction",
    LOGARITHM: "{code} is minus infinity for 0 and NaN below it",
    DIVISION: "{code} is infinite or NaN where the divisor is 0",
}


def operations(failure: Failure, where: Origin, steps: int = 8) -> Iterator[tuple[Source, ast.expr, str]]:
    """Yield the operations with an infinite slope somewhere in what made a value, through names and own functions."""
    for part in ast.walk(where.node):
        if isinstance(part, ast.Call) and (kind := OPERATIONS.get(last_name(part.func))):
            yield where.source, part, kind
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow) and constant(part.right) == 0.5:
            yield where.source, part, ROOT
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) and isinstance(part.right, ast.Name):
            value = failure.value(part.right.id)
            if value is None or value.kind == "tensor":  # not by a number, such as a temperature
                yield where.source, part, DIVISION
        if steps <= 0:
            continue
        if isinstance(part, ast.Call):
            yield from _of_function(failure, where.source, part, where, steps)
        elif isinstance(part, ast.Name):
            maker = origin(failure, where.source, part, where.frame, 1)
            if maker.node is not part:
                yield from operations(failure, maker, steps - 1)


def _of_function(
    failure: Failure, source: Source, call: ast.Call, where: Origin, steps: int
) -> Iterator[tuple[Source, ast.expr, str]]:
    """Yield the operations in the program's own function or loss class that is called."""
    name = last_name(call.func)
    built = origin(failure, source, call.func, where.frame).node
    owner = last_name(built.func) if isinstance(built, ast.Call) else ""
    for other in failure.all_sources():
        functions = list(other.functions(name)) if name not in ("forward", "backward", "step") else []
        functions += [
            f for c in other.classes(owner) for f in c.body if isinstance(f, ast.FunctionDef) and f.name == "forward"
        ]
        for function in functions:
            for node in own_nodes(function):
                if isinstance(node, ast.Return | ast.Assign) and node.value is not None:
                    yield from operations(failure, Origin(other, node.value), steps - 3)


@explains("not_finite_gradient")
def slope_without_end(fact: Fact, failure: Failure) -> Explanation | None:
    """A square root at 0 and the like: the loss is a number, its gradient is NaN or infinite."""
    frame = failure.frame
    source = failure.source(frame)
    if frame is None:
        return None
    text = f"The gradients hold NaN or infinity before they are clipped ({frame.place})"
    wanted = BACKWARD.get(str(fact.function))
    if fact.function:
        text = f"The backward pass of `{wanted or fact.function}` returned NaN ({frame.place})"
    loss = backward_loss(failure)
    node = loss[1] if loss else None
    scope = source.function_at(frame.line) if source else None
    if node is None and source is not None:
        calls = [
            c
            for c in source.calls("backward")
            if isinstance(c.func, ast.Attribute) and c.lineno <= frame.line and source.function_at(c.lineno) is scope
        ]
        node = calls[-1].func.value if calls and isinstance(calls[-1].func, ast.Attribute) else None
    value = failure.value(dotted(node)) if node is not None else None
    finite = value is not None and value.min is not None and not value.not_finite
    slopes = (
        list(dict.fromkeys(operations(failure, Origin(source, node, frame)))) if source and node is not None else []
    )
    slopes = [f for f in slopes if (f[2] in FINITE if finite else True)]
    if wanted:
        slopes = [f for f in slopes if f[2] == OPERATIONS[wanted]] or slopes
    if node is not None and slopes:
        at, part, kind = slopes[0]
        function = at.function_at(part.lineno)
        code = f"`{at.code(part)}`{f' in `{function.name}`' if function else ''} ({at.place(part)})"
        state = f", though `{dotted(node)}` is {value.min:.4g}" if value is not None and value.min is not None else ""
        others = [f"`{s.code(p)}` ({s.place(p)})" for s, p, k in slopes[1:3] if k == kind]
        more = f" The same holds for {' and '.join(others)}." if others else ""
        return Explanation(f"{text}{state}: {WHY[kind].format(code=code)}.{more}", _repair(at, part, kind))
    state = f" `{dotted(node)}` itself is not finite." if value is not None and value.not_finite else ""
    return Explanation(
        f"{text}: the loss or an input of this step already did, or the backward pass overflowed.{state}",
        "Look for the first value that is not finite: check `torch.isfinite(loss)` and the batch before `backward()`, "
        "or run once with `torch.autograd.set_detect_anomaly(True)`; clipping cannot repair it.",
    )


def _repair(source: Source, node: ast.expr, kind: str) -> str:
    inner: ast.expr | None = node.left if isinstance(node, ast.BinOp) else None
    if isinstance(node, ast.Call):
        function = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else "torch"
        method = isinstance(node.func, ast.Attribute) and function not in ("torch", "F", "torch.linalg")
        inner = node.func.value if method else next(iter(node.args), None)  # type: ignore[attr-defined]
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    base = in_parentheses(source, inner) if inner is not None else "x"
    if kind == ROOT and name in ("norm", "vector_norm", "std"):
        again = f"({base} ** 2).sum(-1)" if name != "std" else f"{base}.var(-1)"
        return (
            f"Write the root yourself and add a small number under it: `({again} + 1e-8).sqrt()` (over the axis of the "
            "original), or use the squared value."
        )
    if kind == ROOT:
        return (
            f"Add a small number under the root: `({base} + 1e-8).sqrt()`, or use the squared value where that will do."
        )
    if kind == ANGLE:
        return f"Keep it away from 1: `{base}.clamp(-1 + 1e-6, 1 - 1e-6)` before `{name}`."
    if kind == LOGARITHM:
        return f"Keep it above 0: `{base}.clamp_min(1e-8).{name}()`, or use `F.log_softmax` on the scores."
    return "Add a small number to the divisor (`/ (x + 1e-8)`), or `clamp_min(1e-8)` it."
