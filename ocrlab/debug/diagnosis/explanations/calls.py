"""Calls whose arguments the function does not take: a wrong name, too many, too few, a class for its instance."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, count, explains, replaced
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import failing_call, origin
from ocrlab.debug.diagnosis.explanations.source import Source, dotted, last_name, parameters

# Arguments that libraries have removed: name, or function and name -> (since when, what to do instead).
REMOVED_ARGUMENTS = {
    "verbose": ("torch 2.7 (learning-rate schedulers)", "print `scheduler.get_last_lr()` yourself"),
    "fillna.method": ("pandas 3.0", "write `.ffill()` or `.bfill()` in place of `fillna(method=...)`"),
    "squared": ("scikit-learn 1.6 (mean_squared_error)", "use `root_mean_squared_error`"),
    "error_bad_lines": ("pandas 2.0", 'use `on_bad_lines="skip"`'),
    "line_terminator": ("pandas 2.0", "it is called `lineterminator`"),
    "use_auth_token": ("transformers 5", "it is called `token`"),
    "evaluation_strategy": ("transformers 4.46", "it is called `eval_strategy`"),
    "gpus": ("Lightning 2.0", 'use `accelerator="gpu", devices=N`'),
    "progress_bar_refresh_rate": ("Lightning 1.7", "use `enable_progress_bar` or a TQDMProgressBar callback"),
    "fillcolor": ("torchvision 0.12", "it is called `fill`"),
    "resample": ("torchvision 0.12", "it is called `interpolation`"),
}


def _definition(failure: Failure, owner: str, name: str) -> tuple[Source, ast.FunctionDef] | None:
    """Return the function or method of the program that a message names."""
    for source in failure.all_sources():
        for function in source.functions(name):
            around = source.class_at(function.lineno)
            if (around.name if around is not None else "") == owner or (not owner and around is not None):
                return source, function
    return None


def _library_parameters(failure: Failure, name: str) -> list[str]:
    """Return the parameters of a class or function of a library, as far as live values have them."""
    values = [value for _, value in failure.values() if value.kind == "callable" and value.parameters]
    last = [value for value in values if str(value.text).rpartition(".")[2] == name]
    call = failing_call(failure, failure.frame)
    written = failure.value(dotted(call[1].func)) if call is not None else None
    chosen: Value | None = last[0] if last else written
    return [str(part) for part in chosen.parameters] if chosen is not None and chosen.parameters else []


@explains("unexpected_keyword", general=True)
def wrong_call(fact: Fact, failure: Failure) -> Explanation | None:
    """A call with arguments that the function does not take."""
    frame = failure.frame
    if frame is None:
        return None
    *outer, name = str(fact.function).split(".")
    owner = outer[-1] if outer else ""
    callee = owner if name == "__init__" else name
    place = failing_call(failure, frame, callee) or failing_call(failure, frame)
    code = place[0].code(place[1])[:160] if place else frame.code
    if "super().__init__" in code and place is not None and len(place[1].args) + len(place[1].keywords) > 0:
        base = _base_class(failure, owner)
        if fact.expected is not None and fact.expected <= 1:
            return Explanation(
                f"`{code}` ({frame.place}) passes arguments on, but `__init__` of the base class{base} takes none.",
                "Call it without arguments: `super().__init__()`.",
                replaced(failure.source(frame), frame.line, code, "super().__init__()"),
            )
    instance = _class_as_value(failure, callee, place)
    if instance is not None and name == "__init__":
        return instance
    defined = _definition(failure, owner, name)
    if defined is not None:
        names = parameters(defined[1])
        signature = f"`{owner + '.' if owner else ''}{name}({', '.join(names)})` ({defined[0].place(defined[1])})"
        first = names[:1] == ["self"]
    else:
        names = _library_parameters(failure, callee)
        signature = f"`{callee}({', '.join(names[:10])}{', ...' if len(names) > 10 else ''})`" if names else ""
        first = False
    if fact.argument is not None:
        return _wrong_keyword(fact, failure, code, callee, names, signature)
    if fact.missing is not None:
        return _missing(fact, failure, code, owner, callee, signature, first)
    if fact.expected is None:
        return None
    hidden = 1 if first or name == "__init__" or (owner and defined is None) else 0
    if defined is not None and defined[0].class_at(defined[1].lineno) is not None and not first:
        return Explanation(f"`{code}`: {signature} lacks `self` as its first parameter.", "Add `self`.")
    takes = f"{signature} takes" if signature else f"`{callee}` takes"
    positional = fact.actual - hidden
    expected = fact.expected - hidden
    several = f" If it takes one list, pass the {positional} values as one: `[...]`." if expected == 1 else ""
    return Explanation(
        f"`{code}` ({frame.place}) passes {count(positional, 'argument')} by position, but {takes} {expected}.",
        f"Pass as many as the function takes, or name them (`name=value`).{several}"
        if defined is None
        else "Pass as many as the function takes, or add a parameter.",
    )


def _base_class(failure: Failure, owner: str) -> str:
    bases = [s.code(b) for s in failure.all_sources() for c in s.classes(owner) for b in c.bases]
    return f" (`{bases[0]}`)" if bases else ""


def _class_as_value(failure: Failure, name: str, place: tuple[Source, ast.Call] | None) -> Explanation | None:
    """Explain a class that was put into a list or passed on without being called, and is called by a library."""
    if place is not None and last_name(place[1].func) == name:
        return None  # the program calls the class itself
    for source, node in _uses(failure, name):
        code = source.code(node)
        return Explanation(
            f"`{code}` ({source.place(node)}) is the class itself and not an object of it, so the values that it "
            "should work on became arguments of its constructor.",
            f"Make the object: `{code}()`.",
            replaced(source, node.lineno, code, f"{code}()"),
        )
    return None


def _uses(failure: Failure, name: str) -> Iterator[tuple[Source, ast.expr]]:
    """Yield where a class is used as a value: an element of a list, an argument, what is assigned."""
    for source in failure.all_sources():
        for node in source.nodes:
            values: list[ast.expr] = []
            if isinstance(node, ast.List | ast.Tuple):
                values = node.elts
            elif isinstance(node, ast.Call) and last_name(node.func) not in ("isinstance", "issubclass", "super"):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
            elif isinstance(node, ast.Assign):
                values = [node.value]
            yield from (
                (source, value)
                for value in values
                if isinstance(value, ast.Name | ast.Attribute) and last_name(value) == name
            )


def _wrong_keyword(
    fact: Fact, failure: Failure, code: str, callee: str, names: list[str], signature: str
) -> Explanation | None:
    frame, argument = failure.frame, str(fact.argument)
    assert frame is not None
    if "unexpected" not in failure.message:
        function = signature or f"`{callee}`"
        return Explanation(
            f"`{code}` passes `{argument}` twice, once by position and once by name: {function}.",
            f"Remove one of the two; by position the values fill {function} from the left.",
        )
    gone = REMOVED_ARGUMENTS.get(f"{callee.rpartition('.')[2]}.{argument}") or REMOVED_ARGUMENTS.get(argument)
    if gone is not None and argument not in names:
        passed = next(
            (f" ({s.place(n)})" for s in failure.all_sources() for n in s.nodes if _names_argument(n, argument)), ""
        )
        if not _defines(failure, callee):
            return Explanation(
                f"`{callee}` takes no `{argument}` any more: it was removed in {gone[0]}. This program passes "
                f"it{passed}.",
                f"Remove `{argument}`; {gone[1]}.",
            )
    words = {name: set(name.lower().split("_")) for name in names}
    near = difflib.get_close_matches(argument, names, 1, 0.6) or [
        name
        for name, parts in words.items()
        if set(argument.lower().split("_")) & parts or SYNONYMS.get(argument) == name or name.startswith(argument)
    ]
    initials = {"".join(part[:1] for part in name.split("_")): name for name in names if "_" in name}
    near = near or ([initials[argument]] if argument in initials else [])
    if names:
        return Explanation(
            f"`{code}` ({frame.place}) passes `{argument}`, but {signature} has no such parameter.",
            f"Write `{near[0]}=`." if near else "Remove the argument, or use one of the parameters that it has.",
            replaced(failure.source(frame), frame.line, f"{argument}=", f"{near[0]}=") if near else None,
        )
    return Explanation(
        f"`{code}` ({frame.place}): the installed version of `{callee}` does not take `{argument}`.",
        "Look up its parameters in the documentation of the installed version; the argument was renamed or removed, or "
        "came with a newer one.",
    )


# What a parameter is often called in other functions.
SYNONYMS = {
    "p": "dropout",
    "activation": "nonlinearity",
    "layers": "num_layers",
    "hidden": "hidden_size",
    "epochs": "num_epochs",
    "lr": "learning_rate",
    "learning_rate": "lr",
    "l2": "weight_decay",
    "workers": "num_workers",
    "bs": "batch_size",
    "transforms": "transform",
    "classes": "num_classes",
}


def _defines(failure: Failure, name: str) -> bool:
    """Whether the program itself defines a function or class of a name."""
    return any(list(s.functions(name)) or list(s.classes(name)) for s in failure.all_sources())


def _missing(
    fact: Fact, failure: Failure, code: str, owner: str, callee: str, signature: str, first: bool
) -> Explanation | None:
    frame = failure.frame
    assert frame is not None
    place = failing_call(failure, frame)
    name = str(fact.function).rpartition(".")[2]
    text = f"`{code}` ({frame.place}) lacks {fact.missing}" + (f": {signature}." if signature else ".")
    on_class = (
        place is not None
        and isinstance(place[1].func, ast.Attribute)
        and bool(owner)
        and last_name(place[1].func.value) == owner
    )
    if (first or not signature) and ("'self'" in str(fact.missing) or on_class):
        return Explanation(
            f"{text} It is called on the class, not on an instance.",
            f"Make an instance first: `{owner or 'Model'}(...)`.",
        )
    if name == "forward" and place is not None:
        definition = origin(failure, place[0], place[1].func, frame)
        if isinstance(definition.node, ast.Name | ast.Attribute) and any(
            list(s.classes(last_name(definition.node))) for s in failure.all_sources()
        ):
            return Explanation(
                f"{text} `{definition.code}` is the class and not an object of it.",
                f"Make an instance first: `{definition.code}(...)`.",
            )
        container = _called_by_container(failure)
        if container:
            return Explanation(f"{text} {container}", "Write a forward that passes what each layer needs.")
    inside = place is not None and last_name(place[1].func) not in (callee, owner) and frame.function != "<module>"
    return Explanation(
        text,
        "Pass it"
        + (" (a method of a class of your own has to pass it on to the layer inside)" if inside else "")
        + ", or give the parameter a default."
        if signature and _defines(failure, callee)
        else f"Pass it: {fact.missing}.",
    )


def _called_by_container(failure: Failure) -> str:
    last = [frame for frame in failure.frames if frame.is_library and frame.file.endswith("container.py")]
    return "An `nn.Sequential` passes one value from layer to layer, and this layer needs more." if last else ""


def _names_argument(node: ast.AST, name: str) -> bool:
    """Whether a node passes an argument of a name, as a keyword or as the key of a dict of settings."""
    if isinstance(node, ast.keyword):
        return node.arg == name
    return isinstance(node, ast.Constant) and node.value == name
