"""Errors in model code: layers that are not called, missing returns, wrong arguments, removed functions."""

from __future__ import annotations

import ast
import builtins
import difflib
from pathlib import Path

from ocrlab.debug.diagnosis.explanations.explanation import (
    Explanation,
    changed,
    count,
    explains,
    listed,
    replaced,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import (
    Origin,
    failing_call,
    failing_expression,
    origin,
    own_statement_nodes,
)
from ocrlab.debug.diagnosis.explanations.results import live_type
from ocrlab.debug.diagnosis.explanations.samples import sample_of_wrong_type
from ocrlab.debug.diagnosis.explanations.source import (
    dotted,
    last_name,
    own_nodes,
    parameters,
)

LAYERS = (
    "ReLU",
    "Dropout",
    "Softmax",
    "Sigmoid",
    "Tanh",
    "GELU",
    "Flatten",
    "MaxPool2d",
    "LayerNorm",
    "Linear",
    "Conv2d",
    "BatchNorm2d",
    "LeakyReLU",
    "LogSoftmax",
)
# Names that libraries have removed: (module, name) -> what replaces it, since when. Each is absent from the current
# release: numpy 2.4, torch 2.15, torchvision 0.29, Pillow 13, matplotlib 3.11, scipy 1.17, scikit-learn 1.9.
REMOVED = {
    ("numpy", "float"): ("float` or `np.float64", "numpy 1.24"),
    ("numpy", "int"): ("int` or `np.int64", "numpy 1.24"),
    ("numpy", "bool"): ("bool` or `np.bool_", "numpy 1.24"),
    ("numpy", "object"): ("object", "numpy 1.24"),
    ("numpy", "str"): ("str", "numpy 1.24"),
    ("numpy", "long"): ("np.int64", "numpy 1.24"),
    ("numpy", "Inf"): ("np.inf", "numpy 2.0"),
    ("numpy", "NaN"): ("np.nan", "numpy 2.0"),
    ("numpy", "float_"): ("np.float64", "numpy 2.0"),
    ("numpy", "trapz"): ("np.trapezoid", "numpy 2.0"),
    ("numpy", "in1d"): ("np.isin", "numpy 2.0"),
    ("numpy", "product"): ("np.prod", "numpy 2.0"),
    ("numpy", "cumproduct"): ("np.cumprod", "numpy 2.0"),
    ("numpy", "asscalar"): ("array.item()", "numpy 1.23"),
    ("torch", "_six"): ("collections.abc", "torch 2.0"),
    ("torch", "rfft"): ("torch.fft.rfft", "torch 1.8"),
    ("torch", "irfft"): ("torch.fft.irfft", "torch 1.8"),
    ("torch.utils.data._utils.collate", "string_classes"): ("(str, bytes)", "torch 2.0"),
    ("torch.utils.data._utils.collate", "int_classes"): ("int", "torch 1.8"),
    ("torchvision.models.utils", "load_state_dict_from_url"): (
        "torch.hub.load_state_dict_from_url",
        "torchvision 0.13",
    ),
    ("torchvision.transforms.functional_tensor", ""): ("torchvision.transforms.functional", "torchvision 0.17"),
    ("torchvision.transforms", "Scale"): ("transforms.Resize", "torchvision"),
    ("torchvision.transforms", "RandomSizedCrop"): ("transforms.RandomResizedCrop", "torchvision"),
    ("torchvision.models", "utils"): ("torch.hub", "torchvision 0.13"),
    ("PIL.Image", "ANTIALIAS"): ("Image.LANCZOS", "Pillow 10"),
    ("PIL.Image", "LINEAR"): ("Image.BILINEAR", "Pillow 10"),
    ("PIL.Image", "CUBIC"): ("Image.BICUBIC", "Pillow 10"),
    ("collections", "Mapping"): ("collections.abc.Mapping", "Python 3.10"),
    ("collections", "Iterable"): ("collections.abc.Iterable", "Python 3.10"),
    ("collections", "Sequence"): ("collections.abc.Sequence", "Python 3.10"),
    ("collections", "Callable"): ("collections.abc.Callable", "Python 3.10"),
    ("collections", "MutableMapping"): ("collections.abc.MutableMapping", "Python 3.10"),
    ("sklearn.externals", "joblib"): ("import joblib", "scikit-learn 0.23"),
    ("sklearn.cross_validation", ""): ("sklearn.model_selection", "scikit-learn 0.20"),
    ("scipy.misc", "imread"): ("imageio.imread", "scipy 1.2"),
    ("scipy.misc", "imresize"): ("PIL.Image.resize", "scipy 1.3"),
    ("scipy.integrate", "simps"): ("scipy.integrate.simpson", "scipy 1.14"),
    ("distutils", ""): ("packaging.version", "Python 3.12"),
    ("imp", ""): ("importlib", "Python 3.12"),
    ("inspect", "getargspec"): ("inspect.getfullargspec", "Python 3.11"),
    ("pytorch_lightning.metrics", ""): ("torchmetrics", "Lightning 1.5"),
    ("matplotlib.cm", "get_cmap"): ("matplotlib.colormaps[name]", "matplotlib 3.9"),
}
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


# Arguments that libraries have removed: name -> (since when, what to do instead).
REMOVED_ARGUMENTS = {
    "verbose": ("torch 2.7 (learning-rate schedulers)", "print `scheduler.get_last_lr()` yourself"),
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


def _names_argument(node: ast.AST, name: str) -> bool:
    """Whether a node passes an argument of a name, as a keyword or as the key of a dict of settings."""
    if isinstance(node, ast.keyword):
        return node.arg == name
    return isinstance(node, ast.Constant) and node.value == name


@explains("no_super_init")
def no_super_call(fact: Fact, failure: Failure) -> Explanation | None:
    """A module whose `__init__` assigns a layer before torch has set it up."""
    frame, source = failure.frame, failure.source(failure.frame)
    owner = source.class_at(frame.line) if source and frame else None
    name = owner.name if owner else str(fact.owner or "")
    init = (
        next((node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
        if owner
        else None
    )
    first = f"`{frame.code}` ({frame.place})" if frame and frame.code else "A layer is assigned"
    late = next((call for call in (source.calls("__init__", inside=init) if source and init else ())), None)
    if late is not None and source is not None:
        return Explanation(
            f"`{name}.__init__` assigns `{frame.code if frame else 'a layer'}` before it calls "
            f"`{source.code(late)}` ({source.place(late)}).",
            "Make `super().__init__()` the first line of `__init__`.",
        )
    if not name:
        return Explanation(
            f"{first} comes before `super().__init__()` in this class, so there is no place to register a layer.",
            "Put `super().__init__()` as the first line of `__init__`, before any layer is assigned.",
        )
    return Explanation(
        f"`{name}.__init__` never calls `super().__init__()`, so {first} has no place to register a layer.",
        f"Put `super().__init__()` as the first line of `{name}.__init__`, before any layer is assigned.",
    )


@explains("no_forward")
def container_called(fact: Fact, failure: Failure) -> Explanation | None:
    """A container that is called like a layer, or a module without `forward`."""
    kind = str(fact.module)
    place = failing_call(failure, failure.frame)
    code = place[0].code(place[1]) if place else ""
    if kind in ("ModuleList", "ModuleDict", "ParameterList"):
        name = place[0].code(place[1].func) if place else "self.layers"
        variable = place[0].code(place[1].args[0]) if place and place[1].args else "x"
        text = (
            f"`{name}` is an `nn.{kind}`, a container that only holds layers and has no forward of its own, but "
            f"`{code}` ({failure.frame.place if failure.frame else ''}) calls it like a layer."
        )
        return Explanation(
            text,
            f"Loop over it: `for layer in {name}: {variable} = layer({variable})`, or build an `nn.Sequential` "
            "instead.",
        )
    for source in failure.all_sources():
        for owner in source.classes(kind):
            methods = [node.name for node in owner.body if isinstance(node, ast.FunctionDef)]
            near = difflib.get_close_matches("forward", [m for m in methods if m != "forward"], 1, 0.6)
            init = next(
                (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None
            )
            nested = next(
                (
                    node
                    for node in (ast.walk(init) if init else ())
                    if isinstance(node, ast.FunctionDef) and node.name == "forward"
                ),
                None,
            )
            if nested is not None:
                return Explanation(
                    f"`forward` of `{kind}` ({source.place(nested)}) is indented into `__init__`, so the class has "
                    "none.",
                    "Move it one level to the left.",
                )
            if near:
                return Explanation(
                    f"`{kind}` ({source.place(owner)}) has no `forward`, but a method `{near[0]}`.",
                    f"Rename `{near[0]}` to `forward`.",
                )
            return Explanation(
                f"`{kind}` ({source.place(owner)}) has no `forward`; it defines {listed([f'`{m}`' for m in methods])}.",
                "Define `forward(self, x)`.",
            )
    return None


@explains("not_callable")
def object_called(fact: Fact, failure: Failure) -> Explanation | None:
    """A value that is called: None, a number, a list, a tensor."""
    frame, source = failure.frame, failure.source(failure.frame)
    kind = str(fact.type)
    if kind == "module" and failure.frames and failure.frames[-1].is_library:
        return _module_as_argument(failure)
    place = failing_call(failure, frame)
    if place is None or frame is None or frame.cell is not None:
        return None
    name = dotted(place[1].func)
    if not name:
        return None
    if kind == "module":
        return Explanation(
            f"`{name}` is a module (a file), and `{place[0].code(place[1])}` calls it like a function or a class.",
            f"Call the function or class inside of it: `{name}.{name.rpartition('.')[2]}(...)`.",
        )
    hidden = hasattr(builtins, name)
    binding = source.binding(name, frame.line) if source and "." not in name else None
    source_of = f" `{source.line(binding.line).strip()}` ({source.place(binding.line)})" if source and binding else ""
    if hidden and binding:
        return Explanation(
            f"`{name}` is no longer Python's `{name}`:{source_of} gave the name to a {kind}.",
            "Use another name for that variable.",
        )
    where = origin(failure, place[0], place[1].func, frame) if source else None
    text = f"`{name}` is a {kind}, and `{place[0].code(place[1])}` ({frame.place}) calls it."
    if where is not None and where.node is not place[1].func:
        text += f" It was made by `{where.code}` ({where.place})."
    return Explanation(
        text,
        "Remove the parentheses (an index needs square brackets), or use another name for the value: a function of "
        "that name may have been overwritten.",
    )


def _module_as_argument(failure: Failure) -> Explanation | None:
    """Explain a module (a file) that was passed where a library calls a function: `transform=transforms`."""
    for source in failure.all_sources():
        imported = {
            alias.asname or alias.name
            for node in source.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        for call in (node for node in source.nodes if isinstance(node, ast.Call)):
            for keyword in call.keywords:
                name = dotted(keyword.value)
                used = any(isinstance(n, ast.Attribute) and dotted(n.value) == name for n in source.nodes)
                if name in imported and used:
                    return Explanation(
                        f"`{keyword.arg}={name}` ({source.place(call)}) passes the module `{name}` itself, and a "
                        "library "
                        "calls it for each sample.",
                        f"Pass what was built from it: `{keyword.arg}={name}.Compose([...])`, or the variable that "
                        "holds "
                        "it.",
                    )
    return None


@explains("wrong_argument")
def argument_of_wrong_type(fact: Fact, failure: Failure) -> Explanation | None:
    """A layer or function that gets a list, None, a number or another module where a tensor belongs."""
    frame, source = failure.frame, failure.source(failure.frame)
    place = failing_call(failure, frame)
    if place is None or frame is None:
        return None
    code = place[0].code(place[1])
    actual = str(fact.actual).rpartition(".")[2] if fact.expected else str(fact.actual)
    name = last_name(place[1].func)
    if (
        name in LAYERS
        and "Tensor" in actual
        and (dotted(place[1].func).startswith(("nn.", "torch.nn.")) or "." not in dotted(place[1].func))
    ):
        built = dotted(place[1].func)
        arguments = ", ".join(place[0].code(value) for value in place[1].args)
        after = f"{built}()({arguments})"
        return Explanation(
            f"`{code}` ({frame.place}) builds a layer and gives it the tensor as a setting; `{built}` is a class.",
            f"Make the layer first and call it: `{after}`, or use the function: `F.{name.lower()}({arguments})`.",
            replaced(source, frame.line, code, after),
        )
    if actual in LAYERS:
        return Explanation(
            f"`{code}` ({frame.place}) passes a layer (`{actual}`) where a tensor belongs: a layer was built with "
            "the tensor as a setting, but not called.",
            f"Call it: `nn.{actual}()(x)`.",
        )
    if not fact.expected:
        types = [part.strip() for part in actual.split(",")]
        actual = types[0].rpartition(".")[2] if types else ""
        if actual == "tuple":
            return Explanation(
                f"`{code}` ({frame.place}) needs whole numbers as sizes, and one of them is something else (None, a "
                "float, "
                f"a tensor): ({fact.actual}).",
                "Print the arguments of this line; a setting that was never filled in is None.",
            )
    innermost = _innermost(place[1])
    if not frame.expression and innermost is not place[1] and any(frame_.is_library for frame_ in failure.frames[-1:]):
        place, code = (place[0], innermost), place[0].code(innermost)
    value = next(
        (node for node in place[1].args if _type_of(failure, node) == actual),
        place[1].args[0] if place[1].args else None,
    )
    kind = live_type(failure, value) if value is not None else ""
    if actual and kind and kind != actual:
        return None  # the value of another type is made inside of the call
    operand = place[0].code(value) if value is not None else str(fact.argument)
    where = origin(failure, place[0], value, frame) if value is not None and source is not None else None
    source_of = (
        f" It comes from `{where.code}` ({where.place})." if where is not None and where.node is not value else ""
    )
    if actual == "NoneType":
        missing = _no_return(failure, where)
        return Explanation(
            f"`{operand}` is None in `{code}` ({frame.place}).{source_of}{missing}",
            "Return the tensor from that function (`return x` at the end of `forward`), and check what is returned "
            "on every path."
            if missing or source_of
            else f"Set `{operand}` before this line.",
        )
    if actual == "device" and "int" in str(fact.expected) and value is not None:
        return Explanation(
            f"`{operand}` is a `torch.device`, and `{code}` ({frame.place}) takes it for another size.{source_of}",
            f"Pass it by its name: `device={operand}`.",
            changed(place[0], value, f"device={operand}") if source is not None else None,
        )
    if fact.expected and "int" in str(fact.expected) and (actual == "float" or "float" in failure.message):
        return Explanation(
            f"`{code}` ({frame.place}) gets a float where a size (a whole number) belongs.{source_of}",
            "Use `//` in place of `/`, or `int(...)`.",
        )
    fixes = {
        "device": (
            f"`{operand}` is a `torch.device`: the name was given to the device, or the device was passed in place "
            "of the "
            "batch.",
            "Pass the batch (`model(images.to(device))`), and keep the device under a name of its own.",
        ),
        "list": (
            f"`{operand}` is a list of tensors.",
            f"Make one tensor of it: `torch.stack({operand})` (equal sizes) or `torch.cat({operand})`.",
        ),
        "tuple": (
            f"`{operand}` is a tuple: the call that made it returns several values (an LSTM or GRU returns output "
            "and state, a data set sample and label).",
            f"Take the one that you need: `{operand}[0]`, or unpack it: `{operand}, state = ...`.",
        ),
        "ndarray": (f"`{operand}` is a numpy array.", f"Convert it: `torch.from_numpy({operand}).float()`."),
        "Image": (f"`{operand}` is a PIL image.", "Convert it in the transform: `transforms.ToTensor()`."),
        "str": (
            f"`{operand}` is a text.",
            'Encode it as numbers first; iterating over a dict gives its keys: use `.values()` or `batch["image"]`.',
        ),
        "float": (
            f"`{operand}` is a float, and a size has to be a whole number.",
            "Use `//` in place of `/`, or `int(...)`.",
        ),
        "DataFrame": (
            f"`{operand}` is a pandas table.",
            f"Convert it: `torch.tensor({operand}.to_numpy(), dtype=torch.float32)`.",
        ),
        "Series": (
            f"`{operand}` is a pandas column.",
            f"Convert it: `torch.tensor({operand}.to_numpy(), dtype=torch.float32)`.",
        ),
        "dict": (f"`{operand}` is a dict.", f'Take the tensor out of it: `{operand}["..."]`.'),
        "BatchEncoding": (
            f"`{operand}` is the output of a tokenizer, a dict.",
            f"Pass its parts: `model(**{operand})`.",
        ),
        "int": (f"`{operand}` is a number.", f"Make a tensor of it: `torch.tensor({operand})`."),
    }
    if actual in fixes:
        what, fix = fixes[actual]
        return Explanation(
            f"{what} `{code}` ({frame.place}) takes a tensor.{source_of}"
            if actual != "float"
            else f"{what} `{code}` ({frame.place}).{source_of}",
            fix,
        )
    if fact.expected is None and "float" in str(fact.actual):
        return Explanation(
            f"`{code}` ({frame.place}) gets a float where a size (a whole number) belongs: ({actual}).{source_of}",
            "Use `//` in place of `/`, or `int(...)`.",
        )
    return Explanation(
        f"`{code}` ({frame.place}) got ({fact.actual}), which none of its forms takes.{source_of}",
        "Compare the order and the types of the arguments with the forms that the message lists.",
    )


@explains("not_iterable")
def nothing_to_iterate(fact: Fact, failure: Failure) -> Explanation | None:
    """A method that was not called, None, a number or a module where a sequence belongs."""
    frame, source = failure.frame, failure.source(failure.frame)
    if frame is None or (frame.cell is not None and source is None):
        return None
    kind = str(fact.type)
    statement = source.statement_at(frame.line) if source else None
    nodes = list(own_statement_nodes(statement)) if statement is not None else []
    if source is None or not nodes:
        return None
    operand: ast.expr | None = None
    if "subscriptable" in failure.message or "index" in failure.message or "slice" in failure.message:
        operand = next(
            (
                node.value
                for node in nodes
                if isinstance(node, ast.Subscript) and _kind(failure, node.value) in ("", kind)
            ),
            None,
        )
    elif isinstance(statement, ast.For):
        operand = statement.iter
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
        operand = statement.value
    else:
        operand = next(
            (a for node in nodes if isinstance(node, ast.Call) for a in node.args if _kind(failure, a) in ("", kind)),
            None,
        )
    if operand is None:
        return None
    if kind == "NoneType" and any("collate" in frame_.file for frame_ in failure.frames):
        return sample_of_wrong_type(fact, failure)
    if live_type(failure, operand) not in ("", kind) and not kind.startswith("0-d"):
        return None  # the value of another type is made inside of the call
    name = source.code(operand)
    if kind in ("method", "builtin_function_or_method", "function"):
        return Explanation(
            f"`{name}` ({frame.place}) is a {'method' if kind != 'function' else 'function'} and was not called.",
            f"Call it: `{name}()`.",
            replaced(source, frame.line, name, f"{name}()"),
        )
    where = origin(failure, source, operand, frame)
    source_of = f" It comes from `{where.code}` ({where.place})." if where.node is not operand else ""
    if kind == "NoneType":
        missing = _no_return(failure, where)
        return Explanation(
            f"`{name}` is None ({frame.place}).{source_of}{missing}",
            "Return a value from that function on every path (methods that work in place, such as `list.sort`, "
            "return None).",
        )
    if kind.startswith("0-d"):
        return Explanation(
            f"`{name}` is a tensor without axes, a single number ({frame.place}).{source_of}",
            "Use it as a number (`.item()`), or keep the batch axis: `squeeze(-1)` in place of `squeeze()`, `[0]` "
            "only once.",
        )
    if kind in ("int", "float"):
        looped = isinstance(statement, ast.For)
        return Explanation(
            f"`{name}` is a single number ({kind}) ({frame.place}).{source_of}",
            f"Loop over `range({name})`." if looped else "Pass a list, or take the number itself without an index.",
            replaced(source, frame.line, f"in {name}:", f"in range({name}):") if looped else None,
        )
    if kind in ("DataLoader", "generator", "dict_keys", "dict_values", "map", "filter", "zip", "odict_keys"):
        return Explanation(
            f"`{name}` is a {kind}, which can be looped over but not indexed ({frame.place}).{source_of}",
            f"Take a batch with `next(iter({name}))`, one sample with `{name}.dataset[0]`."
            if kind == "DataLoader"
            else f"Make a list of it: `list({name})`.",
        )
    return Explanation(
        f"`{name}` is a {kind}, which is not a sequence ({frame.place}).{source_of}",
        f"Pass its parameters: `{name}.parameters()`."
        if kind in _own_modules(failure) or "optim" in source.line(frame.line)
        else "Take the part of it that holds the values.",
    )


def _own_modules(failure: Failure) -> set[str]:
    """Return the names of the program's classes that are modules of torch."""
    return {
        node.name
        for source in failure.all_sources()
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and any(last_name(base) == "Module" for base in node.bases)
    }


def _kind(failure: Failure, node: ast.expr) -> str:
    value = failure.value(dotted(node)) if dotted(node) else None
    return str(value.type) if value is not None else ""


@explains("optimizer_argument")
def optimizer_without_list(fact: Fact, failure: Failure) -> Explanation | None:
    """An optimizer that gets a tensor, names or a module in place of an iterable of parameters."""
    frame, source = failure.frame, failure.source(failure.frame)
    place = failing_call(failure, frame)
    if place is None or not place[1].args or frame is None:
        return None
    name, kind = place[0].code(place[1].args[0]), str(fact.type).rpartition(".")[2]
    text = f"`{name}` ({frame.place}) holds {kind} objects, and an optimizer takes a list of tensors."
    if "named_parameters" in name or kind in ("tuple", "str"):
        return Explanation(text, "Pass the parameters without their names: `model.parameters()`.")
    if "Tensor" in kind:
        return Explanation(
            f"`{name}` ({frame.place}) is a single tensor, and an optimizer takes a list of them.",
            f"Pass `[{name}]`.",
            replaced(source, frame.line, f"({name}", f"([{name}]"),
        )
    return Explanation(text, "Pass `model.parameters()`.")


@explains("operands")
def operands_of_wrong_types(fact: Fact, failure: Failure) -> Explanation | None:
    """An operator between values that it does not know: a layer that was not called, None, a text."""
    frame, source = failure.frame, failure.source(failure.frame)
    place = failing_expression(failure, frame, ast.BinOp, ast.Compare, ast.AugAssign)
    if place is None or frame is None:
        return None
    code = place[0].code(place[1])
    sides = {
        ast.BinOp: lambda node: (node.left, node.right),
        ast.Compare: lambda node: (node.left, node.comparators[0]),
        ast.AugAssign: lambda node: (node.target, node.value),
    }[type(place[1])](place[1])
    types = (str(fact.left_type), str(fact.right_type))
    for node, kind in zip(sides, types, strict=True):
        text = place[0].code(node)
        if kind in LAYERS or kind.endswith("Loss"):
            call = next((part for part in ast.walk(node) if isinstance(part, ast.Call)), None)
            where = origin(failure, place[0], node, frame) if call is None and source is not None else None
            call = where.node if where is not None and isinstance(where.node, ast.Call) else call
            if call is not None:
                maker = where.source if where is not None else place[0]
                before, built = maker.code(call), maker.code(call.func)
                after = before.replace(built, f"{built}()", 1)
                return Explanation(
                    f"`{before}` ({maker.place(call)}) builds a layer and gives it the tensor as a setting; "
                    f"`{built}` is "
                    "a class.",
                    f"Make the layer first and call it: `{after}`, or use the function: "
                    f"`torch.{last_name(call.func).lower()}(...)`.",
                    replaced(maker, call.lineno, before, after),
                )
            return Explanation(
                f"`{text}` is a layer ({kind}) in `{code}` ({frame.place}), not its output.", f"Call it: `{text}(x)`."
            )
        if kind == "NoneType":
            where = origin(failure, place[0], node, frame) if source is not None else None
            source_of = (
                f" It comes from `{where.code}` ({where.place})."
                if where is not None and where.node is not node
                else ""
            )
            return Explanation(
                f"`{text}` is None in `{code}` ({frame.place}).{source_of}{_no_return(failure, where)}",
                "Return a value from that function on every path, or check for None before this line.",
            )
        if kind == "str" and "str" not in (types[0] if kind == types[1] else types[1]):
            return Explanation(
                f"`{text}` is a text in `{code}` ({frame.place}), the other side is not.",
                f"Convert it: `float({text})`; values from a command line, a CSV file or an environment variable "
                "are texts.",
            )
    return None


def _innermost(call: ast.Call) -> ast.Call:
    """Return the call that runs first in `f(g(h(x)))`."""
    while call.args and isinstance(call.args[0], ast.Call):
        call = call.args[0]
    return call


def _type_of(failure: Failure, node: ast.expr) -> str:
    value = failure.value(dotted(node)) if dotted(node) else None
    return str(value.type) if value is not None else ""


def _no_return(failure: Failure, where: Origin | None) -> str:
    """Name a function of the program that returns nothing."""
    names = [last_name(where.node.func)] if where is not None and isinstance(where.node, ast.Call) else []
    for source in failure.all_sources():
        functions = [f for name in names for f in source.functions(name)]
        for name in names:
            for owner in source.classes(name):
                functions += [
                    f for f in owner.body if isinstance(f, ast.FunctionDef) and f.name in ("forward", "__call__")
                ]
        functions += [node for node in source.nodes if isinstance(node, ast.FunctionDef) and node.name == "forward"]
        for function in functions:
            if not any(isinstance(node, ast.Return) and node.value is not None for node in own_nodes(function)):
                outer = source.class_at(function.lineno)
                return (
                    f" `{outer.name + '.' if outer else ''}{function.name}` ({source.place(function)}) ends "
                    "without `return`."
                )
    return ""


@explains("no_attribute")
def none_has_no_attribute(fact: Fact, failure: Failure) -> Explanation | None:
    """An attribute of None, of a removed method, or with a typing error."""
    frame, source = failure.frame, failure.source(failure.frame)
    kind, attribute = str(fact.type).rpartition(".")[2], str(fact.attribute)
    if kind == "NoneType" and failure.frames and "collate" in failure.frames[-1].file:
        return sample_of_wrong_type(fact, failure)
    if failure.frames and failure.frames[-1].is_library and (passed := _passed_to_library(kind, failure)):
        return passed
    removed = REMOVED_METHODS.get((kind, attribute))
    if removed is not None:
        return Explanation(
            f"`{kind}.{attribute}` was removed in {removed[1]}"
            + (f" ({frame.place}: `{frame.code}`)." if frame else "."),
            f"Use `{removed[0]}`.",
        )
    if frame is None:
        return None
    place = failing_expression(failure, frame, ast.Attribute)
    matching = None
    if place is not None:
        statement_nodes = (
            [
                node
                for node in ast.walk(place[0].statement_at(frame.line) or place[1])
                if isinstance(node, ast.Attribute) and node.attr == attribute
            ]
            if source
            else [place[1]]
        )
        matching = next(iter(statement_nodes), None)
    base = place[0].code(matching.value) if place and isinstance(matching, ast.Attribute) else ""
    if kind == "NoneType":
        where = (
            origin(failure, place[0], matching.value, frame)
            if source is not None and place and isinstance(matching, ast.Attribute)
            else None
        )
        if base.endswith(".grad"):
            owner = base.removesuffix(".grad")
            value = failure.value(owner)
            if value is not None and value.made_by:
                return Explanation(
                    f"`{base}` is None ({frame.place}): `{owner}` is the result of an operation ({value.made_by}), "
                    "and "
                    "`backward()` keeps the gradients of leaves only.",
                    f"Make it a leaf: call `.requires_grad_()` last, after every operation that makes `{owner}` "
                    "(with "
                    f"`.detach()` before it), or call `{owner}.retain_grad()`.",
                )
            return Explanation(
                f"`{base}` is None ({frame.place}): this parameter has got no gradient, as it was not used by the "
                "loss, is frozen, or `backward()` was not called yet.",
                f"Skip it: `if {base} is not None:`, or find out why the loss does not depend on it.",
            )
        missing = _no_return(failure, where)
        source_of = (
            f" It comes from `{where.code}` ({where.place})."
            if where is not None and where.node is not getattr(matching, "value", None)
            else ""
        )
        reads = "imread" in (where.code if where else "")
        text = f"`{base or 'a value'}` is None ({frame.place}).{source_of}{missing}" + (
            " `cv2.imread` returns None for a file that it cannot read." if reads else ""
        )
        return Explanation(
            text,
            "Check the path and the file."
            if reads
            else "Return a value from that function on every path, or check for None before this line.",
        )
    names = _defined_attributes(failure, kind)
    near = difflib.get_close_matches(attribute, names, 1, 0.7)
    if near and base:
        return Explanation(
            f"`{base}` is a `{kind}`, which has no `{attribute}` ({frame.place}); it defines `{near[0]}`.",
            f"Write `{base}.{near[0]}`.",
            replaced(source, frame.line, f"{base}.{attribute}", f"{base}.{near[0]}"),
        )
    replacement = {
        ("list", "to"): "Move each element: `[t.to(device) for t in batch]`.",
        ("list", "cuda"): "Move each element: `[t.to(device) for t in batch]`.",
        ("dict", "to"): "Move each value: `{k: v.to(device) for k, v in batch.items()}`.",
        ("tuple", "to"): "Unpack it first: `images, targets = batch`.",
        ("list", "shape"): "Convert it: `torch.stack(...)` or `np.array(...)`, or use `len(...)`.",
        ("tuple", "shape"): "The call returns several values: unpack them, or take `[0]`.",
        ("int", "item"): "It is a number already: drop `.item()`.",
        ("float", "item"): "It is a number already: drop `.item()`.",
        (
            "float",
            "backward",
        ): "The loss is a Python number: `.item()` or `float(...)` was called on it too early. Keep the tensor.",
        ("ndarray", "to"): "Convert it: `torch.from_numpy(x).to(device)`.",
        ("ndarray", "cuda"): "Convert it: `torch.from_numpy(x).cuda()`.",
        ("ndarray", "unsqueeze"): "Convert it first: `torch.from_numpy(x)`, or use `x[None]`.",
        ("ndarray", "permute"): "numpy calls it `transpose`: `x.transpose(2, 0, 1)`.",
        ("Tensor", "astype"): "torch calls it `.to(torch.float32)` or `.float()`.",
        ("Tensor", "copy"): "torch calls it `.clone()`.",
        ("DataParallel", attribute): f"The model is wrapped: `model.module.{attribute}`.",
        ("DistributedDataParallel", attribute): f"The model is wrapped: `model.module.{attribute}`.",
        (
            "Subset",
            attribute,
        ): f"A split is a `Subset`; the data set itself is `.dataset`: `subset.dataset.{attribute}`.",
        ("DataLoader", attribute): f"The loader has a data set: `loader.dataset.{attribute}`.",
    }
    if (kind, attribute) in replacement and base:
        return Explanation(
            f"`{base}` is a {kind}, which has no `{attribute}` ({frame.place}).", replacement[kind, attribute]
        )
    if base.startswith("self") and names is not None and source is not None:
        own_class = source.class_at(frame.line)
        if own_class is not None and own_class.name == kind:
            later = source.attribute(own_class, attribute)
            if later is not None:
                return Explanation(
                    f"`self.{attribute}` is set at {source.place(later.line)}, which has not run when {frame.place} "
                    "reads it.",
                    f"Set `self.{attribute}` in `__init__`, before it is used.",
                )
            return Explanation(
                f"`{kind}` never assigns `self.{attribute}`, and {frame.place} reads it.",
                "Assign it in `__init__`, or correct the name.",
            )
    return None


def _passed_to_library(kind: str, failure: Failure) -> Explanation | None:
    """Explain an argument of the program whose type a library's function does not know: a list in place of a tensor."""
    place = failing_call(failure, failure.frame)
    arguments = place[1].args if place is not None else []
    if not any(_type_of(failure, node) == kind for node in arguments):
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


@explains("removed_api")
def removed_function(fact: Fact, failure: Failure) -> Explanation | None:
    """A function that a newer version of a library has removed, or a file of the program that hides the library."""
    module, attribute = str(fact.module), str(fact.attribute or "")
    frame = failure.frame
    shadow = _shadowing_file(failure, module)
    if shadow:
        return Explanation(
            f"`import {module.partition('.')[0]}` finds the file {shadow} of this program and not the library.",
            f"Rename {Path(shadow).name} (and remove its `__pycache__`).",
        )
    replacement = (
        REMOVED.get((module, attribute)) or REMOVED.get((module, "")) or REMOVED.get((f"{module}.{attribute}", ""))
    )
    if replacement is None and "." in module:
        parent, _, last = module.rpartition(".")
        replacement = REMOVED.get((parent, last)) or REMOVED.get((parent, ""))
    if replacement is not None:
        name = f"{module}.{attribute}".rstrip(".")
        where = f" ({frame.place}: `{frame.code}`)" if frame and frame.code else ""
        inside = _library_of(failure)
        who = f" It is called by the installed package {inside}." if inside else ""
        return Explanation(
            f"`{name}` was removed in {replacement[1]}{where}.{who}",
            f"Use `{replacement[0]}`."
            if not inside
            else f"Update it (`pip install -U {inside}`), or install {replacement[1].split()[0]} below "
            f"{replacement[1].split()[-1]}.",
        )
    return None


def _shadowing_file(failure: Failure, module: str) -> str:
    """Return a file of the program that has the name of a library which it imports."""
    name = module.partition(".")[0]
    for frame in failure.frames:
        path = Path(frame.file)
        if frame.is_library or frame.cell is not None:
            continue
        if path.stem == name or (path.parent.name == name and path.name == "__init__.py"):
            return frame.file
        if path.is_file() and (path.parent / f"{name}.py").is_file():
            return str(path.parent / f"{name}.py")
    return ""


def _library_of(failure: Failure) -> str:
    """Return the installed package that raised, if it was not the program itself."""
    last = failure.frames[-1] if failure.frames else None
    if last is not None and last.function == "__getattr__":  # of the module itself
        last = failure.frames[-2] if len(failure.frames) > 1 else None
    for marker in ("/site-packages/", "/dist-packages/"):
        if last is not None and marker in last.file:
            return last.file.partition(marker)[2].partition("/")[0].removesuffix(".py")
    return ""


@explains("unexpected_keyword")
def wrong_call(fact: Fact, failure: Failure) -> Explanation | None:
    """A call with arguments that the function does not take."""
    frame, source = failure.frame, failure.source(failure.frame)
    if frame is None:
        return None
    *outer, name = str(fact.function).split(".")
    place = failing_call(failure, frame)
    code = place[0].code(place[1]) if place else frame.code
    owner = outer[-1] if outer else ""
    callee = owner if name == "__init__" else name
    definitions = [
        (s, f)
        for s in failure.all_sources()
        for f in s.functions(name)
        if not owner or (c := s.class_at(f.lineno)) is None or c.name == owner
    ]
    if definitions:
        where, function = definitions[0]
        signature = (
            f"`{owner + '.' if owner else ''}{name}({', '.join(parameters(function))})` ({where.place(function)})"
        )
        if fact.argument is not None:
            near = difflib.get_close_matches(str(fact.argument), parameters(function), 1, 0.5)
            return Explanation(
                f"`{code}` passes `{fact.argument}`, but {signature} has no such parameter."
                if "unexpected" in failure.message
                else f"`{code}` passes `{fact.argument}` twice, once by position: {signature}.",
                f"Write `{near[0]}=`." if near else "Remove the argument, or add the parameter to the function.",
                replaced(source, frame.line, f"{fact.argument}=", f"{near[0]}=") if near else None,
            )
        if fact.missing is not None:
            text = f"`{code}` lacks {fact.missing}: {signature}."
            first = parameters(function)[:1] == ["self"]
            on_class = (
                place is not None
                and isinstance(place[1].func, ast.Attribute)
                and owner
                and last_name(place[1].func.value) == owner
            )
            if first and ("self" in str(fact.missing) or on_class):
                return Explanation(
                    f"{text} It is called on the class, not on an instance.",
                    f"Make an instance first: `{owner or 'Model'}(...)`.",
                )
            return Explanation(text, "Pass the missing argument, or give the parameter a default.")
        if fact.expected is not None:
            has_self = parameters(function)[:1] == ["self"] or name == "__init__"
            if where.class_at(function.lineno) is not None and parameters(function)[:1] != ["self"]:
                return Explanation(f"`{code}`: {signature} lacks `self` as its first parameter.", "Add `self`.")
            return Explanation(
                f"`{code}` passes {count(fact.actual - has_self, 'argument')}, but {signature} takes "
                f"{fact.expected - has_self}.",
                "Pass as many as the function takes, or add a parameter.",
            )
    if name == "forward" and fact.missing is not None:
        return Explanation(
            f"`{code}` ({frame.place}) calls `forward` without {fact.missing}: the class was called and not an "
            "instance, or an argument is missing.",
            "Make an instance first (`model = Net()`), then call it: `model(x)`.",
        )
    gone = REMOVED_ARGUMENTS.get(str(fact.argument))
    if gone is not None:
        passed = next(
            (
                f" ({s.place(n)})"
                for s in failure.all_sources()
                for n in s.nodes
                if _names_argument(n, str(fact.argument))
            ),
            "",
        )
        return Explanation(
            f"`{callee}` takes no `{fact.argument}` any more: it was removed in {gone[0]}. This program passes "
            f"it{passed}.",
            f"Remove `{fact.argument}`; {gone[1]}.",
        )
    return (
        Explanation(
            f"`{code}` ({frame.place}): the installed version of `{callee}` does not take `{fact.argument}`.",
            "Look up its parameters in the documentation of the installed version; the argument was renamed or "
            "removed, or came with a newer one.",
        )
        if fact.argument is not None
        else None
    )
