"""Faults of notebooks: cells that were not run, run twice or in another order, names that a later cell took over."""

from __future__ import annotations

import ast
import builtins

from ocrlab.debug.diagnosis.explanations.explanation import Explanation, explains
from ocrlab.debug.diagnosis.explanations.failure import Cell, Failure
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.names import local_name, nearest_name
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


@explains("no_attribute")
def class_of_an_earlier_run(fact: Fact, failure: Failure) -> Explanation | None:
    """An object that was made before a cell defined its class again."""
    cell = failing_cell(failure)
    if cell is None:
        return None
    before = run_before(failure, cell)
    classes = [
        (c, node)
        for c in before
        for node in c.source.tree.body
        if isinstance(node, ast.ClassDef) and node.name == str(fact.type)
    ]
    if not classes:
        return None
    changed = classes[-1][0]
    old_calls = [
        (c, call) for c in before for call in c.source.calls(str(fact.type)) if (c.count or 0) < (changed.count or 0)
    ]
    again = [c for c in before if list(c.source.calls(str(fact.type))) and (c.count or 0) >= (changed.count or 0)]
    if not old_calls or again:
        return None
    maker, call = old_calls[-1]
    return Explanation(
        f"The object was made by `{maker.source.code(call)}` in cell {maker.number}, before cell {changed.number} "
        f"defined the class `{fact.type}` again: an object keeps the class that it was made with, which has no "
        f"`{fact.attribute}`.",
        f"Make it again after the class: run cell {changed.number}, then the line that makes the object.",
    )


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
    here = cell.source.statement_at(failure.own_frames[0].line)
    read_here = loaded_names(failure, cell)
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
        name = next((n for n in changed if n and (n in read_here or here is node)), "")
        makers = [c for c in run_before(failure, cell) if definitions(c, name)] if name else []
        if makers and isinstance(node, ast.Assign | ast.AugAssign | ast.Delete | ast.Expr):
            text = (
                f"`{cell.source.code(node)}` changes `{name}` each time that cell {cell.number} runs, and a run "
                f"finds what the one before left. The count In [{missing[-1]}] belongs to no cell any more: a "
                "cell that ran then has run again since, or was deleted; if it is this one, it has run twice."
            )
            return Explanation(
                text,
                f"Run cell {makers[-1].number} again before this one, or give the result a new name, so that the "
                "cell can be run again.",
            )
    return None


def loaded_names(failure: Failure, cell: Cell) -> list[str]:
    """Return the names that the failing statement of a cell reads."""
    frame = failure.own_frames[0] if failure.own_frames else None
    statement = (
        cell.source.statement_at(frame.line) if frame is not None and frame.file == f"cell {cell.number}" else None
    )
    nodes = ast.walk(statement) if statement is not None else iter(())
    return list(dict.fromkeys(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)))


def gone(failure: Failure, first: Cell, last: Cell) -> list[int]:
    """Return the execution counts between two cells that belong to no cell any more: something ran again since."""
    counts = {c.count for c in failure.cells}
    return [n for n in range((first.count or 0) + 1, last.count or 0) if n not in counts]


def _assigned(cell: Cell, name: str) -> ast.stmt | None:
    """Return the last assignment of a cell to a name."""
    nodes = [node for node in definitions(cell, name) if isinstance(node, ast.Name)]
    return cell.source.statement_at(nodes[-1].lineno) if nodes else None


@explains(
    "matmul",
    "batched_matmul",
    "conv_channels",
    "conv_dimensions",
    "concatenate",
    "broadcast",
    "view",
    "batch_size",
    "target_size",
    "recurrent_size",
    "normalized_shape",
    "table_index",
    "target_range",
    "class_weights",
    "state_dict",
)
def made_before_a_change(fact: Fact, failure: Failure) -> Explanation | None:
    """A stale value: another cell has changed what it was computed from, and its own cell was not run again."""
    cell = failing_cell(failure)
    if cell is None:
        return None
    before = run_before(failure, cell)
    numbers = {n for value in fact.values.values() for n in (value if isinstance(value, tuple) else (value,))}
    for name in loaded_names(failure, cell):
        maker = next((c for c in reversed(before) if _assigned(c, name)), None)
        assignment = _assigned(maker, name) if maker is not None else None
        if maker is None or assignment is None:
            continue
        read = {n.id for n in ast.walk(assignment) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for part in sorted(read):
            changer = next((c for c in reversed(before) if _assigned(c, part)), None)
            change = _assigned(changer, part) if changer is not None else None
            if changer is None or change is None or changer is maker or (changer.count or 0) < (maker.count or 0):
                continue
            literal = getattr(change, "value", None)
            if isinstance(literal, ast.Constant) and literal.value not in numbers:
                continue
            later = [c for c in failure.cells if c.number > maker.number and name in c.text and c is not cell]
            return Explanation(
                f"`{name}` was made in cell {maker.number} (In[{maker.count}]) with an earlier value of `{part}`: "
                f"cell {changer.number} (`{changer.source.code(change)[:80]}`) was run after it, as "
                f"In[{changer.count}], and cell {maker.number} was not run again.",
                f"Run cell {maker.number} again"
                + (f", then cell {', '.join(str(c.number) for c in later)}" if later else "")
                + " and this one; or restart the kernel and run all cells.",
            )
    return None


SAME_TWICE = ("to", "float", "long", "int", "double", "half", "cuda", "cpu", "contiguous", "astype", "eval", "train")


@explains(
    "target_range",
    "table_index",
    "dtype",
    "unsupported_dtype",
    "conv_channels",
    "conv_dimensions",
    "broadcast",
    "dimension_range",
    "matmul",
    "view",
    "index",
    "index_dtype",
    "target_dimensions",
    "target_size",
    "key",
)
def changed_twice(fact: Fact, failure: Failure) -> Explanation | None:
    """A value that an earlier cell changes in place, where the counts show that a cell has run again."""
    cell = failing_cell(failure)
    if cell is None:
        return None
    before = run_before(failure, cell)
    for name in loaded_names(failure, cell):
        changer = next((c for c in reversed(before) if _assigned(c, name)), None)
        change = _assigned(changer, name) if changer is not None else None
        value = getattr(change, "value", None)
        if changer is None or change is None or value is None:
            continue
        reads = isinstance(change, ast.AugAssign) or any(
            isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(value)
        )
        if not reads or (isinstance(value, ast.Call) and last_name(value.func) in SAME_TWICE):
            continue
        maker = next((c for c in reversed(run_before(failure, changer)) if _assigned(c, name)), None)
        missing = gone(failure, maker, changer) if maker is not None else []
        if maker is None or not missing:
            continue
        code = changer.source.code(change)[:80]
        counts = f"In[{missing[0]}]" + (f" to In[{missing[-1]}]" if len(missing) > 1 else "")
        return Explanation(
            f"`{name}` has been changed twice: cell {changer.number} (`{code}`) changes it each time that it runs. "
            f"It last ran as In[{changer.count}], and {counts}, after cell {maker.number} made `{name}` "
            f"(In[{maker.count}]), belong{'s' if len(missing) == 1 else ''} to no cell any more: an earlier run had "
            f"changed `{name}` already.",
            f"Run cell {maker.number} again, then cell {changer.number} once, then this one. Make the change where "
            f"`{name}` is made, or give the result another name, so that cells can be run again.",
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
