"""Names that have no value: misspelled, not imported, local to another function, not assigned on this path."""

from __future__ import annotations

import ast
import builtins
import difflib
import os
import sys
from pathlib import Path

from ocrlab.debug.diagnosis.explanations.explanation import Edit, Explanation, count, explains, listed, replaced
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.model_code import LIBRARIES
from ocrlab.debug.diagnosis.explanations.origins import failing_call
from ocrlab.debug.diagnosis.explanations.source import (
    Source,
    argument,
    default_value,
    dotted,
    last_name,
    own_nodes,
    parameters,
)

IMPORTS = {
    "np": "import numpy as np",
    "pd": "import pandas as pd",
    "plt": "import matplotlib.pyplot as plt",
    "sns": "import seaborn as sns",
    "nn": "from torch import nn",
    "optim": "from torch import optim",
    "F": "import torch.nn.functional as F",
    "cv2": "import cv2",
    "tqdm": "from tqdm import tqdm",
    "Path": "from pathlib import Path",
    "Image": "from PIL import Image",
    "transforms": "from torchvision import transforms",
    "models": "from torchvision import models",
    "torchvision": "import torchvision",
    "torch": "import torch",
    "numpy": "import numpy",
    "DataLoader": "from torch.utils.data import DataLoader",
    "Dataset": "from torch.utils.data import Dataset",
    "TensorDataset": "from torch.utils.data import TensorDataset",
    "random_split": "from torch.utils.data import random_split",
    "Subset": "from torch.utils.data import Subset",
    "defaultdict": "from collections import defaultdict",
    "Counter": "from collections import Counter",
    "OrderedDict": "from collections import OrderedDict",
    "partial": "from functools import partial",
    "deepcopy": "from copy import deepcopy",
    "train_test_split": "from sklearn.model_selection import train_test_split",
    "accuracy_score": "from sklearn.metrics import accuracy_score",
    "StandardScaler": "from sklearn.preprocessing import StandardScaler",
    "pad_sequence": "from torch.nn.utils.rnn import pad_sequence",
    "Optional": "from typing import Optional",
    "List": "from typing import List",
} | {name: f"import {name}" for name in "os sys math random time json copy re glob pickle csv shutil argparse".split()}


def nearest_name(name: str, names: list[str], start: str) -> Explanation:
    """Return the explanation of a name that nothing defines: an import, or a name of similar spelling."""
    if name in IMPORTS:
        return Explanation(f"{start}: its import is missing.", f"Add `{IMPORTS[name]}`.")
    near = [other for other in names if other.lower() == name.lower() and other != name] or difflib.get_close_matches(
        name, [other for other in names if other != name], 1, 0.75
    )
    if near:
        return Explanation(f"{start}; there is a `{near[0]}`.", f"Write `{near[0]}`, if that is meant.")
    return Explanation(f"{start}, nor is it imported.", f"Define `{name}` before this line, or import it.")


@explains("name")
def name_in_script(fact: Fact, failure: Failure) -> Explanation | None:
    """A name that a program reads before or without giving it a value."""
    name, source, frame = str(fact.name), failure.source(failure.frame), failure.frame
    if source is None or frame is None or frame.cell is not None:
        return None
    if "local variable" in failure.message:
        return _unbound(name, failure, source, frame)
    owner = source.class_at(frame.line)
    if owner is not None and (source.attribute(owner, name) or any(name == f.name for f in _methods(owner))):
        line = frame.code
        return Explanation(
            f"`{name}` is an attribute of the object (`{owner.name}`), and {frame.place} reads a plain name, which "
            "is not defined.",
            f"Write `self.{name}`.",
            _with_self(source, frame, name, line),
        )
    later = next((b for b in reversed(source._bindings(source.tree, name)) if b.line > frame.line), None)
    defined = [n for n in source.tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name]
    line_of = later.line if later is not None else defined[0].lineno if defined else None
    if line_of is not None and line_of > frame.line and frame.function == "<module>":
        return Explanation(
            f"`{name}` is defined at {source.place(line_of)}, after {frame.place} uses it: a file runs from top to "
            f"bottom.",
            "Move the definition above its first use.",
        )
    if line_of is not None:
        return Explanation(
            f"`{name}` is defined at {source.place(line_of)}, which had not run yet when {frame.place} needed it.",
            "Move the definition above the call that uses it (out of `if __name__ == ...`), or pass it as an argument.",
        )
    explanation = local_name(name, source, frame.place, source.function_at(frame.line))
    if explanation is not None:
        return explanation
    names = sorted(
        {node.id for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {node.name for node in source.nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        | {argument.arg for node in source.nodes if isinstance(node, ast.arguments) for argument in node.args}
        | {a.asname or a.name for n in source.nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    )
    names += [other for other in dir(builtins) if other[0].islower()]
    return nearest_name(name, names, f"{source.name} does not define `{name}` ({frame.place})")


def local_name(name: str, source: Source, place: str, here: ast.FunctionDef | None = None) -> Explanation | None:
    """Return the explanation of a name that is local to another function than `here`; None where none has it."""
    for function in (n for n in source.nodes if isinstance(n, ast.FunctionDef) and n is not here):
        bound = next(iter(source._bindings(function, name)), None)
        if bound is not None or name in parameters(function):
            at = source.place(bound.line if bound else function)
            return Explanation(
                f"`{name}` is a local variable of `{function.name}` ({at}), and {place} is outside of that function.",
                f"Return it there and take it here (`{name} = {function.name}(...)`), or pass it as an argument.",
            )
    return None


def _methods(owner: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in owner.body if isinstance(node, ast.FunctionDef)]


def _with_self(source: Source, frame: Frame, name: str, line: str) -> Edit | None:
    return replaced(source, frame.line, name, f"self.{name}") if line.count(name) == 1 else None


def _unbound(name: str, failure: Failure, source: Source, frame: Frame) -> Explanation | None:
    """A name that is local to a function because the function assigns it, on a path that was not taken."""
    function = source.function_at(frame.line)
    if function is None:
        return None
    bindings = sorted(source._bindings(function, name), key=lambda binding: binding.line)
    imports = [
        n
        for n in own_nodes(function)
        if isinstance(n, ast.Import | ast.ImportFrom) and any((a.asname or a.name) == name for a in n.names)
    ]
    line = bindings[0].line if bindings else imports[0].lineno if imports else None
    if line is None:
        return None
    start = f"`{name}` gets its value in `{function.name}` at {source.place(line)}"
    outside: list[object] = [*source._bindings(source.tree, name)] or [
        n
        for n in source.tree.body
        if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
        and name in [getattr(n, "name", ""), *((a.asname or a.name) for a in getattr(n, "names", ()))]
    ]
    if outside and line >= frame.line:
        return Explanation(
            f"{start}, which makes it a local variable of the whole function: {frame.place} does not see the "
            f"`{name}` of "
            "the module and reads the local one before it has a value.",
            f"Give the local variable another name, pass `{name}` as an argument, or declare `global {name}` at the "
            f"top of `{function.name}`.",
        )
    around = [
        n
        for n in ast.walk(function)
        if isinstance(n, ast.For | ast.While | ast.If | ast.Try | ast.With)
        and n.lineno <= line <= (n.end_lineno or 0)
        and not n.lineno <= frame.line <= (n.end_lineno or 0)
    ]
    block = max(around, key=lambda n: n.lineno, default=None)
    blocks = [n for n in around if isinstance(n, ast.For | ast.While)]
    if blocks and not isinstance(block, ast.If | ast.Try):
        block = blocks[0]
    if isinstance(block, ast.For):
        looped = source.code(block.iter)
        value = failure.value(dotted(block.iter))
        empty = " is empty" if value is not None and value.length == 0 else " had nothing to give"
        return Explanation(
            f"{start}, inside of the loop `for {source.code(block.target)} in {looped}` ({source.place(block)}), "
            f"whose body never ran: `{looped}`{empty}.",
            f"Look at why `{looped}` is empty, and give `{name}` a value before the loop.",
        )
    if isinstance(block, ast.While):
        return Explanation(
            f"{start}, inside of `while {source.code(block.test)}`, whose body never ran.",
            f"Give `{name}` a value before the loop.",
        )
    if isinstance(block, ast.If):
        tests, node = [source.code(block.test)], block
        outer = [n for n in around if isinstance(n, ast.If)]
        node = min(outer, key=lambda n: n.lineno)
        tests = [source.code(node.test)]
        while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            node = node.orelse[0]
            tests.append(source.code(node.test))
        conditions = " or ".join(f"`{test}`" for test in tests)
        operands = {n.id for test in tests for n in ast.walk(ast.parse(test, mode="eval")) if isinstance(n, ast.Name)}
        listing = ", ".join(
            f"`{n}` is {v.text}" for n in sorted(operands) if (v := failure.value(n)) is not None and v.text is not None
        )
        return Explanation(
            f"{start}, only if {conditions} holds, and here none does{f' ({listing})' if listing else ''}.",
            f"Add an `else` that gives `{name}` a value or raises an error that names the unexpected case.",
        )
    if isinstance(block, ast.Try):
        return Explanation(
            f"{start}, inside of `try` ({source.place(block)}); an error there was caught before it got to that "
            f"line, and {frame.place} goes on without `{name}`.",
            "Handle the error so that the function ends there (`raise` or `return`), or set a value in `except`.",
        )
    return Explanation(
        f"{start}, and {frame.place} reads it before.",
        f"Give `{name}` a value before this line, or rename one of them.",
    )


# What a package is called where it is installed from, if that is another name than in `import`.
PACKAGES = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "bs4": "beautifulsoup4",
    "dotenv": "python-dotenv",
    "pycocotools": "pycocotools",
    "pytorch_lightning": "lightning",
    "attr": "attrs",
}
SKIPPED = ("site-packages", "node_modules", "__pycache__", "venv", "data", "runs", "wandb")
MAX_FILES = 2000  # files of the program's folder among which a module is looked for


@explains("removed_api", general=True)
def import_that_fails(fact: Fact, failure: Failure) -> Explanation | None:
    """A module that is missing, files that import each other, or a name that a module does not define."""
    frame, module, name = failure.frame, str(fact.module), str(fact.attribute or "")
    if frame is None or ("No module named" not in failure.message and not name):
        return None
    code = frame.code
    if "partially initialized" in failure.message:
        frames = failure.own_frames
        stem = Path(frame.file).stem
        if len(frames) > 1 and stem in sys.stdlib_module_names:
            return Explanation(
                f"{frame.file} hides the standard library's `{stem}`: another library imported it in place of that, "
                f"and it imports `{module}`, which was still being imported.",
                f"Rename {Path(frame.file).name} (and remove its `__pycache__`).",
            )
        start = next((i for i, f in enumerate(frames) if Path(f.file).stem == module.rpartition(".")[2]), 0)
        circle = " imports ".join(list(dict.fromkeys(f.place for f in frames[start:]))[-4:])
        return Explanation(
            f"The files import each other in a circle: {circle} imports {module}, so `{module}` is not "
            f"complete when `{code}` ({frame.place}) wants `{name}` from it.",
            "Move what both need into a third file, or put one of the imports inside of the function that uses it.",
        )
    if name:
        return _no_such_name(failure, frame, module, name)
    if "is not a package" in failure.message:
        return None
    top = module.partition(".")[0]
    here = Path(frame.file).parent
    file = _module_file(here, module) if frame.cell is None else None
    if file is not None:
        return Explanation(
            f"`{code}` ({frame.place}) finds no module `{module}`: Python looks in the folder of the script that "
            f"was started and among the installed packages, and the file is {file}.",
            f"Start the program in the folder above it (`python -m package.script` in {file.parent.parent}), or "
            "install the project with `pip install -e .`.",
        )
    near = difflib.get_close_matches(top, [*sys.stdlib_module_names, *PACKAGES, *LIBRARIES], 1, 0.8)
    if near and near[0] != top:
        return Explanation(
            f"There is no module `{module}` ({frame.place}); there is one called `{near[0]}`.",
            f"Write `{near[0]}`, if that is meant.",
            replaced(failure.source(frame), frame.line, top, near[0]),
        )
    package = PACKAGES.get(top, top.replace("_", "-"))
    other = f" It is called `{package}` there." if package != top else ""
    return Explanation(
        f"`{code}` ({frame.place}) imports `{module}`, which is not installed in the Python that runs this "
        f"program.{other}",
        f"Install it for that Python: `python -m pip install {package}`; a module of your own has to lie beside the "
        f"script.",
    )


def _module_file(folder: Path, module: str) -> Path | None:
    """Return the file of a module in the folder of a script, beside it or below; a bounded search."""
    parts, visited = tuple(module.split(".")), 0
    for place, folders, files in os.walk(folder.parent):
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and name not in SKIPPED]
        visited += len(files) + 1
        if visited > MAX_FILES:
            return None
        if f"{parts[-1]}.py" in files and (*Path(place).parts, parts[-1])[-len(parts) :] == parts:
            return Path(place, f"{parts[-1]}.py")
    return None


def _no_such_name(failure: Failure, frame: Frame, module: str, name: str) -> Explanation | None:
    """A name that a module of the program does not define."""
    source = next((s for s in failure.all_sources() if Path(s.file).stem == module.rpartition(".")[2]), None)
    file = Path(frame.file).parent / f"{module.replace('.', '/')}.py"
    if source is None and frame.cell is None and file.is_file():
        source = Source(file.read_text(encoding="utf-8", errors="replace")[:1_000_000], str(file))
    if source is None:
        return None
    names = [n.name for n in source.tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    names += [n.id for n in source.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    near = difflib.get_close_matches(name, names, 1, 0.6)
    shown = (
        f"; it defines `{near[0]}`" if near else f"; it defines {listed([f'`{n}`' for n in dict.fromkeys(names)], 6)}"
    )
    return Explanation(
        f"`{module}` ({source.file}) has no `{name}`, which {frame.place} imports{shown if names else ''}.",
        f"Import `{near[0]}`." if near else f"Define `{name}` in {source.name}, or import another name.",
        replaced(failure.source(frame), frame.line, name, near[0]) if near else None,
    )


CHANGES = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "remove"}


def shared_default(failure: Failure) -> Explanation | None:
    """Return what is wrong where the failing line uses a list or dict that is a default value and is changed."""
    frame = failure.frame
    source = failure.source(frame)
    function = source.function_at(frame.line) if source and frame else None
    if frame is None or source is None or function is None:
        return None
    used = {
        n.id for statement in source.statements_at(frame.line) for n in ast.walk(statement) if isinstance(n, ast.Name)
    }
    for name in sorted(used & set(parameters(function))):
        default, value = default_value(function, name), frame.values.get(name)
        empty = (
            isinstance(default, ast.Call) and last_name(default.func) in ("list", "dict", "set") and not default.args
        )
        if not (isinstance(default, ast.List | ast.Dict | ast.Set) or empty) or name in ("cache", "memo"):
            continue
        changes = [
            part
            for part in own_nodes(function)
            if (
                isinstance(part, ast.Call)
                and isinstance(part.func, ast.Attribute)
                and part.func.attr in CHANGES
                and dotted(part.func.value) == name
            )
            or (isinstance(part, ast.AugAssign) and dotted(part.target) == name)
            or (
                isinstance(part, ast.Assign)
                and any(isinstance(t, ast.Subscript) and dotted(t.value) == name for t in part.targets)
            )
        ]
        rebound = any(
            isinstance(part, ast.Assign) and any(dotted(t) == name for t in part.targets)
            for part in own_nodes(function)
        )
        outer = failure.own_frames[-2] if len(failure.own_frames) > 1 else None
        call = failing_call(failure, outer, function.name)
        passed = call is not None and argument(call[1], parameters(function).index(name), name) is not None
        if not changes or rebound or passed:
            continue
        code = source.code(default)
        holds = f", and it holds {count(value.length, 'item')} now" if value is not None and value.length else ""
        change_call = changes[0]
        method = (
            f".{change_call.func.attr}(...)"
            if isinstance(change_call, ast.Call) and isinstance(change_call.func, ast.Attribute)
            else ""
        )
        change = f"{name}{method}" if method else source.code(change_call)
        return Explanation(
            f"`{name}={code}` is a default value of `{function.name}` ({source.place(function)}): Python makes it once "
            f"and all calls share it. `{change}` ({source.place(change_call)}) changes it in every call{holds}.",
            f"Use `{name}=None` as the default and make it in the function: `if {name} is None: {name} = {code}`.",
        )
    return None
