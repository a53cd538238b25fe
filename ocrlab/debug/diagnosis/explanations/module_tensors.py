"""Parameters and tensors of a model by name: those without a gradient, those with a graph, those that do not move."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ocrlab.debug.diagnosis.explanations.checkpoints import HEADS
from ocrlab.debug.diagnosis.explanations.explanation import Explanation, changed, explains, in_parentheses, listed
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import failing_call, origin
from ocrlab.debug.diagnosis.explanations.source import Source, constant, dotted

WITHOUT_GRADIENT = "<no gradient>"  # as failing_values.py has it


def assignments(failure: Failure, attribute: str, owner: str = "") -> Iterator[tuple[Source, ast.Assign]]:
    """Yield where the classes of the program (or the one of a name) set `self.<attribute>` to more than a constant."""
    for source in failure.all_sources():
        for node in source.nodes:
            if isinstance(node, ast.Assign) and any(dotted(target) == f"self.{attribute}" for target in node.targets):
                scope = source.class_at(node.lineno)
                fits = scope is not None and owner in ("", scope.name)
                if fits and not (isinstance(node.value, ast.Constant) or constant(node.value) is not None):
                    yield source, node


def uses(failure: Failure, attribute: str) -> list[tuple[Source, ast.Attribute]]:
    """Return where methods other than `__init__` read `self.<attribute>`."""
    return [
        (source, node)
        for source in failure.all_sources()
        for node in source.nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and dotted(node) == f"self.{attribute}"
        and (function := source.function_at(node.lineno)) is not None
        and function.name != "__init__"
    ]


@explains("copied_graph")
def tensor_with_a_graph(fact: Fact, failure: Failure) -> Explanation | None:
    """A copy of an object that holds a tensor with its graph."""
    frame = failure.frame
    place = failing_call(failure, frame, "deepcopy", "AveragedModel") or failing_call(failure, frame)
    if place is None or frame is None:
        return None
    code = place[0].code(place[1])
    copied = place[0].code(place[1].args[0]) if place[1].args else ""
    text = f"`{code}` ({frame.place}) copies a tensor that still has its graph, which `deepcopy` cannot do"
    weights = f"copy the weights only: `copy.deepcopy({copied or 'model'}.state_dict())`"
    values = sorted(frame.values.values(), key=lambda value: value.name != copied)
    for value in values:
        for path, name, owner, _, made_by in value.plain_tensors or ():
            full = ".".join(part for part in (value.name, path, name) if part)
            if made_by == "weight_norm":
                return Explanation(
                    f"{text}: `torch.nn.utils.weight_norm` computes `{full}` anew in each forward pass.",
                    f"Use `torch.nn.utils.parametrizations.weight_norm`, whose modules can be copied, or {weights}.",
                )
            if made_by:
                return _stored(failure, f"{text}: `{full}`.", name, owner, weights)
    value_ = failure.value(copied)
    if value_ is not None and value_.kind != "module":
        weights = "leave it out of the copy"
    if value_ is not None and value_.made_by:
        return Explanation(f"{text}: `{copied}` is the result of a computation.", f"`{copied}.detach().clone()`.")
    for name, facts in ((value_.attributes or {}) if value_ is not None else {}).items():
        if facts.get("made_by"):
            return _stored(failure, f"{text}: `{copied}.{name}`.", name, str(value_ and value_.type), weights)
    inside = [(s, n) for s in failure.all_sources() for n in s.nodes if isinstance(n, ast.Assign)]
    stored = [(s, n) for s, n in inside if (f := s.function_at(n.lineno)) is not None and f.name == "forward"]
    names = [t.attr for _, n in stored for t in n.targets if isinstance(t, ast.Attribute)]
    if len(set(names)) == 1 and (value_ is None or value_.kind == "module"):
        return _stored(failure, f"{text}: the one in `self.{names[0]}`.", names[0], "", weights)
    return Explanation(
        f"{text}: an attribute of `{copied or 'the object'}` or an entry of it is the result of a computation.",
        f"Store it detached (`self.last = x.detach()`), or {weights}.",
    )


def _stored(failure: Failure, text: str, name: str, owner: str, weights: str) -> Explanation:
    where = next(iter([*assignments(failure, name, owner), *assignments(failure, name)]), None)
    if where is None:
        return Explanation(text, f"Store it with `.detach()`, or set it to None before the copy, or {weights}.")
    source, node = where
    after = f"{in_parentheses(source, node.value)}.detach()"
    single = len(node.targets) == 1 and not isinstance(node.value, ast.Tuple)
    method = source.function_at(node.lineno)
    scope = source.class_at(node.lineno)
    inside = f", in `{scope.name}.{method.name}`" if scope and method else ""
    store = f"`{source.code(node.targets[0])} = {after}`" if single else f"`self.{name}` with `.detach()`"
    return Explanation(
        f"{text} `{source.code(node)}` ({source.place(node)}{inside}) stores it.",
        f"Store it without its graph: {store}; or copy before the first forward pass, or {weights}.",
        changed(source, node.value, after) if single else None,
    )


@explains("without_gradient")
def parameters_without_a_gradient(fact: Fact, failure: Failure) -> Explanation | None:
    """Parameters that DistributedDataParallel waits for: their layer was left out of the loss."""
    names = next((v.names for f in reversed(failure.frames) if (v := f.values.get(WITHOUT_GRADIENT))), None) or []
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    wrap = next(((s, c) for s in failure.all_sources() for c in s.calls("DistributedDataParallel", "DDP")), None)
    numbers = str(fact.indices or "").split()
    subject = f"{listed([f'`{name}`' for name in names])} got" if names else "Some parameters of the wrapped model got"
    indices = f" (number {listed(numbers)})" if numbers and not names else ""
    text = f"{subject} no gradient in the last step{indices}, so the ranks wait for gradients that never come."
    after = ""
    if wrap is not None:
        after = f"{wrap[0].code(wrap[1])[:-1]}, find_unused_parameters=True)"
        text += f" The model is wrapped at {wrap[0].place(wrap[1])}."
    layer = listed([f"`{name}`" for name in layers]) if layers else "every layer"
    why, never = left_out(failure, layers[0].partition(".")[0]) if layers else ("", False)
    single = len(layers) == 1
    keep = (
        f"remove {layer} or freeze {'it' if single else 'them'} (`requires_grad_(False)`) before the model is wrapped"
    )
    use = f"let {layer} take part in the loss of every step (`loss + 0 * output.sum()` where it has no target)"
    asks = f"wrap with `find_unused_parameters=True`: `{after}`" if after else "wrap with `find_unused_parameters=True`"
    first = keep if never else use
    return Explanation(
        text + (f" {why}" if why else " A branch or head was not used for the loss."),
        f"{first[0].upper()}{first[1:]}; or {asks}.",
        changed(wrap[0], wrap[1], after) if wrap is not None and not never else None,
    )


def parameter_without_gradient(failure: Failure, start: str, gradient: str) -> Explanation:
    """Explain a gradient that is None: of the result of an operation, or of parameters, and why they have none."""
    owner = gradient.removesuffix(".grad")
    value = failure.value(owner)
    if value is not None and value.made_by:
        return _not_a_leaf(failure, f"{start}: `{owner}` is the result of an operation ({value.made_by})", owner)
    models = [v for _, v in failure.values(library=False) if v.kind == "module" and v.without_grad]
    model = max(models, key=lambda v: int(v.trained_count), default=None)
    line = freezing_line(failure)
    skip = f"Skip what has none: `if {gradient} is not None`"
    frozen = failure.value(gradient.removesuffix(".grad"))
    if frozen is not None and frozen.requires_grad is False:
        return Explanation(
            f"{start}: this parameter is frozen (`requires_grad` is False){f' by {line}' if line else ''}.",
            f"{skip}, or go through those that train: `[p for p in model.parameters() if p.requires_grad]`.",
        )
    if model is None:
        return Explanation(
            f"{start}: this parameter has got no gradient, as it was not used by the loss, is frozen, or `backward()` "
            "was not called yet.",
            f"{skip}, or find out why the loss does not depend on it.",
        )
    if model.without_grad_count == model.trained_count:
        return Explanation(
            f"{start}: no parameter of `{model.name}` has a gradient. `backward()` has not run since the model was "
            "built or since the last `zero_grad()`, which sets gradients to None.",
            "Read gradients after `backward()` and before `zero_grad()`.",
        )
    names = [f"`{name}`" for name in model.without_grad]
    layer = str(model.without_grad[0]).partition(".")[0]
    why, never = left_out(failure, layer)
    use = f"remove `{layer}`" if never else f"let `{layer}` take part in the loss, or build it only where it is used"
    return Explanation(
        f"{start}: {listed(names)} of `{model.name}` got no gradient. "
        + (why or "The loss does not depend on what they compute."),
        f"{skip}; or {use}. (`nn.utils.clip_grad_norm_` skips such parameters.)",
    )


def _not_a_leaf(failure: Failure, start: str, owner: str) -> Explanation:
    text = f"{start}, and `backward()` keeps the gradients of leaves only."
    assigned = [(s, n) for s in failure.all_sources() for n in s.nodes if isinstance(n, ast.Assign)]
    results = [(s, n, leaf) for s, n in assigned if (leaf := _leaf_inside(n.value)) is not None]
    chosen = [entry for entry in results if dotted(entry[1].targets[0]) == owner] or results
    if len(chosen) != 1:
        return Explanation(
            text,
            f"Make it a leaf: call `.requires_grad_()` last, after every operation that makes `{owner}` (with "
            f"`.detach()` before it), or call `{owner}.retain_grad()`.",
        )
    source, node, leaf = chosen[0]
    name, value = source.code(node.targets[0]), in_parentheses(source, node.value)
    after = f"{value.replace(', requires_grad=True', '')}.requires_grad_()"
    return Explanation(
        f"{text} `{source.code(node)}` ({source.place(node)}) computes `{name}` from the leaf `{source.code(leaf)}`.",
        f"Ask for the gradient last: `{name} = {after}`.",
        changed(source, node.value, after),
    )


def _leaf_inside(value: ast.expr) -> ast.Call | None:
    """Return the call with `requires_grad=True` inside of an expression, which computes something else from it."""
    for part in ast.walk(value):
        if isinstance(part, ast.Call) and any(k.arg == "requires_grad" and constant(k.value) for k in part.keywords):
            return None if part is value else part
    return None


def left_out(failure: Failure, attribute: str) -> tuple[str, bool]:
    """Say why a layer took no part in the loss, and whether nothing ever uses it."""
    read = uses(failure, attribute)
    if not read and any(True for _ in assignments(failure, attribute)):
        return f"No method of the model uses `self.{attribute}`.", True
    if not read:
        return "", False
    source, node = read[0]
    function = source.function_at(node.lineno)
    tests = [
        n
        for n in ast.walk(function or source.tree)
        if isinstance(n, ast.If | ast.IfExp)
        and (
            n.lineno <= node.lineno <= (n.end_lineno or 0)
            or (n.lineno < node.lineno and any(isinstance(p, ast.Return) for p in ast.walk(n)))
        )
    ]
    line = f"`{source.line(node.lineno).strip()}` ({source.place(node)})"
    if tests:
        test = max(tests, key=lambda n: n.lineno)
        setting = origin(failure, source, test.test, None)
        is_set = isinstance(setting.node, ast.Constant) and setting.node is not test.test
        because = f": it is {setting.code} ({setting.place})" if is_set else ""
        return (
            f"`self.{attribute}` is used by {line} only, and `if {source.code(test.test)}` ({source.place(test)}) left "
            f"that out{because}.",
            False,
        )
    return f"`self.{attribute}` is used by {line}; its result did not reach the loss.", False


def frozen_model(failure: Failure) -> tuple[str, str] | None:
    """Say which parameters a loss without a graph could have trained, with a fix; None where that is not known."""
    models = [
        value
        for _, value in failure.values(library=False)
        if value.kind == "module" and value.trained_count is not None
    ]
    freezing = freezing_line(failure)
    if not models or freezing is None or failure.frame is None:
        return None
    model = max(models, key=lambda value: value.trained_count + value.frozen_count)
    if model.trained_count == 0:
        return (
            f"{freezing} freezes all {model.frozen_count} parameters of `{model.name}`: there is nothing to train.",
            "Unfreeze what should learn after that line (`for p in model.head.parameters(): p.requires_grad = True`), "
            "or add the new layer after it.",
        )
    names = list(model.trained)
    layer = names[0].partition(".")[0]
    if any(name.partition(".")[0] != layer for name in names):
        return None
    assigned = next(
        (
            (s, n, t)
            for s in failure.all_sources()
            for n in s.nodes
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Attribute) and t.attr == layer and isinstance(t.value, ast.Name)
        ),
        None,
    )
    text = f"`{model.name}` is frozen by {freezing} except for `{layer}` ({listed([f'`{n}`' for n in names])})"
    others = [(name, kind) for name, kind in model.last or () if name != layer and name in HEADS]
    if assigned is None or model.trained_count > len(names) or (model.own and uses(failure, layer)) or not others:
        return None
    source, node, target = assigned
    last, kind = others[-1]
    base = source.code(target.value)
    after = source.code(node).replace(source.code(target), f"{base}.{last}", 1)
    return (
        f"{text}, which `{source.code(node)}` ({source.place(node)}) adds and the forward pass of {model.type} never "
        f"uses: its own last layer is called `{last}` ({kind}), and that is frozen too.",
        f"Replace the layer that is used: `{after}`.",
    )


def freezing_line(failure: Failure) -> str | None:
    """Return the line that freezes parameters, with its place."""
    for source in failure.all_sources():
        for node in source.nodes:
            assigned = isinstance(node, ast.Assign) and dotted(node.targets[0]).endswith("requires_grad")
            called = isinstance(node, ast.Call) and dotted(node.func).endswith("requires_grad_") and node.args
            value = node.value if isinstance(node, ast.Assign) else node.args[0] if called else None  # type: ignore[attr-defined]
            if (assigned or called) and constant(value) is False:
                return f"`{source.code(node)}` ({source.place(node)})"
    return None


def _conversions(source: Source) -> Iterator[ast.Call]:
    """Yield the calls that may convert a model to another type of numbers."""
    for call in source.calls("half", "bfloat16", "double", "to"):
        dtype = dotted(call.args[0]) if call.args else ""
        if isinstance(call.func, ast.Attribute) and (call.func.attr != "to" or dtype.startswith("torch.")):
            yield call


@explains("device", "plain_tensor", "dtype")
def attribute_that_does_not_move(fact: Fact, failure: Failure) -> Explanation | None:
    """A tensor in a plain attribute of a module, which `model.to(device)` does not move and `model.half()` leaves."""
    frame = failure.frame
    owner = failure.value("self")
    if frame is None or owner is None or owner.kind != "module":
        return None
    what = "dtype" if fact.kind == "dtype" else "device"
    inputs = [v for v in frame.values.values() if v.kind == "tensor" and not v.name.startswith("self.")]
    others = {str(v.facts.get(what)) for v in inputs if what == "device" or v.is_float}
    for path, name, kind, *_ in owner.plain_tensors or ():
        value: Value | None = frame.values.get(f"self.{name}")
        own = str(value.facts.get(what)) if value is not None else ""
        if path or value is None or not others or own in others:
            continue
        if what == "dtype" and (own != "float32" or others != {owner.weight_dtype}):  # no conversion of the model
            continue
        where = next(iter([*assignments(failure, name, kind), *assignments(failure, name)]), None)
        method = where[0].function_at(where[1].lineno) if where else None
        if method is not None and method.name != "__init__":  # a state that changes
            continue
        line = f" (`{where[0].code(where[1])}`, {where[0].place(where[1])})" if where else ""
        after = f'self.register_buffer("{name}", {where[0].code(where[1].value)})' if where else ""
        after = after or f'self.register_buffer("{name}", {name})'
        stays, now = f"stays on {'the CPU' if own == 'cpu' else own}", f"on {listed(sorted(others))}"
        how = "`.to(device)` moves"
        if what == "dtype":
            call = next(((s, c) for s in failure.all_sources() for c in _conversions(s)), None)
            how = f"`{call[0].code(call[1])}` ({call[0].place(call[1])}) converts" if call else "`.to(dtype)` converts"
            stays, now = f"stays {own}", str(owner.weight_dtype)
        return Explanation(
            f"`self.{name}`{line} is a plain attribute of `{kind}` and {stays}: "
            f"{how} only parameters, buffers and submodules, and the input is {now} ({frame.place}).",
            f"Register it as a buffer: `{after}` (`persistent=False` leaves it out of the state dict).",
            changed(where[0], where[1], after) if where else None,  # type: ignore[arg-type]
        )
    return None
