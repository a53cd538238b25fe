"""Gradients that cannot be computed: no scalar, no graph, a graph used twice, values changed in place."""

from __future__ import annotations

import ast
from dataclasses import replace

from ocrlab.debug.diagnosis.explanations.explanation import (
    Explanation,
    explains,
    in_parentheses,
    listed,
    replaced,
    sizes,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.layers import layer_kind, replacing_hooks
from ocrlab.debug.diagnosis.explanations.messages import Fact, facts
from ocrlab.debug.diagnosis.explanations.module_tensors import freezing_line, frozen_model
from ocrlab.debug.diagnosis.explanations.origins import Origin, called_functions, failing_call, origin
from ocrlab.debug.diagnosis.explanations.source import (
    Source,
    argument,
    constant,
    default_value,
    dotted,
    last_name,
    own_nodes,
)

CUTS = {
    "item": "`.item()` returns a number",
    "detach": "`.detach()` cuts the graph",
    "argmax": "`argmax` has no gradient",
    "numpy": "`.numpy()` leaves the graph",
    "round": "`round` has no gradient",
    "tensor": "`torch.tensor(...)` copies the value without its graph",
    "as_tensor": "a new tensor has no graph",
    "sign": "`sign` has no gradient",
    "long": "whole numbers have no gradient",
    "int": "whole numbers have no gradient",
    "tolist": "a list has no graph",
    "data": "`.data` cuts the graph",
}


def backward_loss(failure: Failure) -> tuple[Source, ast.expr, str] | None:
    """Return the expression on which `.backward()` was called."""
    place = failing_call(failure, failure.frame, "backward")
    if place is None or not isinstance(place[1].func, ast.Attribute):
        return None
    return place[0], place[1].func.value, place[0].code(place[1].func.value)


def at_the_loss(failure: Failure) -> Failure:
    """Return a failure of a backward pass at the line of the loss, where some versions of torch check the shapes."""
    shapes = [fact for fact in facts(failure.type, failure.message) if fact.kind == "target_dimensions"]
    loss, frame = backward_loss(failure) if shapes else None, failure.frame
    if loss is None or frame is None:
        return failure
    where = origin(failure, loss[0], loss[1], frame)
    calls = [node for node in ast.walk(where.node) if isinstance(node, ast.Call)]
    if not calls or where.source is not loss[0]:
        return failure
    line = calls[0].lineno
    at = replace(frame, line=line, code=where.source.line(line).strip(), expression=where.source.code(calls[0]))
    return replace(failure, frames=[at if part is frame else part for part in failure.frames])


@explains("not_scalar")
def loss_is_no_scalar(fact: Fact, failure: Failure) -> Explanation | None:
    """A loss (or a value to be printed) that holds more than one number."""
    loss = backward_loss(failure)
    if loss is None:
        return _to_number(fact, failure)
    source, node, name = loss
    value = failure.value(name)
    shape = value.shape if value is not None else None
    called = in_parentheses(source, node)
    text = (
        f"`{name}` has the shape {sizes(shape)}, one value for each of {shape[0]} samples"
        if shape and len(shape) == 1
        else f"`{name}` has the shape {sizes(shape)}"
        if shape
        else f"`{name}` holds more than one value"
    )
    text += "; a backward pass starts from a single number."
    where = origin(failure, source, node, failure.frame)
    reduced = _unreduced(failure, where.source, where.node)
    text += f" {reduced}" if reduced else ""
    fix = f"Average it first: `{called}.mean().backward()`"
    fix += ', or build a second loss without `reduction="none"` for training.' if reduced else " (or `.sum()`)."
    frame = failure.frame
    before, after = f"{called}.backward(", f"{called}.mean().backward("
    return Explanation(text, fix, replaced(failure.source(frame), frame.line, before, after) if frame else None)


def _unreduced(failure: Failure, source: Source, node: ast.expr) -> str:
    """Say where a loss is built that returns one value for each sample; empty where none is."""
    if not isinstance(node, ast.Call):
        return ""
    maker = origin(failure, source, node.func, failure.frame)
    for where, call in ((source, node), (maker.source, maker.node)):
        if isinstance(call, ast.Call) and constant(argument(call, -1, "reduction")) == "none":
            return f"The loss is not reduced: `{where.code(call)}` ({where.place(call)})."
    if isinstance(maker.node, ast.Call):
        for owner in (c for s in failure.all_sources() for c in s.classes(last_name(maker.node.func))):
            init = next((f for f in owner.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
            if init is not None and constant(default_value(init, "reduction")) == "none":
                return (
                    f'`{owner.name}` has `reduction="none"` by default, and `{maker.code}` ({maker.place}) does not '
                    "change "
                    "it: it returns one loss for each sample."
                )
    return ""


def _to_number(fact: Fact, failure: Failure) -> Explanation | None:
    place = failing_call(failure, failure.frame, "item", "float", "int")
    if place is None:
        return None
    operand = (
        place[1].func.value if isinstance(place[1].func, ast.Attribute) else place[1].args[0] if place[1].args else None
    )
    name = place[0].code(operand)
    value = failure.value(name)
    shape = (
        f" has the shape {sizes(value.shape)}"
        if value is not None and value.shape is not None
        else f" has {fact.elements} values"
        if fact.elements
        else " has more than one value"
    )
    return Explanation(
        f"`{place[0].code(place[1])}` needs a single number, but `{name}`{shape}.",
        f"Reduce it first: `{name}.mean().item()`; for all its values use `.tolist()`.",
    )


@explains("ambiguous_truth")
def truth_of_a_tensor(fact: Fact, failure: Failure) -> Explanation | None:
    """A tensor where one truth value is needed, also a loss class that is called like a function."""
    source, frame = failure.source(failure.frame), failure.frame
    for call in [call for call in (failing_call(failure, frame),) if call] if frame else []:
        name = last_name(call[1].func)
        if name in ("Dropout", "Softmax", "LogSoftmax", "Flatten", "MaxPool2d", "LeakyReLU") and len(call[1].args) == 1:
            code, built = call[0].code(call[1]), call[0].code(call[1].func)
            after = code.replace(built, f"{built}()", 1)
            return Explanation(
                f"`{code}` builds a layer and gives it the tensor as a setting; `{built}` is a class and has to be "
                "made first.",
                f"`{after}`, or the function: `F.{name.lower()}({call[0].code(call[1].args[0])})`.",
                replaced(source, frame.line, code, after) if frame else None,
            )
        if name.endswith("Loss") and len(call[1].args) >= 2:
            code = call[0].code(call[1])
            arguments = ", ".join(call[0].code(value) for value in call[1].args)
            before = call[0].code(call[1].func)
            return Explanation(
                f"`{code}` builds the loss with the outputs and targets as its options; `{name}` is a class and has "
                "to be made first.",
                f"`{before}()({arguments})`, or keep it: `criterion = {before}()`.",
                replaced(source, frame.line, code, f"{before}()({arguments})") if frame else None,
            )
    statement = source.statement_at(frame.line) if source and frame else None
    test = statement.test if isinstance(statement, ast.If | ast.While | ast.Assert) else None
    code = source.code(test) if source and test is not None else frame.expression or frame.code if frame else ""
    if not code:
        return None
    names = [value for value in frame.values.values() if value.shape] if frame else []
    shape = f" (`{names[0].name}` is {sizes(names[0].shape or ())})" if names else ""
    return Explanation(
        f"`{code}` has one truth value for each element{shape}, and `if`, `and`, `or`, `not` and `in` need a single "
        "one.",
        "Say which is meant: `.any()` or `.all()`; `torch.equal(a, b)` to compare two tensors; `&` and `|` in place "
        "of `and` and `or`; `is not None` to ask whether there is one.",
    )


@explains("no_gradient")
def loss_without_graph(fact: Fact, failure: Failure) -> Explanation | None:
    """A loss that depends on no parameter."""
    loss = backward_loss(failure)
    if loss is None:
        return None
    source, node, name = loss
    frame = failure.frame
    where = origin(failure, source, node, frame)
    text = f"`{name}` ({where.place}) has no graph: nothing that it was computed from requires a gradient."
    function = source.function_at(frame.line) if frame else None
    scope = function or source.tree
    line = where.node.lineno
    for candidate in [where.node, *_made_from(failure, where)]:
        for call in ast.walk(candidate):
            cut = (
                last_name(call.func)
                if isinstance(call, ast.Call)
                else call.attr
                if isinstance(call, ast.Attribute) and call.attr == "data"
                else ""
            )
            copied = isinstance(call, ast.Call) and dotted(call.func) == "torch.tensor"
            if copied and _is_target(candidate, call):
                continue
            if (
                copied
                or (cut in CUTS and cut not in ("long", "int", "tensor"))
                or (cut in ("tensor", "long", "int") and call is candidate)
            ):
                source_of = next((s for s in failure.all_sources() if call in s.nodes), where.source)
                code = source_of.code(call)
                if cut in ("argmax", "argmin") and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                    scores = source_of.code(call.func.value)
                    return Explanation(
                        f"{text} `{code}` ({source_of.place(call)}): {CUTS[cut]}.",
                        f"Compute the loss from `{scores}` itself, with cross_entropy or `{scores}.softmax(...)`, which"
                        f" have a gradient; use `{cut}` for accuracy only.",
                    )
                return Explanation(
                    f"{text} `{code}` ({source_of.place(call)}): {CUTS[cut]}.",
                    "Compute the loss from the model's output itself (add its terms with `sum(terms)` or "
                    "`torch.stack(terms).sum()`); use `.item()`, `.detach()` and the like for "
                    "printing only.",
                )
    lines = [line, *(maker.lineno for maker in _made_from(failure, where) if where.source is source)]
    block = next(
        (
            n
            for n in own_nodes(scope)
            if isinstance(n, ast.With)
            and any(n.lineno <= at <= (n.end_lineno or 0) for at in lines)
            and any(
                "no_grad" in source.code(item.context_expr) or "inference_mode" in source.code(item.context_expr)
                for item in n.items
            )
        ),
        None,
    )
    if block is not None:
        return Explanation(
            f"{text} It comes from inside of `with {source.code(block.items[0].context_expr)}` "
            f"({source.place(block)}).",
            "Move the training step out of that block.",
        )
    decorated = [
        d
        for d in (function.decorator_list if function else [])
        if "no_grad" in source.code(d) or "inference_mode" in source.code(d)
    ]
    if function is not None and decorated:
        return Explanation(
            f"{text} `{function.name}` is decorated with `@{source.code(decorated[0])}` "
            f"({source.place(decorated[0])}).",
            "Remove the decorator from the function that trains.",
        )
    for other in failure.all_sources():
        for call in other.calls("set_grad_enabled"):
            if constant(argument(call, 0, "mode")) is False:
                return Explanation(
                    f"{text} `{other.code(call)}` ({other.place(call)}) has switched gradients off for all that "
                    "follows.",
                    "Use `with torch.no_grad():` around the evaluation only.",
                    None,
                )
    hook = next((hook for hook in replacing_hooks(failure) if hook.detaches), None)
    if hook is not None:
        return Explanation(f"{text} {hook.text} The detached tensor goes on through the network.", hook.fix)
    frozen = frozen_model(failure)
    if frozen is not None:
        return Explanation(f"{text} {frozen[0]}", frozen[1])
    freezing = freezing_line(failure)
    if freezing is not None:
        return Explanation(
            f"{text} {freezing} freezes parameters: if all that the loss depends on are frozen, there is nothing to "
            "train.",
            "Leave the parameters that should learn unfrozen (the new head), and build them after the others were "
            "frozen.",
        )
    return Explanation(
        text,
        "Print `requires_grad` of the values from the model's output to the loss: the first one that says False is "
        "where the graph ends.",
    )


def _is_target(loss: ast.expr, call: ast.AST) -> bool:
    """Whether a new tensor is the second argument of a loss, or is made of literals only: neither needs a graph."""
    second = isinstance(loss, ast.Call) and call in loss.args[1:]
    return second or not any(isinstance(part, ast.Name) for a in call.args for part in ast.walk(a))  # type: ignore[attr-defined]


def _made_from(failure: Failure, where: Origin) -> list[ast.expr]:
    returned = [value for _, value in _returns(failure, where)]
    if returned:
        inside = [
            binding.value
            for source, value in _returns(failure, where)
            for name in dict.fromkeys(part.id for part in ast.walk(value) if isinstance(part, ast.Name))
            if (binding := source.binding(name, value.lineno)) and binding.kind == "assign" and binding.value
        ]
        return [*returned, *inside]
    names = [node for node in ast.walk(where.node) if isinstance(node, ast.Name)]
    return [
        maker.node
        for node in names[:6]
        if (maker := origin(failure, where.source, node, where.frame)).node is not node and maker.source is where.source
    ]


def _returns(failure: Failure, where: Origin) -> list[tuple[Source, ast.expr]]:
    """Return what the program's own function or class returns that a call stands for."""
    return [
        (source, node.value)
        for source, function in called_functions(failure, where)
        for node in own_nodes(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]


@explains("second_backward")
def graph_used_twice(fact: Fact, failure: Failure) -> Explanation | None:
    """A graph that was freed by an earlier backward pass."""
    loss = backward_loss(failure)
    source, frame = failure.source(failure.frame), failure.frame
    if source is None or frame is None:
        return None
    name = f"`{loss[2]}`" if loss else "the loss"
    loop = source.enclosing(frame.line, ast.For, ast.While)
    text = f"The backward pass of {name} ({frame.place}) reaches a graph that an earlier one has freed."
    backward = [call for call in source.calls("backward") if _same_scope(source, call.lineno, frame.line)]
    carried = _carried(source, loop) if loop is not None else None
    function = source.function_at(frame.line)
    if carried is None and function is not None:  # a state that an object keeps from call to call
        carried = _carried(source, function)
        carried = carried if carried and carried[0].startswith("self.") else None
    if carried:
        variable, line = carried
        text += (
            f" `{variable}` ({source.place(line)}) carries its graph from one iteration to the next: it was "
            "made before the loop and is used to make itself."
        )
        return Explanation(
            text,
            f"Cut the graph at the start of each iteration: `{variable} = {variable}.detach()` (for the state of an "
            "LSTM: each of its two tensors).",
        )
    state = _kept_state(failure)
    if state is not None:
        owner, where, node, attribute = state
        tensors = f"tuple(s.detach() for s in {attribute})"
        is_lstm = isinstance(node.value, ast.Call) and layer_kind(failure, node.value, where) == "LSTM"
        after = f"{attribute} = {tensors if is_lstm else f'{attribute}.detach()'}"
        return Explanation(
            f"{text} `{where.code(node)}` ({where.place(node)}) keeps the state of `{owner}` in `{attribute}` with its "
            f"graph, and computes the next one from it: this backward pass goes on into the graph of the previous one.",
            f"Cut the graph between the steps: `{after}` before the state is used again"
            + ("" if is_lstm else " (for several tensors: each of them)")
            + ", or start each sequence with a new state. `retain_graph=True` would only let the graph grow.",
        )
    if len(backward) >= 2:
        first = next((call for call in backward if call.lineno != frame.line), backward[0])
        text += f" `{source.code(first)}` ({source.place(first)}) went through the same part of the graph"
        shared = _common_value(failure, source, first, loss[1]) if loss is not None else ""
        text += f": both losses are computed from `{shared}`." if shared else "."
        return Explanation(
            text,
            f"Where the first loss should not train what made `{shared}` (the step of a discriminator, a critic), give "
            f"it `{shared}.detach()`; else add both losses and call `backward()` once."
            if shared
            else "Add both losses and call `backward()` once; where a part should not train, `.detach()` what it gets.",
        )
    while loop is not None:
        outside = _computed_before(failure, source, loop, loss[1] if loss else None)
        if outside:
            variable, made_by, line = outside
            code = source.code(made_by)
            text += (
                f" `{variable} = {code}` ({source.place(line)}) was computed once, before the loop: the first backward "
                "pass freed its graph, and each further iteration goes back through it."
            )
            return Explanation(
                text,
                f"Compute `{variable}` inside of the loop, or cut its graph if it should not train: "
                f"`{variable} = {code}.detach()`.",
            )
        loop = _outer_loop(source, loop)
    return Explanation(
        text,
        "Compute everything that the loss depends on again in each iteration; `.detach()` what is carried over from "
        "the last one.",
    )


def _kept_state(failure: Failure) -> tuple[str, Source, ast.Assign, str] | None:
    """Return the module that keeps a tensor with a graph in an attribute which it computes from itself, and where."""
    attributes = [(v.name, *entry) for _, v in failure.values(library=False) for entry in v.plain_tensors or ()]
    for module, path, name, kind, _, made_by in attributes:
        attribute = f"self.{name}"
        owners = [(s, c) for s in failure.all_sources() for c in s.classes(kind)]
        for source, method in ((s, f) for s, c in owners for f in c.body if made_by not in (None, "weight_norm")):
            nodes = [n for n in ast.walk(method) if isinstance(n, ast.Attribute) and dotted(n) == attribute]
            read = min((n.lineno for n in nodes if isinstance(n.ctx, ast.Load)), default=None)
            for node in (n for n in ast.walk(method) if isinstance(n, ast.Assign)):
                stored = any(part in nodes for target in node.targets for part in ast.walk(target))
                if stored and read is not None and read <= node.lineno:
                    return ".".join(part for part in (module, path) if part), source, node, attribute
    return None


def _common_value(failure: Failure, source: Source, first: ast.Call, loss: ast.expr) -> str:
    """Return the name of a value of an inner computation that two losses are made from; '' for none."""
    before = first.func.value if isinstance(first.func, ast.Attribute) else first
    names = [_inputs(source, node, first.lineno) for node in (before, loss)]
    common = [name for name in names[1] if name in names[0]]
    return next((name for name in common if _is_computed(failure, source, name, first.lineno)), "")


def _inputs(source: Source, node: ast.expr, line: int) -> list[str]:
    """Return the names that an expression is made from, through the assignments of its own names."""
    todo, names = [node], list[str]()
    while todo and len(names) < 40:
        for part in ast.walk(todo.pop(0)):
            if isinstance(part, ast.Name) and part.id not in names:
                names.append(part.id)
                binding = source.binding(part.id, max(line, part.lineno))
                if binding is not None and binding.kind == "assign" and binding.value is not None:
                    todo.append(binding.value)
    return names


def _is_computed(failure: Failure, source: Source, name: str, line: int) -> bool:
    """Return whether a name is a tensor that a call of the program's own, as that of a model, has returned."""
    live = failure.value(name)
    if live is not None and live.kind != "tensor":
        return False
    binding = source.binding(name, line)
    value = binding.value if binding is not None and binding.kind == "assign" else None
    return isinstance(value, ast.Call) and not dotted(value.func).startswith("torch.") and bool(value.args)


def _outer_loop(source: Source, loop: ast.AST) -> ast.AST | None:
    """Return the loop around a loop of the same function."""
    line = getattr(loop, "lineno", 0)
    around = [
        node
        for node in source.nodes
        if isinstance(node, ast.For | ast.While)
        and node.lineno < line <= (node.end_lineno or 0)
        and _same_scope(source, node.lineno, line)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _same_scope(source: Source, first: int, other: int) -> bool:
    return source.function_at(first) is source.function_at(other)


def _carried(source: Source, loop: ast.AST) -> tuple[str, int] | None:
    """Return a variable of a loop that is computed from its own last value, and is not detached."""
    summed = {
        dotted(call.func.value)
        for call in source.calls("backward", inside=loop)
        if isinstance(call.func, ast.Attribute)
    }
    detached = {
        dotted(call.func.value)
        for call in source.calls("detach", "detach_", inside=loop)
        if isinstance(call.func, ast.Attribute)
    }
    for node in own_nodes(loop):
        if isinstance(node, ast.Assign) and any(isinstance(part, ast.Call) for part in ast.walk(node.value)):
            names = {
                dotted(t)
                for target in node.targets
                for t in (target.elts if isinstance(target, ast.Tuple) else [target])
            }
            used = {dotted(part) for part in ast.walk(node.value) if isinstance(part, ast.Name | ast.Attribute)}
            for name in sorted((names & used) - detached - {""}):
                if not any(
                    "detach" in source.code(part) for part in ast.walk(node.value) if isinstance(part, ast.Call)
                ):
                    return name, node.lineno
        if (
            isinstance(node, ast.AugAssign)
            and dotted(node.target)
            and dotted(node.target) in summed
            and "item" not in source.code(node.value)
        ):
            return dotted(node.target), node.lineno
    return None


PYTHON_CALLS = set("len iter list dict range zip enumerate open print sum int float sorted set tuple max min".split())


def _computed_before(
    failure: Failure, source: Source, loop: ast.AST, loss: ast.expr | None
) -> tuple[str, ast.expr, int] | None:
    """Return a name that the loop reads and that a call before the loop has computed from a model, and how."""
    start = getattr(loop, "lineno", 0)
    inside = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    maker = {
        name
        for node in own_nodes(loop)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for part in ast.walk(target)
        if (name := dotted(part))
    }
    for name in sorted(inside - maker):
        binding = source.binding(name, start)
        if binding is None or binding.kind != "assign" or not isinstance(binding.value, ast.Call):
            continue
        value = failure.value(name)
        call: ast.expr = binding.value
        while (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Call)
        ):
            call = call.func.value  # `encoder(x)` of `encoder(x).view(5, -1).mean(dim=1)`
        callee = dotted(call.func) if isinstance(call, ast.Call) else ""
        likely = "." not in callee and callee[:1].islower() and callee not in PYTHON_CALLS
        likely = likely and isinstance(call, ast.Call) and any(isinstance(a, ast.Name) for a in call.args)
        if value.made_by if value is not None and value.kind == "tensor" else likely and value is None:
            return name, binding.value, binding.line
    return None


@explains("in_place")
def changed_in_place(fact: Fact, failure: Failure) -> Explanation | None:
    """A value that the backward pass needs and that was overwritten."""
    if "leaf Variable" in failure.message:
        return _leaf_changed(failure)
    shape = fact.shape
    what = f"a tensor of shape {sizes(shape)}" if shape else "a tensor"
    maker = str(fact.made_by or "").removesuffix("0").removesuffix("1").removesuffix("Backward")
    text = (
        f"The backward pass needs the old values of {what}"
        + (f", the output of `{maker}`" if maker and maker not in ("AsStrided", "T") else "")
        + ", but they were changed in place."
    )
    changes = list(_in_place(failure, maker))
    weight = maker in ("AsStrided", "T", "Transpose")  # of a linear layer, as its product reads it
    if weight or not changes:
        step = _steps(failure)
        if weight and step is None:
            return Explanation(
                f"The backward pass needs the old values of {what}, which is a weight (`{fact.made_by}`): an "
                "optimizer's "
                "`step()` has changed it between the forward and the backward pass.",
                "Call all `backward()` before the first `step()`; where states are carried from one step to the "
                "next, "
                "`.detach()` them first.",
            )
        if step is not None:
            stepped = f"`{step[0].code(step[1])}`"
            text = (
                f"The backward pass needs the old values of {what}, which is a weight: {stepped} "
                f"({step[0].place(step[1])}) changed it between the forward and the backward pass."
            )
            old = _computed_with_old_weights(failure, step)
            if old is not None:
                name, made_by, line = old
                return Explanation(
                    f"{text} `{name}` was computed with the old weights (`{made_by}`, {step[0].place(line)}), and the "
                    "loss uses it.",
                    f"Compute it again after the step: `{name} = {made_by}` below {stepped}, or call both `backward()` "
                    "before the first `step()`; `.detach()` what the first loss should not train.",
                )
            return Explanation(
                text,
                "Call all `backward()` before the first `step()`, or compute the second loss again after the step; "
                "`.detach()` what the first loss should not train.",
            )
    layers = [
        (source, call)
        for source in failure.all_sources()
        for call in source.nodes
        if isinstance(call, ast.Call) and constant(argument(call, -1, "inplace")) is True
    ]
    if not changes and layers:
        source, call = layers[0]
        before = source.code(call)
        after = before.replace(", inplace=True", "").replace("inplace=True", "")
        return Explanation(
            f"{text} `{before}` ({source.place(call)}) writes its output into its input.",
            f"Build it without `inplace`: `{after}`.",
            replaced(source, call.lineno, before, after),
        )
    if not changes:
        return Explanation(
            text,
            "Look for `+=`, `x[...] = ...`, methods that end in `_` and `inplace=True` after the line that made it, "
            "and write a new tensor instead: `x = x + y`, `torch.where`, `x.clone()`.",
        )
    source, node, code = changes[0]
    place = source.place(node)
    scope = source.class_at(node.lineno)
    owner = f" in `{scope.name}.forward`" if scope is not None else ""
    text += (
        f" `{code}`{owner} ({place}) does that." if len(changes) == 1 else f" Most likely by `{code}`{owner} ({place})."
    )
    after = _out_of_place(source, node)
    edit = replaced(source, node.lineno, code, after) if after else None
    fix = (
        f"Make a new tensor: `{after}`."
        if after
        else "Make a new tensor instead: clone it before (`x = x.clone()`), or use the version of the function "
        "without the trailing underscore."
    )
    if len(changes) > 1:
        fix += f" The same holds for {listed([f'`{c}` ({s.place(n)})' for s, n, c in changes[1:4]])}."
    return Explanation(text, fix, edit)


def _leaf_changed(failure: Failure) -> Explanation | None:
    """Explain a parameter that is changed in place while autograd records."""
    frame = failure.frame
    if frame is None or not frame.code:
        return None
    return Explanation(
        f"`{frame.code}` ({frame.place}) changes a parameter (a leaf that requires a gradient) in place while "
        "autograd "
        "records.",
        f"Update parameters without recording: `with torch.no_grad(): {frame.code}`, or let an optimizer of "
        "`torch.optim` do it. A new tensor (`p = p - ...`) would not update the model.",
    )


def _in_place(failure: Failure, made_by: str) -> list[tuple[Source, ast.stmt | ast.expr, str]]:
    """Return what the program's functions change in place, what the named operator made first."""
    changes: list[tuple[bool, Source, ast.stmt | ast.expr, str]] = []
    line = failure.frame.line if failure.frame else 0
    counters = ("loss", "total", "running", "correct", "count", "step", "epoch", "n", "i", "hits", "seen", "num", "acc")
    for source in failure.all_sources():
        for node in (part for part in source.nodes if isinstance(part, ast.stmt)):
            scope = source.function_at(node.lineno)
            forward = scope is not None and (
                scope.name in ("forward", "training_step") or source.class_at(node.lineno) is not None
            )
            target: ast.expr | None = None
            if isinstance(node, ast.AugAssign):
                number = constant(node.value) is not None or (
                    isinstance(node.value, ast.Call)
                    and last_name(node.value.func) in ("item", "len", "size", "numel", "sum")
                )
                counted = number or any(word in dotted(node.target).lower().split("_") for word in counters)
                if not counted or _holds_output(source, dotted(node.target), node.lineno, made_by):
                    target = node.target
            elif (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Subscript)
                and (forward or (scope is None and source.function_at(line) is None))
            ):
                target = node.targets[0].value
            elif (
                isinstance(node, ast.Expr | ast.Assign)
                and isinstance(node.value, ast.Call)
                and last_name(node.value.func).endswith("_")
                and not last_name(node.value.func).startswith("_")
                and isinstance(node.value.func, ast.Attribute)
            ):
                target = (
                    node.value.func.value
                    if last_name(node.value.func)
                    not in (
                        "requires_grad_",
                        "clip_grad_norm_",
                        "zero_",
                        "normal_",
                        "uniform_",
                        "xavier_uniform_",
                        "kaiming_normal_",
                        "constant_",
                        "retain_grad_",
                    )
                    and "init" not in dotted(node.value.func)
                    else None
                )
            if target is None or not isinstance(node, ast.stmt):
                continue
            name = dotted(target) or dotted(target.value) if isinstance(target, ast.Subscript) else dotted(target)
            same = _holds_output(source, name, node.lineno, made_by)
            changes.append((same, source, node, source.code(node)))
    best = [change[1:] for change in changes if change[0]]
    forward_first = sorted(
        (c[1:] for c in changes), key=lambda c: (f := c[0].function_at(c[1].lineno)) is None or f.name != "forward"
    )
    unique = {(c[0].file, c[1].lineno): c for c in [*best, *forward_first]}
    return list(unique.values())


def _holds_output(source: Source, name: str, line: int, made_by: str) -> bool:
    """Whether a name holds the output of the operator that autograd names: `Sigmoid` for `torch.sigmoid(x)`."""
    binding = source.binding(name, line) if name and "." not in name else None
    maker = source.code(binding.value).lower() if binding and binding.value is not None else ""
    activation = "act" in maker and made_by.lower() in ("relu", "sigmoid", "tanh", "gelu")
    return bool(made_by) and (made_by.lower() in maker or activation)


def _out_of_place(source: Source, node: ast.stmt | ast.expr) -> str:
    operators = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@"}
    if isinstance(node, ast.AugAssign) and type(node.op) in operators and not isinstance(node.target, ast.Subscript):
        target = source.code(node.target)
        return f"{target} = {target} {operators[type(node.op)]} {source.code(node.value)}"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        name = source.code(node.value.func.value)
        return f"{name} = {source.code(node.value).replace(node.value.func.attr, node.value.func.attr.rstrip('_'), 1)}"
    return ""


def _steps(failure: Failure) -> tuple[Source, ast.Call] | None:
    """Return an optimizer's step between the failing backward pass and an earlier one in the same function."""
    source, frame = failure.source(failure.frame), failure.frame
    if source is None or frame is None:
        return None
    before = [
        call
        for call in source.calls("step")
        if call.lineno < frame.line and _same_scope(source, call.lineno, frame.line)
    ]
    return (source, before[-1]) if before else None


def _computed_with_old_weights(failure: Failure, step: tuple[Source, ast.Call]) -> tuple[str, str, int] | None:
    """Return a name that the loss is made from and that the stepped model has computed before the step."""
    source, optimizer = step[0], step[1].func
    loss = backward_loss(failure)
    if loss is None or not isinstance(optimizer, ast.Attribute):
        return None
    built = origin(failure, source, optimizer.value, failure.frame)
    models = {
        dotted(part.func.value)
        for part in ast.walk(built.node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "parameters"
    }
    todo, names = [loss[1]], set[str]()
    while todo and len(names) < 40:
        node = todo.pop(0)
        for part in ast.walk(node):
            name = dotted(part)
            if not isinstance(part, ast.Name) or name in names:
                continue
            names.add(name)
            binding = source.binding(name, node.lineno if node is not loss[1] else loss[1].lineno)
            if binding is None or binding.value is None or binding.kind != "assign":
                continue
            for call in ast.walk(binding.value):
                called = dotted(call.func) if isinstance(call, ast.Call) else ""
                if binding.line < step[1].lineno and called and (called in models or called.split(".")[0] in models):
                    return name, source.code(binding.value), binding.line
            todo.append(binding.value)
    return None


@explains("empty_parameters", general=True)
def optimizer_without_parameters(fact: Fact, failure: Failure) -> Explanation | None:
    """An optimizer that gets no parameter: a used-up generator, a plain list of layers, everything frozen."""
    frame = failure.frame
    source = failure.source(frame)
    place = next(
        (
            p
            for name in ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adadelta", "LBFGS", "Adamax")
            if (p := failing_call(failure, frame, name))
        ),
        None,
    ) or failing_call(failure, frame)
    if place is None or source is None or frame is None:
        return None
    parameters_ = argument(place[1], 0, "params")
    if parameters_ is None:
        return None
    where = origin(failure, source, parameters_, frame)
    code = where.code
    plain = _plain_list(failure)
    if plain is not None:
        other, owner, attribute, line = plain
        text = (
            f"`{owner}` keeps its layers in a plain Python list (`self.{attribute}`, {other.place(line)}), which "
            "`parameters()` does not see, so the optimizer gets nothing."
        )
        return Explanation(text, f"Use `nn.ModuleList`: `self.{attribute} = nn.ModuleList([...])`.")
    frozen = next(
        (
            (s, n)
            for s in failure.all_sources()
            for n in s.nodes
            if isinstance(n, ast.Assign) and last_name(n.targets[0]) == "requires_grad" and constant(n.value) is False
        ),
        None,
    )
    if frozen is not None and "requires_grad" in code:
        return Explanation(
            f"`{code}` takes the parameters that require a gradient, and none does: `{frozen[0].code(frozen[1])}` "
            f"({frozen[0].place(frozen[1])}) has frozen all of them.",
            "Unfreeze what should learn (`for p in model.head.parameters(): p.requires_grad = True`) before the "
            "optimizer is built, or add the new head after the freezing.",
        )
    return Explanation(
        f"`{source.code(parameters_)}` holds no parameter ({frame.place}).",
        "Build the optimizer after the model has its layers, and assign the layers to `self` in `__init__` (or to "
        "an `nn.ModuleList`).",
    )


def _plain_list(failure: Failure) -> tuple[Source, str, str, int] | None:
    """Return a class that keeps its layers in a plain list: its source, its name, the attribute and the line."""
    classes = [(s, node) for s in failure.all_sources() for node in s.nodes if isinstance(node, ast.ClassDef)]
    layers = {
        owner.name for _, owner in classes if any(last_name(base) in ("Module", "Sequential") for base in owner.bases)
    }
    layers |= {"Linear", "Conv2d", "Conv1d", "Sequential", "LSTM", "GRU", "Embedding"}
    for source, owner in classes:
        for node in ast.walk(owner):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if not isinstance(target, ast.Attribute) or not isinstance(node.value, ast.List | ast.ListComp):  # type: ignore[union-attr,attr-defined]
                continue
            calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
            calls += [call for appended in _appended_to(owner, target.attr) for call in ast.walk(appended)]  # type: ignore[misc]
            if any(last_name(call.func) in layers for call in calls if isinstance(call, ast.Call)):
                return source, owner.name, target.attr, target.lineno
    return None


def _appended_to(owner: ast.ClassDef, attribute: str) -> list[ast.expr]:
    """Return what a class appends to an attribute of its own."""
    calls = [node for node in ast.walk(owner) if isinstance(node, ast.Call) and last_name(node.func) == "append"]
    own = [c for c in calls if isinstance(c.func, ast.Attribute) and dotted(c.func.value) == f"self.{attribute}"]
    return [value for call in own for value in call.args]


@explains("non_leaf")
def optimizer_of_a_result(fact: Fact, failure: Failure) -> Explanation | None:
    """An optimizer that gets a tensor that was computed from another one."""
    place = failing_call(failure, failure.frame)
    if place is None or not place[1].args:
        return None
    value = place[1].args[0]
    items = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    where = origin(failure, place[0], items[0], failure.frame)
    text = (
        f"`{place[0].code(items[0])}` ({where.place}: `{where.code}`) was computed from another tensor, and an "
        "optimizer can only change tensors that were not computed (leaves)."
    )
    return Explanation(
        text,
        "Make it a leaf last: `torch.randn(..., device=device, requires_grad=True)`, or `x = "
        "x.detach().to(device).requires_grad_()`; `nn.Parameter(...)` inside of a module.",
    )


@explains("to_numpy")
def tensor_to_numpy(fact: Fact, failure: Failure) -> Explanation | None:
    """A tensor with a graph, or on the GPU, that numpy should read."""
    frame = failure.frame
    if frame is None:
        return None
    place = failing_call(
        failure, frame, "array", "asarray", "numpy", "append", "plot", "scatter", "concatenate", "stack", "mean"
    ) or failing_call(failure, frame)
    code = place[0].code(place[1]) if place else frame.code
    operand = None
    if place is not None:
        operand = (
            place[1].func.value
            if isinstance(place[1].func, ast.Attribute) and place[1].func.attr == "numpy"
            else next(iter(place[1].args), None)
        )
    if fact.device or "CUDA" in failure.message or "cuda" in failure.message:
        name = place[0].code(operand) if place and operand is not None else "x"
        return Explanation(
            f"`{code}` ({frame.place}) reads a tensor that lies on {fact.device or 'the GPU'}; numpy can only read "
            "host memory.",
            f"Copy it first: `{name}.detach().cpu().numpy()`.",
        )
    name = place[0].code(operand) if place is not None and operand is not None else ""
    where = origin(failure, place[0], operand, frame) if place is not None and operand is not None else None
    stored = _appended(failure, where.name if where is not None and where.name else name)
    if stored is not None:
        source, call = stored
        before, tensor = source.code(call), source.code(call.args[0])
        after = before.replace(f"({tensor})", f"({tensor}.item())", 1)
        text = (
            f"`{before}` ({source.place(call)}) stores tensors that still have their graph, and `{code}` "
            f"({frame.place}) cannot turn them into numbers. They also keep every step's graph in memory."
        )
        return Explanation(text, f"Store numbers: `{after}`.", replaced(source, call.lineno, before, after))
    value = failure.value(name)
    if value is not None and value.kind == "container":
        return Explanation(
            f"`{code}` ({frame.place}) reads `{name}`, a {value.type} of {value.length} tensors that still have their "
            "graph.",
            f"Take the numbers out: `[t.item() for t in {name}]`, or store `loss.item()` in the first place.",
        )
    return Explanation(
        f"`{code}` ({frame.place}) reads a tensor that still has its graph.",
        f"Cut the graph first: `{name or 'x'}.detach().numpy()`, or run this part under `torch.no_grad()`.",
    )


def _appended(failure: Failure, name: str) -> tuple[Source, ast.Call] | None:
    """Return where a list gets its elements."""
    last = name.rpartition(".")[2]
    for source in failure.all_sources():
        for call in source.calls("append"):
            if (
                isinstance(call.func, ast.Attribute)
                and last
                and last_name(call.func.value) == last
                and call.args
                and dotted(call.args[0])
            ):
                return source, call
    return None
