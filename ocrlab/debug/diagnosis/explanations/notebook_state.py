"""Faults of notebooks: cells that were not run, run twice or in another order, names that a later cell took over."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from ocrlab.debug.diagnosis.explanations.explanation import ANY, Explanation, explains, listed
from ocrlab.debug.diagnosis.explanations.explanation import changed as edit
from ocrlab.debug.diagnosis.explanations.failure import Cell, Failure
from ocrlab.debug.diagnosis.explanations.messages import INTEGER, Fact, facts
from ocrlab.debug.diagnosis.explanations.names import local_name, nearest_name
from ocrlab.debug.diagnosis.explanations.origins import own_statement_nodes
from ocrlab.debug.diagnosis.explanations.source import (
    Source,
    constant,
    dotted,
    last_name,
    own_nodes,
    parameters,
    root,
)

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


@explains("exit")
def arguments_of_the_kernel(fact: Fact, failure: Failure) -> Explanation | None:
    """A parser of command-line arguments in a notebook, which reads those of the kernel."""
    for cell in failure.cells:
        for call in cell.source.calls("parse_args"):
            if not call.args and not call.keywords:
                code = cell.source.code(call)
                return Explanation(
                    f"`{code}` ({cell.name}) reads `sys.argv`, and in a notebook these are the arguments of the kernel"
                    " (`-f .../kernel-....json`), which the parser does not know, so it ends the cell.",
                    f"Pass the arguments: `{code[:-1]}[])` for the defaults, or `parse_known_args()[0]`; in a notebook"
                    " plain variables serve as well.",
                    edit(cell.source, call, f"{code[:-1]}[])") if cell.failed else None,
                )
    return None


def deletes(cell: Cell, name: str) -> bool:
    """Return whether a cell deletes a name."""
    targets = [target for node in cell.source.nodes if isinstance(node, ast.Delete) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


@explains("name")
def name_not_defined(fact: Fact, failure: Failure) -> Explanation | None:
    """A name that no cell has defined yet in this session."""
    cell = failing_cell(failure)
    name = str(fact.name)
    if cell is None:
        return None
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
    deleting = next((c for c in run_before(failure, cell) if deletes(c, name)), None)
    if earlier and deleting is not None:
        return Explanation(
            f"`{name}` is defined in {earlier[-1].name}, and {deleting.name} deletes it again: `del {name}`.",
            f"Take `del {name}` out of cell {deleting.number}, or move it below its last use; run cell "
            f"{earlier[-1].number} again.",
        )
    if earlier:
        return Explanation(
            f"`{name}` is defined in {earlier[-1].name}, but the kernel does not have it: it was restarted after "
            "that cell ran, or `del` or `%reset` removed it.",
            f"Run cell {earlier[-1].number} again.",
        )
    if name == "__file__":
        return Explanation(
            "A notebook is not a file that Python runs, so it has no `__file__`.",
            "Use the folder of the notebook: `Path.cwd()`.",
        )
    for other in failure.cells:
        explanation = local_name(name, other.source, f"cell {cell.number}")
        if explanation is not None:
            return explanation
    used = sorted(
        {
            node.id
            for c in failure.cells
            if c is not cell
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
    return nearest_name(name, used, f"No cell of this notebook defines `{name}`")


@explains("no_attribute", "class_identity", "assertion")
def class_of_an_earlier_run(fact: Fact, failure: Failure) -> Explanation | None:
    """An object that was made before a cell defined its class again."""
    cell = failing_cell(failure)
    if cell is None:
        return None
    code = failure.frame.code if failure.frame is not None else ""
    before = run_before(failure, cell)
    classes = [(c, n) for c in [*before, cell] for n in c.source.tree.body if isinstance(n, ast.ClassDef)]
    named = [n.name for _, n in classes if n.name == str(fact.type) or (fact.kind != "no_attribute" and n.name in code)]
    named += [
        n.name
        for c, n in classes
        if failure.frame and c.source.class_at(failure.frame.line) is n and failure.frame.file == f"cell {c.number}"
    ]
    for name in named:
        changed = next(c for c, n in reversed(classes) if n.name == name)
        calls = [(c, call) for c in before for call in c.source.calls(name) if c.source.class_at(call.lineno) is None]
        if not calls or any((c.count or 0) >= (changed.count or 0) for c, _ in calls):
            continue
        maker, call = calls[-1]
        statement = maker.source.statement_at(call.lineno)
        target = next((dotted(t) for t in getattr(statement, "targets", ())), "")
        what = f"`{target}`" if target else "The object"
        rest = {
            "no_attribute": f", which has no `{fact.attribute}`",
            "assertion": f". `{name}` is another class now, and `isinstance` is false for the old object",
        }.get(fact.kind, f". `{name}` is another class now, and the old object is not an instance of it")
        without = ", and write `super()` without arguments" if f"super({name}" in code else ""
        return Explanation(
            f"{what} was made by `{maker.source.code(call)}` in cell {maker.number} (In[{maker.count}]), before cell "
            f"{changed.number} was run again (In[{changed.count}]) and defined the class `{name}` anew: an object "
            f"keeps the class that it was made with{rest}.",
            f"Make it again after the class: run {again(failure, maker, cell)}{without}.",
        )
    reload = next((c for c in before if "autoreload" in c.text or "reload(" in c.text), None)
    if fact.kind == "class_identity" and reload is not None:
        return Explanation(
            f"Cell {reload.number} lets modules be loaded again, and a module that is loaded again defines its classes "
            "anew: an object that was made before keeps its old class, and `super(Class, self)`, `isinstance` and "
            "pickle no longer take it for the same.",
            "Make the object again after the module was loaded, and write `super()` without arguments; restart the "
            "kernel if other objects refer to the old class.",
        )
    return None


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
    cell = failing_cell(failure)
    if cell is None:
        return ""
    for name in names_behind(failure, cell, functions=False):
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


SAME_TWICE = ("to", "float", "long", "int", "double", "half", "cuda", "cpu", "contiguous", "astype", "eval", "train")
SAME_SHAPE = (  # of the second call: of a value that the first one has returned
    *SAME_TWICE,
    *("mean", "std", "min", "max", "abs", "sqrt", "log", "log1p", "exp", "clip", "clamp", "round", "copy", "clone"),
    *("view", "reshape", "flatten", "squeeze", "detach", "fillna", "dropna", "reset_index", "sort_values", "numpy"),
)
REMOVES = ("pop", "popitem", "remove", "drop", "clear", "popleft")
ADDS = ("append", "extend", "insert", "add_module", "add_param_group", "appendleft", "write")
VALUE_KINDS = ("target_range", "table_index", "index", "target_probability", "assertion")
STALE = ("table_index", "target_range", "class_weights")
SHAPE_KINDS = (
    "matmul",
    "batched_matmul",
    "conv_channels",
    "conv_dimensions",
    "concatenate",
    "stack",
    "broadcast",
    "view",
    "dimension_range",
    "batch_size",
    "target_size",
    "target_dimensions",
    "recurrent_size",
    "normalized_shape",
    "image_axes",
)


@dataclass(frozen=True)
class Change:
    """A statement that gives a name another value or state each time that its cell runs."""

    cell: Cell
    node: ast.stmt
    name: str
    how: str  # changes, grows, removes, adds, hooks

    @property
    def code(self) -> str:
        """The statement on one line, its beginning where it is long."""
        return self.cell.source.code(self.node).partition(":\n")[0][:100]


def changes(cell: Cell, name: str) -> Iterator[Change]:
    """Yield the statements of a cell that change what a name held before the cell ran."""
    statements = [n for n in _top_level(cell.source) if isinstance(n, ast.stmt)]
    for node in sorted(statements, key=lambda n: n.lineno):
        parts = list(own_statement_nodes(node))
        reads = any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in parts)
        targets = getattr(node, "targets", None) or [t for t in [getattr(node, "target", None)] if t is not None]
        stores = any(isinstance(n, ast.Name) and n.id == name for t in targets for n in [t, *getattr(t, "elts", ())])
        value = getattr(node, "value", None)
        if isinstance(node, ast.AugAssign) and root(node.target) == name:
            yield Change(cell, node, name, "adds" if isinstance(value, ast.List | ast.ListComp) else "changes")
        elif isinstance(node, ast.Delete) and any(root(t) == name and not isinstance(t, ast.Name) for t in targets):
            yield Change(cell, node, name, "removes")
        elif stores and not reads:
            return  # from here on the name has a new value, whatever it was before
        elif stores and not _same_twice(value):
            yield Change(cell, node, name, _how(value, name))
        elif any(isinstance(t, ast.Subscript) and root(t) == name and _reads_itself(t, value) for t in targets):
            yield Change(cell, node, name, "changes")
        for call in (n for n in parts if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and not stores):
            method = call.func.attr if root(call.func) == name else ""  # type: ignore[attr-defined]
            in_place = any(k.arg == "inplace" and constant(k.value) is True for k in call.keywords)
            if method in REMOVES and (method != "drop" or in_place):
                yield Change(cell, node, name, "removes")
            elif method in ADDS or method.endswith("_hook"):
                yield Change(cell, node, name, "hooks" if method.endswith("_hook") else "adds")


def _same_twice(value: ast.AST | None) -> bool:
    """Whether an expression is only a chain of methods that change nothing the second time."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in SAME_TWICE:
        value = value.func.value
    return isinstance(value, ast.Name)


def _how(value: ast.AST | None, name: str) -> str:
    """Return what an assignment of a name to an expression of itself does."""
    called = last_name(value.func) if isinstance(value, ast.Call) else ""
    if called in ("cat", "concat", "concatenate", "vstack", "hstack", "append") or (
        isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and isinstance(value.right, ast.List)
    ):
        return "grows"
    return "removes" if called in REMOVES else "changes"


def _reads_itself(target: ast.Subscript, value: ast.AST | None) -> bool:
    wanted = ast.unparse(target)
    return any(isinstance(n, ast.Subscript) and ast.unparse(n) == wanted for n in ast.walk(value)) if value else False


def _changes_shape(change: Change) -> bool:
    value = getattr(change.node, "value", None)
    parts = list(ast.walk(value)) if value is not None else []
    calls = [last_name(n.func) for n in parts if isinstance(n, ast.Call)]
    return any(call not in SAME_SHAPE for call in calls) or any(isinstance(n, ast.Slice) for n in parts)


def names_behind(failure: Failure, cell: Cell, *, functions: bool = True) -> list[str]:
    """Return the names that the failing statement reads; of those that its cell has set before, what they were made of.

    With those that the failing lines of functions read. Their values come from earlier cells, or from an earlier run of
    this one.
    """
    frame = failure.own_frames[0] if failure.own_frames else None
    statement = (
        cell.source.statement_at(frame.line) if frame is not None and frame.file == f"cell {cell.number}" else None
    )
    if frame is None or statement is None:
        return []
    names = _loads(statement)
    for name in names:  # the list grows
        stored = [
            s
            for n in definitions(cell, name)
            if isinstance(n, ast.Name) and n.lineno < frame.line and (s := cell.source.statement_at(n.lineno))
        ]
        if stored and name not in _loads(stored[-1]) and not isinstance(stored[-1], ast.AugAssign):
            names += [other for other in _loads(stored[-1]) if other not in names]
    fresh = {name for name in names if not _from_before(cell, name, frame.line)}
    frames = failure.own_frames[1:] if functions else []
    inner = [name for part in frames for name in _global_names(failure.source(part), part.line)]
    return list(dict.fromkeys([*(name for name in names if name not in fresh), *inner]))


def _global_names(source: Source | None, line: int) -> list[str]:
    """Return the names of a notebook that a line in a function reads, also through the function's own names."""
    function = source.function_at(line) if source is not None else None
    statement = source.statement_at(line) if source is not None else None
    if source is None or function is None or statement is None:
        return []
    stored = [n for n in own_nodes(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    names = _loads(statement)
    for name in names:  # the list grows
        lines = [source.statement_at(n.lineno) for n in stored if n.id == name and n.lineno < line]
        names += [other for maker in lines if maker is not None for other in _loads(maker) if other not in names]
    own = {n.id for n in stored} | set(parameters(function))
    return [name for name in names if name not in own]


def _loads(statement: ast.stmt) -> list[str]:
    nodes = own_statement_nodes(statement)
    return list(dict.fromkeys(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)))


def _from_before(cell: Cell, name: str, line: int) -> bool:
    """Whether a name has at a line of a cell a value that comes from before this run of the cell."""
    nodes = [n for n in definitions(cell, name) if n.lineno < line]  # type: ignore[attr-defined]
    first = min(nodes, key=lambda n: n.lineno, default=None)  # type: ignore[attr-defined]
    statement = cell.source.statement_at(first.lineno) if first is not None else None  # type: ignore[attr-defined]
    return statement is None or name in _loads(statement) or isinstance(statement, ast.AugAssign)


def gone(failure: Failure, first: Cell | None, last: Cell) -> list[int]:
    """Return the execution counts between two cells that belong to no cell any more: something ran again since."""
    counts = {c.count for c in failure.cells}
    return [n for n in range(((first.count or 0) if first else 0) + 1, last.count or 0) if n not in counts]


def earlier_run(failure: Failure, maker: Cell | None, cell: Cell) -> str:
    """Say which counts show that a cell has run before since another one ran; empty where none does."""
    missing = gone(failure, maker, cell)
    if not missing:
        return ""
    below = [c for c in failure.cells if c.number > cell.number and c.count is not None and c.count < (cell.count or 0)]
    place = range(missing[0], max((c.count or 0 for c in below), default=0))
    fitting = [n for n in missing if n in place] or missing
    counts = f"In[{fitting[0]}]" + (f" to In[{fitting[-1]}]" if len(fitting) > 1 else "")
    belong = "belongs" if len(fitting) == 1 else "belong"
    last = f"cell {cell.number} last ran as In[{cell.count}]"
    if below:
        after = f"{last}, after cell {below[0].number} (In[{below[0].count}]), which stands below it"
        return f"{after}, and {counts} {belong} to no cell any more: it has run before"
    return f"{last}, and {counts} before it {belong} to no cell any more: it has run twice, unless a cell was deleted"


def again(failure: Failure, maker: Cell, cell: Cell, *others: Cell) -> str:
    """Say which cells to run again, in their order, so that this cell works."""
    stored = {n.id for n in _top_level(maker.source) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    users = [c for c in run_before(failure, cell) if maker.number < c.number < cell.number and stored & _used(c)]
    numbers = sorted({c.number for c in (maker, *others, *users)} - {cell.number})
    rest = (
        f", then cell{'s' if len(numbers) > 2 else ''} {listed([str(n) for n in numbers[1:]])}" if numbers[1:] else ""
    )
    return f"cell {numbers[0]} again{rest}" + (" and this one" if rest else ", then this one")


def _used(cell: Cell) -> set[str]:
    return {n.id for n in ast.walk(cell.source.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


@explains(ANY)
def cell_run_twice(_: Fact, failure: Failure) -> Explanation | None:
    """A cell that changes or removes something each time that it runs, where the counts show that it ran again."""
    cell = failing_cell(failure)
    if cell is None or cell.count is None:
        return None
    before = run_before(failure, cell)
    frame = failure.own_frames[0] if failure.own_frames else None
    here = cell.source.statement_at(frame.line) if frame is not None else None
    for name in names_behind(failure, cell):
        for changer in [cell, *reversed(before)]:
            maker = next((c for c in reversed(run_before(failure, changer)) if _assigned(c, name)), None)
            evidence = earlier_run(failure, maker, changer) if maker is not None else ""
            for change in changes(changer, name) if evidence else ():
                effect = _effect(failure, change, change.node is here)
                if not effect or maker is None:
                    continue
                if changer is not cell and evidence.endswith("deleted"):  # the failing cell itself may have run before
                    kinds = [f for f in facts(failure.type, failure.message) if f.kind in (*SHAPE_KINDS, *STALE)]
                    stale = next((e for f in kinds if (e := made_before_a_change(f, failure))), None)
                    if stale is not None:
                        return stale
                last = "" if changer is cell else f", cell {changer.number} once"
                return Explanation(
                    f"`{change.code}` ({changer.source.place(change.node)}) {effect} each time that cell "
                    f"{changer.number} runs, so it can run only once after cell {maker.number}, which makes `{name}`. "
                    f"By the execution counts {evidence}, and the second run started from what the first had left.",
                    f"Run cell {maker.number} again{last} and then this one. Give the result a new name, or make it "
                    f"where `{name}` is made, so that the cell can be run again.",
                )
            if _assigned(changer, name):
                break  # what earlier cells did to the name is gone
    return None


def _effect(failure: Failure, change: Change, fails_itself: bool) -> str:
    """Say what a change does, if a second one can lead to this error; else return nothing."""
    kinds = {fact.kind: fact for fact in facts(failure.type, failure.message)}
    name, key = change.name, failure.message.strip().strip("'\"")
    code = change.cell.source.code(change.node)
    if change.how in ("adds", "hooks"):
        return ""
    if "key" in kinds:
        targets = [dotted(target) for target in getattr(change.node, "targets", ())]
        removed = f"removes `{key}` from `{name}`" + (" and overwrites it" if name in targets else "")
        if f"'{key}'" in code or f'"{key}"' in code:
            return removed if change.how == "removes" else f"changes `{name}`, which then has no `{key}` any more"
        return ""
    shape = next((k for k in SHAPE_KINDS if k in kinds), None)
    if shape is not None and not fails_itself:
        return f"changes the shape of `{name}`" if _changes_shape(change) else ""
    if "no_attribute" in kinds:
        attribute = str(kinds["no_attribute"].attribute)
        return f"changes the type of `{name}`" if f".{attribute}" in code else ""
    if fails_itself or set(kinds) & {*VALUE_KINDS, "unpack", "value_missing", "already_converted", "index_dtype"}:
        return f"{'takes something out of' if change.how == 'removes' else 'changes'} `{name}`"
    return ""


@explains(ANY)
def added_twice(_: Fact, failure: Failure) -> Explanation | None:
    """A list that grows, or a hook that is registered, each time that a cell runs: there are two of each."""
    cell = failing_cell(failure)
    if cell is None:
        return None
    kinds = {f.kind for f in facts(failure.type, failure.message)}
    numbers = [int(n) for n in INTEGER.findall(failure.message.partition("\n")[0])]
    pairs = [(a, b, a // b) for a in numbers for b in numbers if 1 < b < a and a % b == 0]
    ratio = next((p for p in pairs if p[2] <= 9), None) if not kinds & {"matmul", "conv_channels"} else None
    if ratio is None and len(numbers) > 1 and not kinds & {"matmul", "conv_channels"}:
        return None
    order = [*run_before(failure, cell), cell]
    names = names_behind(failure, cell)
    for changer in reversed(order):
        stored = {n.id for n in _top_level(changer.source) if isinstance(n, ast.Name)}
        for change in (c for name in sorted(stored) for c in changes(changer, name)):
            if change.how not in ("adds", "grows", "hooks"):
                continue
            touched = (
                {change.name}
                if change.how != "hooks"
                else {change.name}
                | {
                    n.id
                    for f in ast.walk(changer.source.tree)
                    if isinstance(f, ast.FunctionDef | ast.Lambda)
                    for n in ast.walk(f)
                    if isinstance(n, ast.Name)
                }
            )
            maker = next((c for c in reversed(run_before(failure, changer)) if _assigned(c, change.name)), None)
            evidence = earlier_run(failure, maker, changer) if maker is not None else ""
            if maker is None or not evidence or not touched & set(names):
                continue
            what = "registers another hook on" if change.how == "hooks" else "adds to what is already in"
            text = (
                f"`{change.code}` ({changer.source.place(change.node)}) {what} `{change.name}` each time that cell "
                f"{changer.number} runs, and cell {maker.number} has made `{change.name}` only once. By the execution "
                f"counts {evidence}"
            )
            text += (
                f", so everything is there {ratio[2]} times: {ratio[0]} = {ratio[2]} x {ratio[1]}." if ratio else "."
            )
            last = "" if changer is cell else f", cell {changer.number} once"
            keep = (
                "Keep the handle that registering returns and call `handle.remove()` before registering again."
                if change.how == "hooks"
                else f"Begin the cell that adds with an empty `{change.name}`, so that it can be run again."
            )
            return Explanation(
                text, f"Run cell {maker.number} again for a fresh `{change.name}`{last} and then this one. {keep}"
            )
    return None


@explains("scheduler_end")
def scheduler_at_its_end(fact: Fact, failure: Failure) -> Explanation | None:
    """A learning rate schedule that an earlier run of the training cell has used up."""
    cell = failing_cell(failure)
    frame = failure.own_frames[0] if failure.own_frames else None
    if cell is None or frame is None or fact.step != fact.total + 1:
        return None
    statement = cell.source.statement_at(frame.line)
    steps = (
        [n for n in ast.walk(statement) if isinstance(n, ast.Call) and last_name(n.func) == "step"] if statement else []
    )
    for name in [root(call.func) for call in steps]:
        maker = next((c for c in reversed(run_before(failure, cell)) if _assigned(c, name)), None)
        evidence = earlier_run(failure, maker, cell) if maker is not None else ""
        assignment = _assigned(maker, name) if maker is not None else None
        if maker is None or assignment is None or not evidence or not _from_before(cell, name, frame.line):
            continue
        return Explanation(
            f"`{maker.source.code(assignment)}` ({maker.source.place(assignment)}) plans {fact.total} steps, and an "
            f"earlier run of this cell has taken all of them: {evidence}. This run goes on with the same `{name}`, at "
            f"step {fact.step}.",
            f"Run cell {maker.number} again (with it the optimizer and whatever else it makes) before you train again; "
            f"or make `{name}` at the start of this cell, so that each run has a new one.",
        )
    return None


def _assigned(cell: Cell, name: str) -> ast.stmt | None:
    """Return the last assignment of a cell to a name."""
    nodes = [node for node in definitions(cell, name) if isinstance(node, ast.Name)]
    return cell.source.statement_at(nodes[-1].lineno) if nodes else None


def _draws(cell: Cell, name: str) -> bool:
    """Return whether a cell draws a name from an iterator, as the loops do that use it too."""
    assignment = _assigned(cell, name)
    return assignment is not None and any(True for _ in cell.source.calls("next", "iter", inside=assignment))


def _changed_since(
    failure: Failure, cell: Cell, maker: Cell, name: str, steps: int = 3
) -> tuple[str, Cell, ast.stmt] | None:
    """Return which part of a name's value, itself or what it was made of, a cell has changed since it was made."""
    assignment = _assigned(maker, name)
    for part in sorted(_loads(assignment)) if assignment is not None and steps else ():
        later = [c for c in run_before(failure, cell) if (c.count or 0) > (maker.count or 0)]
        for changer in reversed(later):
            change = _assigned(changer, part) or next((c.node for c in changes(changer, part)), None)
            if change is not None:
                return part, changer, change
        source = next((c for c in reversed(run_before(failure, maker)) if _assigned(c, part)), None)
        deeper = _changed_since(failure, cell, source, part, steps - 1) if source is not None and part != name else None
        if deeper is not None:
            return deeper
    return None


def _changed_between(failure: Failure, maker: Cell, changer: Cell, change: ast.stmt) -> str:
    """Say which cell has changed what a new value was made of, after the old one was made."""
    for cell in (c for c in reversed(run_before(failure, changer)) if (c.count or 0) > (maker.count or 0)):
        for part in _loads(change):
            node = next((c for c in changes(cell, part)), None)
            if node is not None:
                verb = "added to" if node.how in ("adds", "grows") else "changed"
                return f", after cell {cell.number} (`{node.code[:80]}`, In[{cell.count}]) had {verb} `{part}`"
    return ""


@explains(*SHAPE_KINDS, *STALE)
def made_before_a_change(fact: Fact, failure: Failure) -> Explanation | None:
    """A stale value: another cell has changed what it was computed from, and its own cell was not run again."""
    cell = failing_cell(failure)
    if cell is None:
        return None
    before = run_before(failure, cell)
    numbers = {n for value in fact.values.values() for n in (value if isinstance(value, tuple) else (value,))}
    for name in names_behind(failure, cell):
        maker = next((c for c in reversed(before) if _assigned(c, name)), None)
        loop = _assigned(maker, name) if maker is not None else None
        first = next((c for c in reversed(before) if isinstance(_assigned(c, name), ast.Assign)), None)
        if maker is not None and first is not None and isinstance(loop, ast.For) and not _draws(first, name):
            head = maker.source.code(loop).partition(":")[0]
            return Explanation(
                f"The loop `{head}` of cell {maker.number} has overwritten the `{name}` of cell {first.number} "
                f"(`{first.source.code(_assigned(first, name))[:80]}`): `{name}` is now what the loop had last.",
                f"Give the loop variables of cell {maker.number} other names, run cell {first.number} again to get "
                f"`{name}` back, and then this cell.",
            )
        changed = _changed_since(failure, cell, maker, name) if maker is not None else None
        if maker is None or changed is None:
            continue
        part, changer, change = changed
        literal = getattr(change, "value", None)
        size = constant(literal)
        if isinstance(literal, ast.Constant) and not (
            isinstance(size, int) and size > 1 and any(isinstance(n, int) and n % size == 0 for n in numbers)
        ):
            continue
        layer, features = fact.expected, fact.features if fact.features is not None else fact.channels
        called = any(isinstance(n, ast.Call) and root(n.func) == name for n in ast.walk(cell.source.tree))
        now = (
            f" `{name}` still takes {layer} features, and now gets {features}." if called and layer and features else ""
        )
        cause = _changed_between(failure, maker, changer, change)
        return Explanation(
            f"`{name}` was made in cell {maker.number} (In[{maker.count}]) with an earlier value of `{part}`: cell "
            f"{changer.number} (`{changer.source.code(change)[:80]}`) was run after it, as In[{changer.count}]"
            f"{cause}, and cell {maker.number} was not run again.{now}",
            f"Run {again(failure, maker, cell)}; or restart the kernel and run all cells.",
        )
    return None


@explains("second_backward")
def backward_run_twice(fact: Fact, failure: Failure) -> Explanation | None:
    """A cell that calls `backward()` a second time on a loss that another cell computed."""
    cell = failing_cell(failure)
    frame = failure.own_frames[0] if failure.own_frames else None
    statement = cell.source.statement_at(frame.line) if cell is not None and frame is not None else None
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)] if statement is not None else []
    base = next((c.func.value for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "backward"), None)
    name = dotted(base)
    if cell is None or not name or definitions(cell, name):
        return None
    before = run_before(failure, cell)
    maker = next((c for c in reversed(before) if _assigned(c, name)), None)
    if maker is None:
        return None
    other = next(
        (
            c
            for c in before
            if (c.count or 0) > (maker.count or 0)
            and any(dotted(call.func) == f"{name}.backward" for call in c.source.calls("backward"))
        ),
        None,
    )
    missing = gone(failure, maker, cell)
    if other is None and not missing:
        return None
    first = (
        f"{other.name} has called `backward()` on it already"
        if other is not None
        else f"this cell was run already after that (In[{missing[0]}] belongs to no cell any more)"
    )
    return Explanation(
        f"`{name}` was computed once, in cell {maker.number} (In[{maker.count}]), and {first}: the same loss goes "
        "back a second time, and the first time has freed its graph.",
        f"Run cell {maker.number} again before this one: its forward pass makes a new graph. Forward pass, "
        "`backward()` and `step()` belong into one cell.",
    )


@explains("no_attribute", "removed_api")
def alias_taken_over(fact: Fact, failure: Failure) -> Explanation | None:
    """A module's short name (`F`, `np`, `nn`) that an assignment has given to another value."""
    frame, source = failure.frame, failure.source(failure.frame)
    statement = source.statement_at(frame.line) if source is not None and frame is not None else None
    nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Attribute)] if statement is not None else []
    names = {n.value.id for n in nodes if n.attr == fact.attribute and isinstance(n.value, ast.Name)}
    cell = failing_cell(failure)
    places = [c.source for c in [*run_before(failure, cell), cell]] if cell is not None else list(failure.all_sources())
    for name in sorted(names):
        imported, taken = None, None
        for place in places:
            function = place.function_at(frame.line) if place is source and frame is not None else None
            top = [*_top_level(place), *(ast.walk(function) if function is not None else ())]
            for node in sorted((n for n in top if hasattr(n, "lineno")), key=lambda n: n.lineno):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    alias = next((a for a in node.names if (a.asname or a.name.partition(".")[0]) == name), None)
                    if alias is not None:
                        parent = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
                        imported, taken = (place, node, f"{parent}{alias.name}"), None
                elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                    taken = (place, node)
        if imported is None or taken is None:
            continue
        where, node, module = imported
        code = taken[0].code(taken[0].statement_at(taken[1].lineno)).partition(":")[0][:80]
        return Explanation(
            f"`{name}` is no longer the module `{module}` (`{where.code(node)}`, {where.place(node)}): `{code}` "
            f"({taken[0].place(taken[1])}) has overwritten the name, and it is now "
            f"{'an' if str(fact.type)[:1] in 'aeiou' else 'a'} {fact.type or 'other value'}.",
            f"Use another name there, and run the import again: `{where.code(node)}`.",
        )
    return None
