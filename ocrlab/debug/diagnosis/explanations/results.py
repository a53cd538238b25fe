"""What a call returns, where the program takes it for something else: reports, named tuples, states, None."""

from __future__ import annotations

import ast
import itertools

from ocrlab.debug.diagnosis.explanations.explanation import Edit, Explanation, explains, listed, replaced
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.layers import layer_kind
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import Origin, failing_call, origin, own_statement_nodes
from ocrlab.debug.diagnosis.explanations.source import argument, dotted, last_name

# Layers that return several values, and what these are.
SEVERAL = {
    "LSTM": "(output, (h_n, c_n)), the output of every step and the hidden and cell state of the last one",
    "GRU": "(output, h_n), the output of every step and the hidden state of the last one",
    "RNN": "(output, h_n), the output of every step and the hidden state of the last one",
    "LSTMCell": "(h, c), the hidden and the cell state",
    "MultiheadAttention": "(output, weights), the output and the attention weights",
}
# Functions that return several values.
FUNCTIONS = {
    "pad_packed_sequence": "(padded, lengths)",
    "multi_head_attention_forward": "(output, weights)",
    "slogdet": "(sign, logabsdet)",
    "svd": "(U, S, Vh)",
    "eigh": "(eigenvalues, eigenvectors)",
    "qr": "(Q, R)",
}
# Methods that work in place and return None.
IN_PLACE = {
    "append",
    "extend",
    "insert",
    "sort",
    "reverse",
    "shuffle",
    "update",
    "add",
    "clear",
    "backward",
    "zero_grad",
}
MAIN_FIELDS = ("logits", "out", "last_hidden_state", "values", "sample", "loss")
AUXILIARY = ("GoogLeNetOutputs", "InceptionOutputs")


def operand(fact: Fact, failure: Failure, kind: str) -> Origin | None:
    """Return the expression of the failing line that has a type; None where a live value contradicts."""
    frame, source = failure.frame, failure.source(failure.frame)
    statement = source.statement_at(frame.line) if source and frame else None
    if source is None or frame is None or statement is None:
        return None
    nodes = list(own_statement_nodes(statement))
    candidates: list[ast.expr] = []
    for node in nodes:
        if fact.kind == "no_attribute" and isinstance(node, ast.Attribute) and node.attr == fact.attribute:
            candidates.append(node.value)
        elif fact.kind == "wrong_argument" and isinstance(node, ast.Call):
            candidates += [*node.args, *(keyword.value for keyword in node.keywords)]
        elif fact.kind == "not_callable" and isinstance(node, ast.Call):
            candidates.append(node.func)
        elif fact.kind == "operands" and isinstance(node, ast.BinOp):
            candidates += [node.left, node.right]
        elif fact.kind == "operands" and isinstance(node, ast.Compare):
            candidates += [node.left, *node.comparators]
        elif fact.kind in ("not_iterable", "array_index") and isinstance(node, ast.Subscript):
            candidates.append(node.value)
        elif fact.kind in ("not_iterable",) and isinstance(node, ast.Call):
            candidates += node.args
    if fact.kind == "not_iterable" and isinstance(statement, ast.For | ast.Assign):
        candidates.append(statement.iter if isinstance(statement, ast.For) else statement.value)
    types = {id(node): live_type(failure, node) for node in candidates}
    certain = [node for node in candidates if types[id(node)] == kind]
    unknown = [node for node in candidates if not types[id(node)]]
    if not certain and failure.frames[-1:] and failure.frames[-1].is_library and frame.values:
        return None  # the value is one of the library's, and not one that this line names
    chosen = certain or unknown
    return Origin(source, chosen[0], frame) if chosen else None


def live_type(failure: Failure, node: ast.expr) -> str:
    """Return the type of the value that an expression had, without its module; empty where that is not known."""
    value = failure.value(dotted(node)) if dotted(node) else None
    return str(value.type).rpartition(".")[2] if value is not None else ""


@explains("no_attribute", "wrong_argument", "operands", "not_iterable", "array_index", "not_callable")
def result_of_another_kind(fact: Fact, failure: Failure) -> Explanation | None:
    """A call that returned another kind of value than the program expects."""
    names = [fact.type or fact.actual or fact.left_type, fact.right_type]
    for kind in dict.fromkeys(str(name).rpartition(".")[2] for name in names if name):
        piped = _piped(failure) if kind == "tuple" else None
        if piped is not None:
            return piped
        where = operand(fact, failure, kind)
        if where is None:
            continue
        definition = origin(failure, where.source, where.node, where.frame)
        call = definition.node if isinstance(definition.node, ast.Call) else None
        for explanation in (
            _report(failure, where, definition, kind),
            _fields(failure, where, definition, kind, str(fact.type or fact.actual or "")),
            _several(failure, where, definition, call) if kind == "tuple" else None,
            _batch(failure, where) if kind in ("list", "tuple") else None,
            _nothing(failure, where, definition, call) if kind == "NoneType" else None,
            _number(failure, where, definition, call) if kind in ("float", "int") else None,
        ):
            if explanation is not None:
                return explanation
    return None


def _report(failure: Failure, where: Origin, definition: Origin, kind: str) -> Explanation | None:
    """`model = Net().load_state_dict(state)`."""
    if kind != "_IncompatibleKeys":
        return None
    name, call = where.code, definition.node
    text = (
        f"`{name}` is not the model: it is the report of missing and unexpected keys that `load_state_dict` returns. "
        "`load_state_dict` loads into the model in place."
    )
    source, elsewhere = definition.source, False
    if not isinstance(call, ast.Call) or last_name(call.func) != "load_state_dict":
        loads = [(s, c) for s in failure.all_sources() for c in s.calls("load_state_dict")]
        used = [(s, c) for s, c in loads if not isinstance(s.statement_at(c.lineno), ast.Expr)]
        if not used:
            return Explanation(text, "Load without assigning: `model = Net()`, then `model.load_state_dict(state)`.")
        (source, call), elsewhere = used[0], True
    statement = source.statement_at(call.lineno)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    name = dotted(targets[0]) if targets else name
    before, base = source.code(statement), source.code(getattr(call.func, "value", None))
    arguments = source.code(call).removeprefix(base)
    if isinstance(statement, ast.Return):
        lines = [f"{base}{arguments}", f"return {base}"]
    else:
        lines = [f"{name}{arguments}"] if base == name else [f"{name} = {base}", f"{name}{arguments}"]
    shown = " and then ".join(f"`{line}`" for line in lines)
    function = source.function_at(call.lineno) if elsewhere else None
    where_used = f", so `{function.name}` hands on the report" if function is not None else " gave the report the name"
    return Explanation(
        f"{text} `{before}` ({source.place(call)}){where_used}.",
        f"Do not assign or return what it returns: {shown}{', on two lines' if len(lines) > 1 else ''}.",
        replaced(source, call.lineno, before, "; ".join(lines)),
    )


def _fields(failure: Failure, where: Origin, definition: Origin, kind: str, full: str) -> Explanation | None:
    """A named tuple or dict of outputs, where the program needs one of them."""
    value = failure.value(dotted(where.node)) if dotted(where.node) else None
    fields = [str(name) for name in (value.fields or value.keys or ())] if value is not None else []
    code = where.code
    source_of = f" It comes from `{definition.code}` ({definition.place})." if definition.node is not where.node else ""
    holds = f" with the fields {listed([f'`{name}`' for name in fields], 6)}" if fields else ""
    main = next((name for name in MAIN_FIELDS if name in fields), "")
    if kind in AUXILIARY:
        return Explanation(
            f"`{code}` is a named tuple, {kind}{holds}: in training mode this network returns the main output and "
            f"those of its auxiliary classifiers (`aux_logits=True`), in eval mode a tensor.{source_of}",
            f"Use the main output, `{code}.logits`, in training (with `0.3 *` the loss of each auxiliary one, if they "
            "should train), or build the network with `aux_logits=False`.",
        )
    if "return_types" in full or kind in ("return_types",):
        return Explanation(
            f"`{code}` is the pair (values, indices) that `torch.{kind}` returns when an axis is given.{source_of}",
            f"Take the part that you need: `{code}.values` or `{code}.indices`; without an axis it returns one tensor.",
        )
    if kind == "PackedSequence":
        return Explanation(
            f"`{code}` is a PackedSequence: sequences of different lengths in one block, without axes.{source_of}",
            f"Unpack it first: `output, lengths = nn.utils.rnn.pad_packed_sequence({code}, batch_first=True)`; its "
            f"values are `{code}.data`.",
        )
    if kind.endswith(("Output", "Outputs", "OutputWithPast", "OutputWithPooling", "WithCrossAttentions")):
        field = main or ("logits" if "LM" in kind or "Classifier" in kind else "last_hidden_state")
        return Explanation(
            f"`{code}` is a {kind}{holds}, the output object of the model, and not a tensor.{source_of}",
            f"Take the tensor out of it: `{code}.{field}`.",
        )
    if kind in ("OrderedDict", "dict") and main:
        return Explanation(
            f"`{code}` is a dict{holds.replace('fields', 'keys')}: the model returns its outputs by name.{source_of}",
            f'Take the one that the loss needs: `{code}["{main}"]`.',
        )
    return None


def _several(failure: Failure, where: Origin, definition: Origin, call: ast.Call | None) -> Explanation | None:
    """The tuple of a recurrent layer, of attention, or of a function with several results."""
    if call is None:
        return None
    kind = layer_kind(failure, call, definition.source)
    contents = SEVERAL.get(kind) or FUNCTIONS.get(last_name(call.func))
    if contents is None:
        return None
    code, name = definition.code, kind or last_name(call.func)
    edit: Edit | None = None
    target = where.code
    if call is not where.node:
        edit = replaced(definition.source, call.lineno, f"{target} = {code}", f"{target}, _ = {code}")
    return Explanation(
        f"`{target}` is a tuple: `{code}` ({definition.place}) calls `{name}`, which returns {contents}.",
        f"Take the first: `{target}, _ = {code}`, or `{code}[0]`.",
        edit,
    )


def _piped(failure: Failure) -> Explanation | None:
    """An nn.Sequential that hands on the tuple of a recurrent layer."""
    container = failure.in_library("forward", "container.py")
    if container is None:
        return None
    owner = container.values.get("self")
    failing = str(failure.module.path or "") if failure.module else ""
    children = [(str(name), str(kind)) for name, kind in (owner.children or [])] if owner is not None else []
    for (name, kind), (following, after) in itertools.pairwise(children):
        if kind in SEVERAL and following == failing.rpartition(".")[2]:
            path = f"{owner.path}." if owner is not None and owner.path else ""
            return _passed_on(f"Layer `{path}{name}` ({kind})", f"`{path}{following}` ({after})", kind)
    if children:
        return None
    for source in failure.all_sources():
        for call in source.calls("Sequential"):
            for layer, next_layer in itertools.pairwise(call.args):
                kind = last_name(layer.func) if isinstance(layer, ast.Call) else ""
                if kind in SEVERAL:
                    return _passed_on(
                        f"`{source.code(layer)}` ({source.place(layer)})", f"`{source.code(next_layer)}`", kind
                    )
    return None


def _passed_on(layer: str, following: str, kind: str) -> Explanation:
    return Explanation(
        f"{layer} returns a tuple, {SEVERAL[kind]}, and `nn.Sequential` hands the whole tuple to {following}, which "
        "takes a tensor.",
        "Take the output first: a small module after it whose `forward(self, x)` returns `x[0]`, or a Module with its "
        f"own `forward` in place of the Sequential: `output, state = self.{kind.lower()}(x)`.",
    )


def _batch(failure: Failure, where: Origin) -> Explanation | None:
    """A whole batch of inputs and targets where the inputs are meant."""
    name = dotted(where.node)
    binding = where.source.binding(name, where.frame.line) if name and where.frame else None
    if binding is None or binding.value is None or binding.index is not None:
        return None
    value = failure.value(name)
    looped = binding.kind == "for" and "load" in where.source.code(binding.value).lower()
    taken = isinstance(binding.value, ast.Call) and last_name(binding.value.func) == "next"
    if not looped and not taken:
        return None
    number = value.length if value is not None else None
    parts = f" of {number} parts" if number else ""
    names = "images, targets" if number in (None, 2) else ", ".join(f"part{i}" for i in range(1, number + 1))
    return Explanation(
        f"`{name}` is a whole batch, a list{parts} (`{where.source.line(binding.line).strip()}`, "
        f"{where.source.place(binding.line)}): what the data set returns for a sample, each part stacked.",
        f"Unpack it: `{names} = {name}`"
        + (
            f", or pass the inputs only: `{name}[0]`."
            if number != 1
            else f": with one part `({name},)` or `{name}[0]`."
        ),
    )


def _nothing(failure: Failure, where: Origin, definition: Origin, call: ast.Call | None) -> Explanation | None:
    """The None of a method that works in place."""
    if call is None or call is where.node:
        return None
    method, code = last_name(call.func), definition.code
    inplace = argument(call, -1, "inplace")
    if isinstance(inplace, ast.Constant) and inplace.value is True:
        return Explanation(
            f"`{where.code}` is None: `{code}` ({definition.place}) works in place (`inplace=True`) and returns None.",
            "Remove `inplace=True`, or do not assign what it returns.",
        )
    if method not in IN_PLACE or not isinstance(call.func, ast.Attribute):
        return None
    base = definition.source.code(call.func.value)
    shuffled = method == "shuffle" and call.args
    changed = definition.source.code(call.args[0]) if shuffled else base
    return Explanation(
        f"`{where.code}` is None: `{code}` ({definition.place}) changes `{changed}` in place and returns None.",
        f"Do not assign it: `{code}` on a line of its own, then use `{changed}`.",
    )


def _number(failure: Failure, where: Origin, definition: Origin, call: ast.Call | None) -> Explanation | None:
    """The Python number of `.item()` where a tensor is needed."""
    place = failing_call(failure, failure.frame, "backward")
    if call is None or last_name(call.func) != "item" or place is None or not isinstance(call.func, ast.Attribute):
        return None
    base = definition.source.code(call.func.value)
    return Explanation(
        f"`{where.code}` is a Python number without a graph: `{definition.code}` ({definition.place}) took it out of "
        "the tensor.",
        f"Call `backward()` on the tensor, and take `.item()` for the log only: `{where.code} = {base}`.",
        replaced(definition.source, call.lineno, definition.code, base),
    )
