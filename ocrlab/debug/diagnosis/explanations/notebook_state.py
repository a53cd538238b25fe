"""Faults of notebooks: cells that were not run, run twice or in another order, names that a later cell took over."""

from __future__ import annotations

import ast
import builtins

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, explains
from ocrlab.debug.diagnosis.explanations.failure import Cell, Failure
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.source import Source, dotted, last_name

INSTALL = ("pip install", "conda install", "mamba install", "pip3 install", "uv pip install")


def failing_cell(failure: Failure) -> Cell | None:
    """Return the cell that raised."""
    return next((cell for cell in reversed(failure.cells) if cell.failed), None)


def definitions(cell: Cell, name: str) -> list[ast.AST]:
    """Return what gives a name a value at the top level of a cell."""
    result: list[ast.AST] = []
    for node in _top_level(cell.source):
        if (
            (isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and node.name == name)
            or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
            or (
                isinstance(node, ast.Import | ast.ImportFrom)
                and any((alias.asname or alias.name.partition(".")[0]) == name for alias in node.names)
            )
        ):
            result.append(node)
    return result


def _top_level(source: Source) -> list[ast.AST]:
    todo: list[ast.AST] = list(source.tree.body)
    result: list[ast.AST] = []
    while todo:
        node = todo.pop(0)
        result.append(node)
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return result


def run_before(failure: Failure, cell: Cell) -> list[Cell]:
    """Return the cells that ran before one, in the order in which they ran."""
    return sorted(
        (
            c
            for c in failure.cells
            if c.count is not None and c is not cell and (cell.count is None or c.count < cell.count)
        ),
        key=lambda c: c.count or 0,
    )


@explains("name")
def name_not_defined(fact: Fact, failure: Failure) -> Explanation | None:
    """A name that no cell has defined yet in this session."""
    cell = failing_cell(failure)
    name = str(fact.name)
    if cell is None:
        return _name_in_script(name, failure)
    defining = [c for c in failure.cells if definitions(c, name)]
    later = [c for c in defining if c.number > cell.number]
    earlier = [c for c in defining if c.number < cell.number]
    not_run = [c for c in earlier if c.count is None or (cell.count is not None and c.count > cell.count)]
    if cell in defining and not earlier and not later:
        return Explanation(
            f"`{name}` is used in {cell.name} before the line that defines it, and no other cell does.",
            f"Define `{name}` before that line.",
        )
    if not_run:
        where = not_run[-1]
        return Explanation(
            f"`{name}` is defined in {where.name}, which was not run in this session before {cell.name}.",
            f'Run cell {where.number} first (or "Run All Above"), then this cell.',
        )
    if earlier and earlier[-1].failed:
        return Explanation(
            f"`{name}` is defined in {earlier[-1].name}, but that cell failed before it got there.",
            f"Correct cell {earlier[-1].number} and run it again.",
        )
    if later:
        where = later[0]
        return Explanation(
            f"`{name}` is defined further down, in {where.name}; {cell.name} runs before it.",
            f'Move cell {where.number} above this one, or run it first; check with "Restart and Run All".',
        )
    if earlier:
        return Explanation(
            f"`{name}` is defined in {earlier[-1].name}, but the kernel does not have it: it was restarted after "
            "that cell ran, or `del` or `%reset` removed it.",
            f"Run cell {earlier[-1].number} again.",
        )
    used = sorted(
        {
            node.id
            for c in failure.cells
            for node in _top_level(c.source)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        | {
            alias.asname or alias.name
            for c in failure.cells
            for node in _top_level(c.source)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
    )
    return _nearest(name, used, f"No cell of this notebook defines `{name}`")


def _nearest(name: str, names: list[str], start: str) -> Explanation:
    import difflib

    common = {
        "np": "import numpy as np",
        "pd": "import pandas as pd",
        "plt": "import matplotlib.pyplot as plt",
        "torch": "import torch",
        "nn": "from torch import nn",
        "F": "import torch.nn.functional as F",
        "os": "import os",
        "tqdm": "from tqdm import tqdm",
        "Path": "from pathlib import Path",
        "math": "import math",
        "random": "import random",
        "time": "import time",
        "json": "import json",
        "copy": "import copy",
        "DataLoader": "from torch.utils.data import DataLoader",
        "Image": "from PIL import Image",
        "transforms": "from torchvision import transforms",
        "optim": "from torch import optim",
        "sns": "import seaborn as sns",
    }
    if name in common:
        return Explanation(f"{start}: its import is missing.", f"Add `{common[name]}`.")
    near = difflib.get_close_matches(name, names, 1, 0.75)
    if near:
        return Explanation(f"{start}; there is a `{near[0]}`.", f"Write `{near[0]}`, if that is meant.")
    return Explanation(
        f"{start}; it was defined in a cell that has been deleted or in another session.",
        f"Define `{name}`, or import it.",
    )


def _name_in_script(name: str, failure: Failure) -> Explanation | None:
    source, frame = failure.source(failure.frame), failure.frame
    if source is None or frame is None:
        return None
    if "local variable" in failure.message:
        function = source.function_at(frame.line)
        binding = (
            source.binding(name, 10**9) if function is None else next(iter(source._bindings(function, name)), None)
        )
        where = f" ({source.place(binding.line)})" if binding else ""
        return Explanation(
            f"`{name}` is assigned inside of `{function.name if function else 'the function'}`{where}, which makes "
            f"it local there; {frame.place} reads it on a path where that has not happened.",
            f"Give `{name}` a value before the branch or the loop; for a name of the module write `global {name}`.",
        )
    names = sorted(
        {node.id for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {node.name for node in source.nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    )
    later = source.binding(name, 10**9)
    if later is not None and later.line > frame.line:
        return Explanation(
            f"`{name}` is defined at {source.place(later.line)}, after {frame.place} uses it.",
            "Move the definition up.",
        )
    return _nearest(name, names, f"{source.name} does not define `{name}` ({frame.place})")


@explains("not_callable")
def name_taken_over(fact: Fact, failure: Failure) -> Explanation | None:
    """A function or a builtin whose name a cell has given to something else."""
    cell = failing_cell(failure)
    if cell is None:
        return None
    frame = failure.frame
    line = cell.source.statement_at(frame.line) if frame is not None and frame.cell == cell.count else None
    calls = [dotted(node.func) for node in ast.walk(line) if isinstance(node, ast.Call)] if line else []
    order = [*run_before(failure, cell), cell]
    for name in calls:
        if not name or "." in name:
            continue
        takers = [
            c
            for c in order
            if any(
                not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
                for node in definitions(c, name)
            )
        ]
        makers = [
            c
            for c in order
            if any(
                isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
                for node in definitions(c, name)
            )
        ]
        if not takers:
            continue
        taker = takers[-1]
        node = next(n for n in definitions(taker, name) if isinstance(n, ast.Name))
        statement = (
            taker.source.code(taker.source.statement_at(node.lineno))
            if taker.source.statement_at(node.lineno)
            else name
        )
        again = (
            f"then run cell {makers[-1].number} again to get the function back, and this cell"
            if makers
            else f"run `del {name}` (or restart the kernel), and run this cell again"
        )
        if hasattr(builtins, name) and not makers:
            return Explanation(
                f"`{name}` is no longer Python's builtin: cell {taker.number} has overwritten it with "
                f"`{statement}`, which hides the builtin for the rest of the session.",
                f"Rename the variable in cell {taker.number}, {again}.",
            )
        if makers:
            return Explanation(
                f"`{name}` is no longer the function of cell {makers[-1].number}: cell {taker.number} has "
                f"overwritten it with `{statement}` (now a {fact.type}).",
                f"Rename the variable in cell {taker.number}, {again}.",
            )
        return Explanation(
            f"`{name}` is a {fact.type}: cell {taker.number} made it with `{statement}`.",
            f"Use another name in cell {taker.number}, or index it with square brackets.",
        )
    return None


@explains("removed_api", "no_attribute")
def upgraded_without_restart(fact: Fact, failure: Failure) -> Explanation | None:
    """A package that a cell has upgraded while the old one was imported."""
    cell = failing_cell(failure)
    if cell is None:
        return None
    installs = [c for c in run_before(failure, cell) if any(word in c.text for word in INSTALL)]
    if not installs:
        return None
    install = installs[-1]
    imported = [
        c
        for c in run_before(failure, install)
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(c.source.tree))
    ]
    if not imported:
        return None
    line = next(text.strip() for text in install.text.splitlines() if any(word in text for word in INSTALL))
    module = str(fact.module or fact.type).partition(".")[0]
    text = (
        f"Cell {install.number} (`{line}`) upgraded packages on disk, but the running kernel still holds the old "
        f"`{module}` that cell {imported[0].number} had imported before: old and new modules are mixed."
    )
    return Explanation(
        text, "Restart the kernel after the install cell, and run the imports again. Put installs into the first cell."
    )


@explains("index")
def figure_of_an_earlier_cell(fact: Fact, failure: Failure) -> Explanation | None:
    """A current figure that the inline backend has closed at the end of its cell."""
    cell = failing_cell(failure)
    frame = failure.frame
    if cell is None or frame is None:
        return None
    statement = cell.source.statement_at(frame.line)
    current = (
        [node for node in ast.walk(statement) if isinstance(node, ast.Call) and last_name(node.func) in ("gca", "gcf")]
        if statement
        else []
    )
    drawn_in = [
        c
        for c in run_before(failure, cell)
        if any(isinstance(n, ast.Call) and dotted(n.func).startswith("plt.") for n in ast.walk(c.source.tree))
    ]
    here = [
        n
        for n in ast.walk(cell.source.tree)
        if isinstance(n, ast.Call)
        and dotted(n.func) in ("plt.plot", "plt.subplots", "plt.imshow", "plt.scatter", "plt.bar")
        and n.lineno < frame.line
    ]
    if not current or not drawn_in or here:
        return None
    code = cell.source.code(current[0])
    text = (
        f"`{code}` makes a new, empty figure here: the notebook shows and closes every figure at the end of its "
        f"cell, so that of cell {drawn_in[-1].number} is gone."
    )
    return Explanation(
        text,
        "Draw and change the curve in the same cell, or keep the objects: `fig, ax = plt.subplots()` in cell "
        f"{drawn_in[-1].number} and `ax.lines[0]` here.",
    )


def reassigned(failure: Failure) -> str:
    """Say which cell has changed a name of the failing line since another one made it."""
    cell, frame = failing_cell(failure), failure.own_frames[0] if failure.own_frames else None
    statement = cell.source.statement_at(frame.line) if cell is not None and frame is not None else None
    if cell is None or statement is None:
        return ""
    names = dict.fromkeys(
        node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    for name in names:
        assigning = [c for c in run_before(failure, cell) if definitions(c, name)]
        if len(assigning) < 2:
            continue
        first, last = assigning[0], assigning[-1]
        node = definitions(last, name)[-1]
        code = last.source.code(last.source.statement_at(node.lineno))  # type: ignore[attr-defined]
        if not isinstance(node, ast.Import | ast.ImportFrom):
            return (
                f"`{name}` is not what cell {first.number} made any more: cell {last.number} has given it "
                f"another value (`{code[:100]}`)."
            )
    return ""


CHANGES_ITSELF = ("pop", "popitem", "remove", "next", "squeeze_", "append", "insert", "drop")


@explains(
    "key",
    "no_attribute",
    "dtype",
    "unsupported_dtype",
    "used_up",
    "already_converted",
    "index",
    "value_missing",
    "unpack",
)
def cell_run_twice(fact: Fact, failure: Failure) -> Explanation | None:
    """A cell that uses up or changes what it reads, and that was run again."""
    cell = failing_cell(failure)
    if cell is None or cell.count is None or failure.frame is None:
        return None
    counts = {c.count for c in failure.cells}
    missing = [number for number in range(1, cell.count) if number not in counts]
    if not missing:
        return None  # every run belongs to a cell: none has run twice
    for node in ast.walk(cell.source.tree):
        if (
            not isinstance(node, ast.stmt)
            or isinstance(node, ast.FunctionDef | ast.ClassDef)
            or node.lineno > failure.frame.line
        ):
            continue
        names = (
            [dotted(t) for t in node.targets if dotted(t)]
            if isinstance(node, ast.Assign | ast.Delete)
            else [dotted(node.target)]
            if isinstance(node, ast.AugAssign)
            else []
        )
        read = {
            dotted(part) for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        }
        calls = [
            part for part in ast.walk(node) if isinstance(part, ast.Call) and last_name(part.func) in CHANGES_ITSELF
        ]
        changed = [name for name in names if name in read or isinstance(node, ast.AugAssign)]
        changed += [
            dotted(part.func.value) if isinstance(part.func, ast.Attribute) else dotted(part.args[0])
            for part in calls
            if isinstance(part.func, ast.Attribute) or part.args
        ]
        name = next((n for n in changed if n), "")
        makers = [c for c in run_before(failure, cell) if definitions(c, name)] if name else []
        if makers and isinstance(node, ast.Assign | ast.AugAssign | ast.Delete | ast.Expr):
            text = (
                f"`{cell.source.code(node)}` changes `{name}` in place each time that cell {cell.number} runs. The "
                f"execution count In [{missing[-1]}] belongs to no cell any more, so a cell has run twice: this run "
                "finds what the first one left."
            )
            return Explanation(
                text,
                f"Run cell {makers[-1].number} again before this one, or give the result a new name, so that the "
                "cell can be run again.",
            )
    return None
