"""Errors of Python itself: an assertion, a call without end, a missing setting, operands that do not fit."""

from __future__ import annotations

import ast

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, a, explains, listed, sizes
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import failing_call, failing_expression, origin
from ocrlab.debug.diagnosis.explanations.source import Source, constant, dotted, last_name


def described(value: Value) -> str:
    """Describe a value in a few words: its shape, its text or its length, else its type."""
    if value.shape is not None:
        return f"{sizes(value.shape)} {value.dtype or ''}".strip()
    if value.text is not None and value.kind in ("plain", "text", "path"):
        return str(value.text)
    if value.length is not None:
        return f"{a(str(value.type))} of length {value.length}"
    return a(str(value.type))


def named_values(failure: Failure, source: Source, node: ast.AST) -> str:
    """Return `a` is 3 and `b` is (4, 1), for the names of an expression whose values are known."""
    names = [dotted(part) for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)]
    values = {
        name: value
        for name in names
        if name and (value := failure.value(name)) is not None and value.kind not in ("callable", "object")
    }
    shown = [name for name in values if not any(other.startswith(f"{name}.") for other in values)]
    return listed([f"`{name}` is {described(values[name])}" for name in shown], 4)


@explains("assertion", general=True)
def assertion_of_the_program(fact: Fact, failure: Failure) -> Explanation | None:
    """A condition that the program itself demands."""
    frame, source = failure.frame, failure.source(failure.frame)
    statement = source.statement_at(frame.line) if source is not None and frame is not None else None
    if source is None or frame is None or not isinstance(statement, ast.Assert):
        return None
    values = named_values(failure, source, statement.test)
    code = source.code(statement.test)
    places = []
    for part in (node for node in ast.walk(statement.test) if isinstance(node, ast.Name)):
        definition = origin(failure, source, part, frame)
        if definition.node is not part and definition.code:
            places.append(f" `{part.id}` comes from `{definition.code[:100]}` ({definition.place}).")
    text = f"The program demands `{code}` ({frame.place}), and that does not hold{f': {values}' if values else ''}."
    return Explanation(
        text + "".join(dict.fromkeys(places[:2])),
        "Correct what makes these values, or the condition if it is too strict.",
    )


@explains("recursion", general=True)
def call_without_end(fact: Fact, failure: Failure) -> Explanation | None:
    """A function, property or `__getattr__` that calls itself."""
    frame, source = failure.frame, failure.source(failure.frame)
    if frame is None:
        return None
    name, code = frame.function, frame.expression or frame.code
    if name in ("__getattr__", "__getattribute__"):
        return Explanation(
            f"`{code}` ({frame.place}) reads an attribute that the object does not have inside of `{name}`, which "
            f"calls `{name}` again, without end.",
            "Read what is stored from `self.__dict__`, set it in `__init__`, and raise AttributeError for other names.",
        )
    owner = source.class_at(frame.line) if source is not None else None
    where = f"`{owner.name}.{name}`" if owner is not None else f"`{name}`"
    if name == "forward" or (name == "__call__"):
        return Explanation(
            f"{where} calls the object itself, `{code}` ({frame.place}), which runs `{name}` again, without end.",
            "Call the layer that is meant (`self.layer(x)`), not `self(x)`.",
        )
    function = source.function_at(frame.line) if source is not None else None
    is_property = function is not None and any(
        dotted(d).endswith(("property", "setter")) for d in function.decorator_list
    )
    if is_property:
        return Explanation(
            f"The property {where} reads or sets itself in `{code}` ({frame.place}), which calls it again, without "
            f"end.",
            f"Store the value under another name: `self._{name}`.",
        )
    return Explanation(
        f"{where} calls itself in `{code}` ({frame.place}) and never ends: the case that stops it is missing or "
        "is never reached.",
        "Return before the call for the smallest case; two objects that hold each other need a check for what was "
        "visited.",
    )


@explains("key", general=True)
def setting_missing(fact: Fact, failure: Failure) -> Explanation | None:
    """A variable of the environment that is not set, or samples of one batch with different keys."""
    frame = failure.frame
    key = failure.message.partition("\n")[0].strip().strip("'\"")
    if frame is None or failure.type != "KeyError":
        return None
    code = frame.expression or frame.code
    if "environ" in code:
        launched = key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        by = " `torchrun` sets it; the script was started with `python`." if launched else ""
        return Explanation(
            f"The environment variable `{key}` is not set ({frame.place}: `{code}`).{by}",
            (f"Start it with `torchrun`, or give a default: `os.environ.get({key!r}, 0)`." if launched else "")
            or f"Set it before the start (`export {key}=...`), or give a default: `os.environ.get({key!r}, ...)`.",
        )
    if any("collate" in f.file for f in failure.frames):
        return Explanation(
            f"The samples of one batch do not have the same keys: one of them lacks `{key}`, which the first one has.",
            f"Return the same keys from every `__getitem__` (a value that stands for a missing `{key}`), or write a "
            "`collate_fn`.",
        )
    in_pandas = any("pandas" in f.file for f in failure.frames)
    if key.endswith("not found in axis") and (dropped := _dropped_again(failure, key)) is not None:
        return dropped
    lost = _lost_column(failure, key) if in_pandas else None
    if lost is not None:
        return lost
    if in_pandas and not key.lstrip("-").isdigit():
        tables = [v for _, v in failure.values(library=False) if v.kind == "table" and v.columns]
        columns = [f"`{v.name}` has {listed([repr(c) for c in v.columns], 8)}" for v in tables]
        return Explanation(
            f"A table in `{code}` ({frame.place}) has no column {key!r}{': ' + listed(columns, 2) if columns else ''}.",
            "Use the name as it is written in the table (capitals and blanks count), or rename the column; for a "
            "merge give `left_on=` and `right_on=`.",
        )
    return None


def _dropped_again(failure: Failure, key: str) -> Explanation | None:
    """Say that a table has no row or column that `drop` names, and that an earlier run may have dropped it."""
    place = failing_call(failure, failure.frame, "drop")
    if place is None:
        return None
    source, call = place
    names, words = key.removesuffix(" not found in axis").strip("\"'"), {word.arg: word.value for word in call.keywords}
    column = "columns" in words or constant(words.get("axis")) == 1
    table = source.code(getattr(call.func, "value", None))
    axis, thing = ("columns", "column") if column else ("index", "row label")
    statement = source.statement_at(call.lineno)
    lasting = constant(words.get("inplace")) is True or (
        isinstance(statement, ast.Assign) and any(dotted(target) == table for target in statement.targets)
    )
    again = (
        f" The line changes the table itself: after a first run of its cell the {thing} is already dropped."
        if lasting and failure.cells
        else ""
    )
    return Explanation(
        f"`{source.code(call)}` ({source.place(call)}) drops the {thing} {names}, and `{table}` has no such "
        f"{thing}.{again}",
        ("Run the cell that makes the table again, and this one once" if again else f"Look at `{table}.{axis}`")
        + '; `errors="ignore"` lets it pass.',
    )


# What a method of a table does to a column that it names.
COLUMN_LOST = {
    "set_index": (
        "made it the index, which is not a column",
        "`reset_index()` makes it a column again, `.index` reads it",
    ),
    "drop": ("has removed it", "Read it before it is removed, or remove it later"),
    "pop": ("has taken it out of the table", "Use what `pop` returned"),
    "groupby": ("made it the index of the result", "Group with `as_index=False`, or use `reset_index()`"),
    "get_dummies": ("has replaced it by one column for each of its values", "Use these columns"),
    "rename": ("has given it another name", "Use the new name"),
}


def _lost_column(failure: Failure, key: str) -> Explanation | None:
    """Say which line has taken a column out of a table."""
    frame = failure.frame
    for source in failure.all_sources():
        for call in source.calls(*COLUMN_LOST):
            named = any(isinstance(part, ast.Constant) and part.value == key for part in ast.walk(call))
            later = source is failure.source(frame) and frame is not None and call.lineno >= frame.line
            if named and (not later or failure.cells):
                what, fix = COLUMN_LOST[last_name(call.func)]
                if later:
                    what += " when this cell ran before"
                    fix = "Run the cell that makes the table again, and this one once"
                return Explanation(
                    f"The table has no column `{key}` any more: `{source.code(call)[:100]}` "
                    f"({source.place(call)}) {what}.",
                    f"{fix}.",
                )
    return None


# Values that can be read once.
ONE_PASS = (
    "iter",
    "map",
    "filter",
    "zip",
    "enumerate",
    "reversed",
    "glob",
    "rglob",
    "iterdir",
    "finditer",
    "scandir",
    "reader",
)


@explains("empty_values", "empty_list")
def read_a_second_time(fact: Fact, failure: Failure) -> Explanation | None:
    """A generator or iterator that an earlier line has read to its end."""
    frame, source = failure.frame, failure.source(failure.frame)
    place = failing_call(failure, frame)
    if place is None or frame is None or source is None or not place[1].args:
        return None
    node = place[1].args[0]
    node = node.generators[0].iter if isinstance(node, ast.GeneratorExp | ast.ListComp) else node
    definition = origin(failure, source, node, frame)
    once = isinstance(definition.node, ast.GeneratorExp) or (
        isinstance(definition.node, ast.Call) and last_name(definition.node.func) in ONE_PASS
    )
    name = dotted(node)
    if not once or definition.node is node or not name:
        return None
    text = definition.code.strip("()") if isinstance(definition.node, ast.GeneratorExp) else definition.code
    for other in failure.all_sources():
        for use in (n for n in other.nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)):
            if other is not source or use.lineno < frame.line:
                code = other.code(other.statement_at(use.lineno)).partition("\n")[0][:100]
                return Explanation(
                    f"`{name}` (`{definition.code}`, {definition.place}) can be read once, and `{code}` "
                    f"({other.place(use)}) has read it to its end: nothing is left here.",
                    f"Make a list of it where it is made: `{name} = list({text})`.",
                )
    return None


@explains("operands", general=True)
def operator_without_meaning(fact: Fact, failure: Failure) -> Explanation | None:
    """An operator between two types that do not know it."""
    frame = failure.frame
    if text_for_number := _text_for_a_number(fact, failure):
        return text_for_number
    place = failing_expression(failure, frame, ast.BinOp, ast.Compare, ast.AugAssign)
    if place is None or frame is None:
        return None
    source, node = place
    code = source.code(node)
    left, right = str(fact.left_type).rpartition(".")[2], str(fact.right_type).rpartition(".")[2]
    operator = str(fact.operator or "").strip()
    origins = []
    for side in ast.iter_child_nodes(node):
        if isinstance(side, ast.expr) and failure.source(frame) is source:
            where = origin(failure, source, side, frame)
            if where.node is not side and where.code and len(where.code) < 120:
                origins.append(f" `{source.code(side)}` comes from `{where.code}` ({where.place}).")
    types = {left, right}
    containers = types & {"list", "tuple", "dict", "set"}
    text = f"`{code}` ({frame.place}) joins {a(left)} and {a(right)} by `{operator}`, which they do not know."
    if types == {"sequence", right} or "can't multiply sequence" in failure.message:
        text = f"`{code}` ({frame.place}) multiplies a list or text by {a(right)}, which repeats it."
        fix = "Make an array of it to calculate with each element: `np.array(x) * y`, or loop: `[v * y for v in x]`."
    elif types == {"str"} or "str" in types:
        fix = "Convert the text where it is read: `int(x)` or `float(x)`; to print both, use an f-string."
    elif containers == {"dict"}:
        fix = "Join two dicts with `{**first, **second}` or `first | second`."
    elif containers:
        fix = "Make arrays or tensors of the lists to calculate with their elements: `np.array(x)`, `torch.tensor(x)`."
    elif "generator" in types or "map" in types:
        fix = "Make a list of it first: `list(x)`, `sum([...])`."
    elif types & {"method", "function", "builtin_function_or_method"}:
        fix = "Call it: add `()`."
    elif types & {"Tensor", "ndarray"}:
        fix = "Convert one side to the type of the other: `torch.from_numpy(x)`, `x.numpy()`."
    else:
        fix = "Convert one side to the type of the other, or take the number out of it."
    return Explanation(f"{text}{''.join(origins[:2])}", fix)


def _text_for_a_number(fact: Fact, failure: Failure) -> Explanation | None:
    """A text passed to a library that compares or calculates with it: its own line names the argument."""
    frame, last = failure.frame, failure.frames[-1] if failure.frames else None
    types = [str(fact.left_type), str(fact.right_type)]
    if frame is None or last is None or not last.is_library or "str" not in types or not {"float", "int"} & set(types):
        return None
    try:
        nodes = list(ast.walk(ast.parse((last.expression or last.code).strip().removeprefix("if ").rstrip(":"))))
    except SyntaxError:
        return None
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    if len(names) != 1:
        return None
    (name,) = names
    reads_yaml = any("yaml" in source.text for source in failure.all_sources())
    why = (
        " YAML reads `1e-3` as a text, since it has no decimal point: write `1.0e-3` or `0.001`." if reads_yaml else ""
    )
    return Explanation(
        f"`{name}` is a text (str), and {last.place} needs a number ({frame.place}: `{frame.code.strip()}`).{why}",
        f"Convert it where it is read: `float(...)` for `{name}`.",
    )
