"""Attributes that an object does not have: of None, of another type, removed ones, misspelled ones."""

from __future__ import annotations

import ast
import difflib

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, a, explains, listed, replaced
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame, Value
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.model_code import argument_of_wrong_type, no_return, type_of
from ocrlab.debug.diagnosis.explanations.module_tensors import parameter_without_gradient
from ocrlab.debug.diagnosis.explanations.origins import Origin, failing_call, failing_expression, origin, unpacked
from ocrlab.debug.diagnosis.explanations.samples import sample_of_wrong_type
from ocrlab.debug.diagnosis.explanations.source import Source, dotted, last_name, parameters

REMOVED_METHODS = {
    ("DataFrame", "append"): ("pd.concat([df, other])", "pandas 2.0"),
    ("Series", "append"): ("pd.concat([series, other])", "pandas 2.0"),
    ("DataFrame", "ix"): (".loc or .iloc", "pandas 1.0"),
    ("DataFrame", "as_matrix"): (".to_numpy()", "pandas 1.0"),
    ("DataFrame", "iteritems"): (".items()", "pandas 2.0"),
    ("Series", "iteritems"): (".items()", "pandas 2.0"),
    ("FreeTypeFont", "getsize"): (".getbbox(text)", "Pillow 10"),
    ("ImageDraw", "textsize"): (".textbbox((0, 0), text)", "Pillow 10"),
    ("_MultiProcessingDataLoaderIter", "next"): ("next(iterator)", "torch 1.13"),
    ("_SingleProcessDataLoaderIter", "next"): ("next(iterator)", "torch 1.13"),
    ("Index", "is_all_dates"): ("isinstance(index, pd.DatetimeIndex)", "pandas 2.0"),
}
TENSOR = frozenset(
    "to cuda cpu detach numpy item view permute unsqueeze squeeze float long half backward requires_grad grad size "
    "shape dim dtype device argmax softmax contiguous flatten reshape transpose clone expand repeat mean sum max "
    "min round tolist".split()
)
ARRAY = frozenset(
    "shape dtype astype reshape transpose tolist mean std sum max min argmax copy flatten ravel ndim".split()
)
TABLE = frozenset(
    "columns iloc loc head tail groupby dropna fillna merge to_csv values describe iterrows apply".split()
)
PATH = frozenset(
    "exists is_file is_dir glob rglob iterdir mkdir suffix stem parent joinpath with_suffix read_text".split()
)
MODULE = frozenset(
    "parameters state_dict load_state_dict eval train named_parameters modules children zero_grad".split()
)
# Which type knows an attribute, and how a value of another type becomes one of it.
OWNERS: tuple[tuple[str, frozenset[str], dict[str, str]], ...] = (
    (
        "texts",
        frozenset(dir(str)),
        {"PosixPath": "str({})", "int": "str({})", "float": "str({})", "bytes": "{}.decode()"},
    ),
    (
        "lists",
        frozenset(dir(list)),
        {"tuple": "list({})", "ndarray": "list({})", "Tensor": "{}.tolist()", "str": "{}.split()"},
    ),
    ("dicts", frozenset(dir(dict)), {"Namespace": "vars({})", "list": "dict({})"}),
    ("paths", PATH, {"str": "Path({})"}),
    ("models", MODULE, {}),
    (
        "arrays",
        ARRAY,
        {"list": "np.array({})", "tuple": "np.array({})", "Image": "np.asarray({})", "DataFrame": "{}.to_numpy()"},
    ),
    (
        "tensors",
        TENSOR,
        {
            "ndarray": "torch.from_numpy({})",
            "list": "torch.stack({})",
            "tuple": "torch.stack({})",
            "int": "torch.tensor({})",
            "float": "torch.tensor({})",
            "Image": "transforms.functional.to_tensor({})",
            "DataFrame": "torch.tensor({}.to_numpy())",
            "Series": "torch.tensor({}.to_numpy())",
        },
    ),
    ("pandas tables", TABLE, {"ndarray": "pd.DataFrame({})", "list": "pd.DataFrame({})", "dict": "pd.DataFrame({})"}),
)
REPLACEMENTS = {
    ("list", "to"): "Move each element: `[t.to(device) for t in {}]`.",
    ("list", "cuda"): "Move each element: `[t.to(device) for t in {}]`.",
    ("dict", "to"): "Move each value: `{{k: v.to(device) for k, v in {}.items()}}`.",
    ("tuple", "to"): "Unpack it first: `images, targets = {}`.",
    ("int", "item"): "It is a number already: drop `.item()`.",
    ("float", "item"): "It is a number already: drop `.item()`.",
    (
        "float",
        "backward",
    ): "The loss is a Python number: `.item()` or `float(...)` was called on it too early. Keep the tensor.",
    ("ndarray", "cuda"): "Convert it: `torch.from_numpy({}).cuda()`.",
    ("ndarray", "permute"): "numpy calls it `transpose`: `{}.transpose(2, 0, 1)`.",
    ("ndarray", "size"): "In numpy `size` is a number: `{}.shape[0]`.",
    ("Tensor", "astype"): "torch calls it `.to(torch.float32)` or `.float()`.",
    ("Tensor", "copy"): "torch calls it `.clone()`.",
    ("Tensor", "append"): "Collect the parts in a list, then `torch.stack(parts)` or `torch.cat(parts)`.",
    ("ndarray", "append"): "Collect the rows in a list and make one array at the end, `np.array(rows)`; "
    "`np.append(a, b)` makes a new array each time.",
}
WRAPPERS = {
    "DataParallel": "The model is wrapped: `{0}.module.{1}`.",
    "DistributedDataParallel": "The model is wrapped: `{0}.module.{1}`.",
    "OptimizedModule": "The model is compiled: `{0}._orig_mod.{1}`.",
    "DataLoader": "The loader has a data set: `{0}.dataset.{1}`.",
    "ConcatDataset": "The parts are in `.datasets`: `{0}.datasets[0].{1}`.",
}


def _base(failure: Failure, frame: Frame, attribute: str) -> tuple[Source, ast.expr] | None:
    """Return the expression before `.attribute` in the failing line."""
    place = failing_expression(failure, frame, ast.Attribute)
    if place is None:
        return None
    statement = place[0].statement_at(frame.line if failure.source(frame) else 1) or place[1]
    same = [node for node in ast.walk(statement) if isinstance(node, ast.Attribute) and node.attr == attribute]
    exact = [node for node in same if frame.expression and place[0].code(node) == " ".join(frame.expression.split())]
    return (place[0], (exact or same)[0].value) if same else None


@explains("no_attribute")
def none_has_no_attribute(fact: Fact, failure: Failure) -> Explanation | None:
    """An attribute of None: nothing was returned, no gradient, a file that could not be read."""
    frame = failure.frame
    kind, attribute = str(fact.type).rpartition(".")[2], str(fact.attribute)
    if failure.frames and failure.frames[-1].is_library:
        if kind == "NoneType" and "collate" in failure.frames[-1].file:
            return sample_of_wrong_type(fact, failure)
        if passed := _passed_to_library(kind, failure):
            return passed
    if frame is None or kind != "NoneType":
        return None
    place = _base(failure, frame, attribute)
    base = place[0].code(place[1]) if place else ""
    if base.endswith(".grad"):
        return parameter_without_gradient(failure, f"`{base}` is None ({frame.place})", base)
    where = origin(failure, place[0], place[1], frame) if place and failure.source(frame) is not None else None
    text = f"`{base or 'a value'}` is None ({frame.place}).{_origin_sentence(where, place)}"
    called = last_name(where.node.func) if where is not None and isinstance(where.node, ast.Call) else ""
    reasons = {
        "imread": ("`cv2.imread` returns None for a file that it cannot read.", "Check the path and the file."),
        "get": (
            "`get` returns None for a key that is not there.",
            "Use `[...]`, which names the missing key, or give a default: `get(key, default)`.",
        ),
    }
    pattern = ("match", "search", "fullmatch")
    if called in pattern:
        why, fix = f"`{called}` returns None where the pattern does not match.", "Test it: `if match is not None:`."
    elif called in reasons:
        why, fix = reasons[called]
    else:
        why = no_return(failure, where).strip()
        fix = "Return a value from that function on every path, or check for None before this line."
        if where is not None and isinstance(where.node, ast.Constant) and where.node.value is None:
            why, fix = "Nothing else was assigned to it before this line.", "Give it its value before it is used."
    return Explanation(f"{text} {why}".strip(), fix)


def _origin_sentence(where: Origin | None, place: tuple[Source, ast.expr] | None) -> str:
    """Return the sentence that names the expression a value comes from; '' where that is the failing one itself."""
    where = (unpacked(where) or where) if where is not None else None
    if where is None or place is None or where.node is place[1] or not where.code:
        return ""
    return f" It comes from `{where.code[:120]}` ({where.place})."


@explains("no_attribute", "removed_api", general=True)
def attribute_missing(fact: Fact, failure: Failure) -> Explanation | None:
    """An attribute that the value's type does not have: it was removed, misspelled, or belongs to another object."""
    frame = failure.frame
    if not fact.attribute:
        return None
    kind, attribute = str(fact.type or "module").rpartition(".")[2], str(fact.attribute)
    removed = REMOVED_METHODS.get((kind, attribute))
    if removed is not None:
        return Explanation(
            f"`{kind}.{attribute}` was removed in {removed[1]}"
            + (f" ({frame.place}: `{frame.code}`)." if frame else "."),
            f"Use `{removed[0]}`.",
        )
    if frame is None or failure.type.rpartition(".")[2] != "AttributeError":
        return None
    place = _base(failure, frame, attribute)
    if place is None:
        return None
    source, node = place
    base = source.code(node)
    value = failure.without_attribute or failure.value(base)
    if value is not None and value.type not in (None, kind) and fact.type:
        value = None
    where = origin(failure, source, node, frame) if failure.source(frame) is not None else None
    origin_text = _origin_sentence(where, place)
    what = f"`{base}` is the module `{fact.module}`" if fact.module else f"`{base}` is {a(kind)}"
    start = f"{what}, which has no `{attribute}` ({frame.place})"
    if (kind, attribute) in REPLACEMENTS:
        return Explanation(f"{start}.{origin_text}", REPLACEMENTS[kind, attribute].format(base))
    if kind == "Subset":
        return Explanation(
            f"{start}: it is a part of a data set, and holds only that (`.dataset`) and the `.indices` of its samples."
            f"{origin_text}",
            _of_a_part(value, base, attribute),
        )
    if kind in WRAPPERS:
        return Explanation(f"{start}.{origin_text}", WRAPPERS[kind].format(base, attribute))
    hyphen = _read_as_subtraction(source, node, attribute, value)
    if hyphen is not None:
        whole, name = hyphen
        return Explanation(
            f"Python reads `{whole}` ({frame.place}) as the subtraction of `{whole.rpartition('-')[2].strip()}` from "
            f"`{base}.{attribute}`. `{base}` has `{name}` and no `{attribute}`: argparse writes the hyphens of an "
            "option as underscores.",
            f"Write `{base}.{name}`.",
            replaced(failure.source(frame), frame.line, whole, f"{base}.{name}"),
        )
    near = list(value.near or []) if value is not None else []
    defined = [name for name in _defined_attributes(failure, kind) if name != attribute]
    near = near or difflib.get_close_matches(attribute, defined, 1, 0.8)
    if near:
        return Explanation(
            f"{start}; it has {listed([f'`{name}`' for name in near])}.{origin_text if len(origin_text) < 200 else ''}",
            f"Write `{base}.{near[0]}`.",
            replaced(failure.source(frame), frame.line, f"{base}.{attribute}", f"{base}.{near[0]}"),
        )
    for explanation in (
        _own_class(failure, frame, kind, attribute, start),
        _parts(value, base, attribute, start, origin_text),
        _entries(value, base, kind, attribute, start, origin_text),
        _other_type(value, base, kind, attribute, start, origin_text),
    ):
        if explanation is not None:
            return explanation
    has = [str(name) for name in (value.has or []) if not str(name).startswith("_")] if value is not None else []
    names = has if kind != "module" else []
    if not names and not origin_text:
        return None
    holds = f"; it has {listed([f'`{name}`' for name in names], 8)}" if names else ""
    return Explanation(
        f"{start}{holds}.{origin_text}", "Use one of the names that it has, or the object that was meant."
    )


def _read_as_subtraction(source: Source, base: ast.expr, attribute: str, value: Value | None) -> tuple[str, str] | None:
    """Return `args.batch-size` and `batch_size`, where the object has that attribute."""
    for node in source.nodes:
        left = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) else None
        if isinstance(left, ast.Attribute) and left.value is base and left.attr == attribute:
            name = f"{attribute}_{dotted(node.right)}"  # type: ignore[attr-defined]
            if value is not None and name in (value.has or []):
                return source.code(node), name
    return None


def _of_a_part(value: Value | None, base: str, attribute: str) -> str:
    """Return how to read an attribute of a data set of which a `Subset` is a part."""
    way = list(value.way) if value is not None and value.way else ["dataset"]
    whole, index, rows = ".".join([base, *way, attribute]), "i", f"{base}.indices"
    for depth in range(1, len(way)):  # a part of a part: its indices are those of the part
        index = f"{'.'.join([base, *way[:depth]])}.indices[{index}]"
    kind = value.inner.get("kind") if value is not None and value.inner else ""
    picked = f"[{whole}[{index}] for i in {rows}]"
    if kind in ("tensor", "array", "table"):
        rows = rows if index == "i" else f"[{index} for i in {rows}]"
        picked = f"{whole}{'.iloc' if kind == 'table' else ''}[{rows}]"
    if value is not None and value.by_sample:
        return f"It has a value for each sample of the whole data set; take those of this part: `{picked}`."
    if value is not None and value.by_sample is False:
        return f"Read it from the data set itself: `{whole}`."
    return f"`{whole}` belongs to the whole data set; where it has a value for each sample, take `{picked}`."


def _own_class(failure: Failure, frame: Frame, kind: str, attribute: str, start: str) -> Explanation | None:
    """Say where an attribute of a class of the program should have been set."""
    for source in failure.all_sources():
        for owner in source.classes(kind):
            set_at = source.attribute(owner, attribute)
            if set_at is not None:
                method = source.function_at(set_at.line)
                inside = f"`{method.name}`" if method is not None else "a method"
                return Explanation(
                    f"`{kind}.{attribute}` is set in {inside} ({source.place(set_at.line)}), which has not run when "
                    f"{frame.place} reads it.",
                    f"Set `self.{attribute}` in `__init__`, before it is used.",
                )
            init = next((n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
            local = source.binding(attribute, init.end_lineno or 0) if init is not None else None
            if init is not None and (attribute in parameters(init) or (local is not None and local.line > init.lineno)):
                as_parameter = attribute in parameters(init)
                role = "a parameter" if as_parameter else "a local variable"
                line = init.lineno if as_parameter or local is None else local.line
                before = source.line(line).strip()
                return Explanation(
                    f"`{attribute}` is {role} of `{kind}.__init__` ({source.place(line)}) and is never stored in the "
                    f"object, so {frame.place} finds no `self.{attribute}`.",
                    f"Store it in `__init__`: `self.{attribute} = {attribute}`.",
                    None if as_parameter else replaced(source, line, before, f"self.{before}"),
                )
            return Explanation(
                f"{start}: `{kind}` ({source.place(owner)}) never assigns `self.{attribute}` and defines no such "
                f"method.",
                "Assign it in `__init__`, or correct the name.",
            )
    return None


def _parts(value: Value | None, base: str, attribute: str, start: str, origin_text: str) -> Explanation | None:
    """Name the parts of a module: the last one is its head."""
    if value is None or value.kind != "module" or not value.children:
        return None
    names = [f"`{name}` ({kind})" for name, kind in value.children]
    sized = [
        name for name, kind in value.children if kind.startswith(("Linear", "Conv", "BatchNorm", "Embedding", "LSTM"))
    ]
    if value.type == "Sequential" and (attribute in SIZES or attribute in ("weight", "bias")) and sized:
        return Explanation(
            f"{start}: it holds layers, {listed(names, 6)}.{origin_text}",
            f"Ask the layer in it: `{base}[{sized[-1]}].{attribute}`.",
        )
    last = value.children[-1][0]
    fix = f"`{base}.{last}`" if not str(last).isdigit() else f"`{base}[{last}]`"
    return Explanation(
        f"{start}. Its parts are {listed(names, 8)}.{origin_text}", f"Use the name that it has; the last part is {fix}."
    )


SIZES = ("in_features", "out_features", "in_channels", "out_channels", "num_features", "kernel_size")


def _entries(
    value: Value | None, base: str, kind: str, attribute: str, start: str, origin_text: str
) -> Explanation | None:
    """A key of a dict that is read as an attribute, or an attribute that only the elements have."""
    if value is None:
        return None
    keys = [str(key) for key in value.keys or ()]
    if keys and attribute in keys:
        return Explanation(f"{start}: it is a dict with that key.{origin_text}", f'Write `{base}["{attribute}"]`.')
    types = [str(name) for name in value.types or ()]
    if len(types) == 1 and kind in ("list", "tuple") and _knows(types[0], attribute):
        return Explanation(
            f"{start}: it holds {value.length} {types[0]} objects, which have it.{origin_text}",
            f"Ask each element: `[part.{attribute} for part in {base}]`"
            + (f" (with its arguments), or one: `{base}[0].{attribute}`." if value.length else "."),
        )
    return None


def _knows(kind: str, attribute: str) -> bool:
    """Whether a type has an attribute, as far as this is known without its library."""
    builtin = {"str": str, "list": list, "dict": dict, "int": int, "float": float, "tuple": tuple, "set": set}
    others = {"Tensor": TENSOR, "ndarray": ARRAY, "DataFrame": TABLE, "PosixPath": PATH}
    return hasattr(builtin[kind], attribute) if kind in builtin else attribute in others.get(kind, ())


def _other_type(
    value: Value | None, base: str, kind: str, attribute: str, start: str, origin_text: str
) -> Explanation | None:
    """An attribute that values of another type have."""
    owners = [(name, ways) for name, attributes, ways in OWNERS if attribute in attributes]
    if not owners or kind == "module":
        return None
    convertible = [ways[kind] for _, ways in owners if kind in ways]
    text = f"{start}; {listed([name for name, _ in owners], 3)} have it.{origin_text}"
    if convertible:
        return Explanation(text, f"Convert it: `{convertible[-1].format(base)}.{attribute}`.")
    return Explanation(text, f"Look at where `{base}` got its value: it is not what this line expects.")


def _passed_to_library(kind: str, failure: Failure) -> Explanation | None:
    """Explain an argument of the program whose type a library's function does not know: a list in place of a tensor."""
    place = failing_call(failure, failure.frame)
    arguments = place[1].args if place is not None else []
    if not any(type_of(failure, node) == kind for node in arguments):
        return None
    return argument_of_wrong_type(Fact("wrong_argument", {"actual": kind, "expected": "Tensor"}), failure)


def _defined_attributes(failure: Failure, kind: str) -> list[str]:
    """Return the methods and attributes of a class of the program."""
    names: list[str] = []
    for source in failure.all_sources():
        for owner in source.classes(kind):
            names += [node.name for node in owner.body if isinstance(node, ast.FunctionDef)]
            for node in ast.walk(owner):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
                    names.append(node.attr)
    return sorted(set(names))
