"""Errors in model code: layers that are not called, missing returns, wrong arguments, removed functions."""

from __future__ import annotations

import ast
import builtins
import difflib
import sys
from pathlib import Path

from ocrlab.debug.diagnosis.explanations.explanation import (
    Explanation,
    changed,
    explains,
    listed,
    replaced,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.module_tensors import parameter_without_gradient
from ocrlab.debug.diagnosis.explanations.origins import (
    Origin,
    called_functions,
    failing_call,
    failing_expression,
    origin,
    own_statement_nodes,
)
from ocrlab.debug.diagnosis.explanations.results import live_type
from ocrlab.debug.diagnosis.explanations.samples import sample_of_wrong_type
from ocrlab.debug.diagnosis.explanations.source import (
    Source,
    dotted,
    last_name,
    why_none,
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


def _method_as_size(failure: Failure, source: Source, call: ast.Call) -> Explanation | None:
    """Say that an argument is a method of one of the program's classes, which is not called."""
    for node in (*call.args, *(word.value for word in call.keywords)):
        functions = [(s, f) for s in failure.all_sources() for f in s.functions(getattr(node, "attr", ""))]
        if isinstance(node, ast.Attribute) and functions and not functions[0][1].decorator_list:
            code, where = source.code(node), functions[0][0].place(functions[0][1])
            before = source.code(call)
            after = before.replace(code, f"{code}()", 1)
            return Explanation(
                f"`{code}` in `{before}` ({source.place(call)}) is a method ({where}) and not its result: it is not "
                "called.",
                f"Call it: `{code}()`.",
                replaced(source, call.lineno, before, after),
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
    if place is None or frame is None:
        return None
    name = dotted(place[1].func)
    if not name or kind.endswith("Size"):
        return None
    if kind == "module":
        return Explanation(
            f"`{name}` is a module (a file), and `{place[0].code(place[1])}` calls it like a function or a class.",
            f"Call the function or class inside of it: `{name}.{name.rpartition('.')[2]}(...)`.",
        )
    replaced_by = next(
        (
            (s, n)
            for s in failure.all_sources()
            for n in s.nodes
            if isinstance(n, ast.Assign) and "." in name and any(dotted(target) == name for target in n.targets)
        ),
        None,
    )
    if replaced_by is not None and not name.startswith("self."):
        where_, node = replaced_by
        return Explanation(
            f"`{name}` is no longer the function of its library: `{where_.code(node)}` ({where_.place(node)}) has "
            f"overwritten it with a {kind}.",
            f"Call it there: `{name}({where_.code(node.value)})`, and start again (in a notebook: restart the kernel).",
            replaced(where_, node.lineno, where_.code(node), f"{name}({where_.code(node.value)})"),
        )
    hidden = hasattr(builtins, name)
    binding = source.binding(name, frame.line) if source and "." not in name else None
    source_of = f" `{source.line(binding.line).strip()}` ({source.place(binding.line)})" if source and binding else ""
    if hidden and binding:
        return Explanation(
            f"`{name}` is no longer Python's `{name}`:{source_of} gave the name to a {kind}.",
            "Use another name for that variable.",
        )
    owner = failure.value(name.rpartition(".")[0]) if "." in name else None
    attribute = name.rpartition(".")[2]
    kinds = [str(owner.type).rpartition(".")[2]] if owner is not None else []
    hides = next(
        (
            (s, c, n)
            for s in failure.all_sources()
            for c in s.nodes
            if isinstance(c, ast.ClassDef) and (not kinds or c.name in kinds)
            for n in ast.walk(c)
            if isinstance(n, ast.Assign)
            and any(dotted(target) == f"self.{attribute}" for target in n.targets)
            and _has_method(s, c, attribute)
        ),
        None,
    )
    if "." in name and hides is not None:
        at, scope, node = hides
        other = {"train": "self.training", "eval": "self.evaluating"}.get(attribute, f"self.{attribute}_")
        own = any(isinstance(n, ast.FunctionDef) and n.name == attribute for n in scope.body)
        method = f"the method `{attribute}` of {'the class' if own else '`' + at.code(scope.bases[0]) + '`'}"
        return Explanation(
            f"`{at.code(node)}` ({at.place(node)}, in `{scope.name}`) hides {method}: `{name}` is a {kind} now, and "
            f"`{place[0].code(place[1])}` ({frame.place}) calls it.",
            f"Give the attribute another name wherever `{scope.name}` uses `self.{attribute}`"
            + (
                ", or use `self.training`, which `train()` and `eval()` set."
                if attribute == "train"
                else f" (`{other}`)."
            ),
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


MODULE_METHODS = set(
    "train eval to parameters named_parameters buffers children modules state_dict load_state_dict zero_grad apply "
    "half float double cuda cpu type forward register_buffer add_module requires_grad_ extra_repr".split()
)


def _has_method(source: Source, owner: ast.ClassDef, name: str) -> bool:
    """Whether a class defines a method, or inherits it from torch's Module."""
    own = any(isinstance(node, ast.FunctionDef) and node.name == name for node in owner.body)
    return own or (
        name in MODULE_METHODS and any(last_name(base) in ("Module", "LightningModule") for base in owner.bases)
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
    sized = "method" in actual or (not fact.expected and actual.startswith("tuple"))
    uncalled = _method_as_size(failure, place[0], place[1]) if sized else None
    if uncalled is not None:
        return uncalled
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
        (node for node in place[1].args if type_of(failure, node) == actual),
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
        missing = no_return(failure, where)
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
    tuple_ = where.node if where is not None and actual in ("tuple", "list") else None
    if where is not None and isinstance(tuple_, ast.Tuple) and len(tuple_.elts) == 1:
        batched = ", and a batch of such tuples is a list of one tensor" if actual == "list" else ""
        return Explanation(
            f"The comma at the end of `{where.name or operand} = {where.code}` ({where.place}) makes a tuple of one "
            f"item{batched}. `{code}` ({frame.place}) takes a tensor.",
            "Remove the comma at the end of that line.",
            changed(where.source, tuple_, where.source.code(tuple_.elts[0])),
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
    if explanation := special_method_missing(fact, failure):
        return explanation
    if failure.frames[-1].is_library and (passed := _single_argument(kind, failure)) is not None:
        return passed
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
        exact = failing_call(failure, frame)
        written = (
            exact is not None and frame.expression and exact[0].code(exact[1]) == " ".join(frame.expression.split())
        )
        nodes = [exact[1]] if exact is not None and written else nodes
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
        missing = no_return(failure, where)
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


# What a message says an object of a class cannot do, and the method that would do it.
SPECIAL = {
    "has no len()": "__len__",
    "not subscriptable": "__getitem__",
    "is not iterable": "__iter__",
    "not an iterator": "__next__",
    "object is not callable": "__call__",
    "item assignment": "__setitem__",
    "context manager protocol": "__enter__",
    "should implement __getitem__": "__getitem__",
}


@explains("not_callable", "special_method")
def special_method_missing(fact: Fact, failure: Failure) -> Explanation | None:
    """A class of the program without the method that Python or a library calls: missing, misspelled or indented."""
    method = next((name for text, name in SPECIAL.items() if text in failure.message), "")
    kind = str(fact.type or "").rpartition(".")[2]
    if not kind:  # the message does not name the class: it is that of the method that torch calls
        sets = [
            v for f in failure.frames for n, v in f.values.items() if n in ("self", "dataset") and v.kind == "dataset"
        ]
        kind = str(sets[-1].type) if sets else ""
    definition = next(((s, c) for s in failure.all_sources() for c in s.classes(kind)), None)
    if not method or definition is None or (kind in _own_modules(failure) and method in ("__iter__", "__len__")):
        return None
    source, owner = definition
    bases = [source.code(base) for base in owner.bases]
    own = [node.name for node in owner.body if isinstance(node, ast.FunctionDef)]
    nested = [n for n in ast.walk(owner) if isinstance(n, ast.FunctionDef) and n.name == method and n not in owner.body]
    near = difflib.get_close_matches(method, [name for name in own if not hasattr(object, name)], 1, 0.75)
    text = f"`{kind}` ({source.place(owner)}) has no `{method}`"
    if method == "__len__" and any("Iterable" in base for base in bases):
        return Explanation(
            f"`{kind}` ({source.place(owner)}) is an IterableDataset, a stream whose length nobody knows, and "
            f"{failure.frame.place if failure.frame else 'the loader'} asks for it.",
            "Define `__len__` in it if the number of samples is known, or count the steps in another way (a fixed "
            "number for each epoch).",
        )
    if nested:
        line = source.place(nested[0])
        return Explanation(f"{text}: it is indented into another function ({line}).", "Move it one level to the left.")
    if near:
        function = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == near[0])
        edit = replaced(source, function.lineno, near[0], method)
        return Explanation(
            f"{text}, but a method `{near[0]}` ({source.place(function)}).", f"Rename it to `{method}`.", edit
        )
    return Explanation(
        f"{text}, which {failure.frame.place if failure.frame else 'this line'} needs; it defines "
        f"{listed([f'`{name}`' for name in own]) or 'no methods'}.",
        f"Define `{method}` in it"
        + (
            ", with the number of samples: `return len(self.samples)`."
            if method == "__len__"
            else ", or use one of these."
        ),
    )


def _single_argument(kind: str, failure: Failure) -> Explanation | None:
    """Explain the only argument of a call that is a single value where a library loops over several."""
    place = failing_call(failure, failure.frame)
    if place is None or kind not in (*SINGLE, *_built(failure)):
        return None
    source, call = place
    arguments = [(None, node) for node in call.args] + [(k.arg, k.value) for k in call.keywords if k.arg]
    matching = [(name, node) for name, node in arguments if _static_type(failure, source, node) == kind]
    value = failure.value(dotted(matching[0][1])) if matching else None
    if len(matching) != 1 or kind in _own_modules(failure) or (value is not None and value.kind == "module"):
        return None
    name, node = matching[0]
    code = source.code(node)
    written = f"{name}={code}" if name else code
    return Explanation(
        f"`{written}` in `{source.code(call)[:120]}` is a single {kind}, and several values are needed there, as a "
        f"list.",
        f"Put it into a list: `{f'{name}=' if name else ''}[{code}]`.",
        changed(source, node, f"[{code}]") if failure.source(failure.frame) is source else None,
    )


SINGLE = ("int", "float", "bool")


def _built(failure: Failure) -> set[str]:
    """Return the names of the classes that the program makes objects of."""
    return {
        last_name(n.func)
        for s in failure.all_sources()
        for n in s.nodes
        if isinstance(n, ast.Call) and last_name(n.func)
    }


def _static_type(failure: Failure, source: Source, node: ast.expr) -> str:
    """Return the type of an argument: of its live value, of a literal, of the class that is called."""
    live = live_type(failure, node)
    if live or isinstance(node, ast.Constant):
        return live or type(node.value).__name__  # type: ignore[attr-defined]
    definition = origin(failure, source, node, failure.frame).node
    return last_name(definition.func) if isinstance(definition, ast.Call) else ""


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
        if kind == "NoneType" and text.endswith(".grad"):
            return parameter_without_gradient(failure, f"`{text}` is None in `{code}` ({frame.place})", text)
        if kind == "NoneType":
            where = origin(failure, place[0], node, frame) if source is not None else None
            source_of = (
                f" It comes from `{where.code}` ({where.place})."
                if where is not None and where.node is not node
                else ""
            )
            unset = where is not None and isinstance(where.node, ast.Constant)
            return Explanation(
                f"`{text}` is None in `{code}` ({frame.place}).{source_of}{no_return(failure, where)}",
                f"Begin with a number (`{text} = 0`, `float('inf')` for a smallest value), or test `if {text} is None`."
                if unset
                else "Return a value from that function on every path, or check for None before this line.",
            )
        other = types[0] if kind == types[1] else types[1]
        if kind == "str" and isinstance(node, ast.Constant | ast.JoinedStr) and "str" not in other:
            whole = sides[1] if node is sides[0] else sides[0]
            return Explanation(
                f"`{code}` ({frame.place}) joins a text and a value of type {other}: `+` joins texts only.",
                f"Convert it, `str({place[0].code(whole)})`, or use an f-string.",
            )
        if kind == "str" and "str" not in other:
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


def type_of(failure: Failure, node: ast.expr) -> str:
    value = failure.value(dotted(node)) if dotted(node) else None
    return str(value.type) if value is not None else ""


def no_return(failure: Failure, where: Origin | None) -> str:
    """Name a function of the program that returns nothing, or the path through it that does."""
    for source, function in called_functions(failure, where) if where is not None else ():
        why = why_none(source, function)
        if why:
            outer = source.class_at(function.lineno)
            name = f"{outer.name + '.' if outer else ''}{function.name}"
            return f" `{name}` ({source.place(function)}) returns None{why}."
    return ""


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


LIBRARIES = (
    "torch torchvision torchaudio numpy pandas scipy sklearn matplotlib seaborn PIL cv2 transformers datasets "
    "tokenizers accelerate timm einops lightning pytorch_lightning torchmetrics albumentations tqdm wandb tensorboard "
    "yaml requests hydra omegaconf evaluate peft keras tensorflow jax"
).split()


def _shadowing_file(failure: Failure, module: str) -> str:
    """Return a file of the program that has the name of a library which it imports."""
    name = module.partition(".")[0]
    if name not in LIBRARIES and name not in sys.stdlib_module_names:
        return ""  # a module of the program itself
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
