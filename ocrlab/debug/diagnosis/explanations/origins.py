"""Where a value comes from: through assignments, arguments, attributes and DataLoaders of the user's source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame
from ocrlab.debug.diagnosis.explanations.source import (
    Source,
    argument,
    default_value,
    dotted,
    last_name,
    own_nodes,
    parameters,
    returns,
)

MAX_STEPS = 12


@dataclass(frozen=True)
class Origin:
    """An expression that made a value: its source and the frame whose names it uses, where that frame is known."""

    source: Source
    node: ast.expr
    frame: Frame | None = None
    name: str = ""  # under which it was known last

    @property
    def code(self) -> str:
        """The expression on one line."""
        return self.source.code(self.node)

    @property
    def place(self) -> str:
        """`train.py:12`."""
        return self.source.place(self.node)


def failing_call(failure: Failure, frame: Frame | None, *names: str) -> tuple[Source, ast.Call] | None:
    """Return the call that a frame was in: the one of a name, else the one that its expression or its line is."""
    source = failure.source(frame)
    if frame is None:
        return None
    if source is None:
        source = Source(frame.expression or frame.code, frame.file)
        candidates = [node for node in source.nodes if isinstance(node, ast.Call)]
    else:
        inside = [node for statement in source.statements_at(frame.line) for node in own_statement_nodes(statement)]
        candidates = [node for node in inside if isinstance(node, ast.Call)]
    wanted = [call for call in candidates if last_name(call.func) in names] if names else candidates
    exact = [call for call in wanted if frame.expression and source.code(call) == " ".join(frame.expression.split())]
    chosen = exact or wanted
    return (source, chosen[0]) if chosen else None


def own_statement_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement without those of the statements inside of it."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop(0)
        yield node
        todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def failing_expression(failure: Failure, frame: Frame | None, *kinds: type[ast.AST]) -> tuple[Source, ast.AST] | None:
    """Return the expression of some kinds that a frame was in: the failing one, else the first of its line."""
    source = failure.source(frame)
    if frame is None:
        return None
    source = source or Source(frame.expression or frame.code, frame.file)
    line = frame.line if failure.source(frame) else 1
    inside = [node for statement in source.statements_at(line) for node in own_statement_nodes(statement)]
    nodes = [node for node in inside if isinstance(node, kinds)]
    exact = [node for node in nodes if frame.expression and source.code(node) == " ".join(frame.expression.split())]
    return (source, (exact or nodes)[0]) if nodes else None


def origin(failure: Failure, source: Source, node: ast.expr, frame: Frame | None, steps: int = MAX_STEPS) -> Origin:
    """Return the expression that made the value of `node`, or the last one that is known."""
    here = Origin(source, node, frame, dotted(node))
    if steps <= 0:
        return here
    following = _step(failure, here)
    return origin_of(failure, following, steps - 1) if following is not None else here


def origin_of(failure: Failure, place: Origin, steps: int = MAX_STEPS) -> Origin:
    """Return where the value of another origin comes from, and under which name it was known."""
    result = origin(failure, place.source, place.node, place.frame, steps)
    return result if result.name else Origin(result.source, result.node, result.frame, place.name)


def through_functions(failure: Failure, place: Origin, steps: int = 4) -> Origin:
    """Follow a call of the program's own function to the only expression that it returns."""
    name = place.node.func.id if isinstance(place.node, ast.Call) and isinstance(place.node.func, ast.Name) else ""
    for source in failure.all_sources() if name and steps > 0 else ():
        for function in source.functions(name):
            returned = [n.value for n in own_nodes(function) if isinstance(n, ast.Return) and n.value is not None]
            if len(returned) == 1:
                return through_functions(failure, origin(failure, source, returned[0], None), steps - 1)
    return place


def _step(failure: Failure, here: Origin) -> Origin | None:
    if isinstance(here.node, ast.Name):
        return _name(failure, here, here.node.id)
    if isinstance(here.node, ast.Attribute) and dotted(here.node).startswith("self.") and here.name.count(".") == 1:
        return _attribute(failure, here, here.node.attr)
    return None


def _name(failure: Failure, here: Origin, name: str) -> Origin | None:
    line = here.frame.line if here.frame is not None and failure.source(here.frame) is here.source else here.node.lineno
    line = here.node.lineno if _other_scope(here, line) else line
    binding = here.source.binding(name, line)
    if binding is None:
        return _earlier_cell(failure, here, name)
    if binding.kind == "parameter":
        return _argument(failure, here, name, line)
    if binding.kind in ("assign", "with") and binding.value is not None:
        if binding.index is not None:
            return _returned(failure, here, binding.value, binding.index)
        return Origin(here.source, binding.value, here.frame, name)
    if binding.kind == "for" and binding.value is not None:
        return _sample(failure, Origin(here.source, binding.value, here.frame, name), binding.index)
    return None


def _other_scope(here: Origin, line: int) -> bool:
    return here.source.function_at(line) is not here.source.function_at(here.node.lineno)


def _earlier_cell(failure: Failure, here: Origin, name: str) -> Origin | None:
    counts = {id(cell.source): cell.count for cell in failure.cells}
    end = counts.get(id(here.source))
    ran = [c for c in failure.cells if c.count is not None and (end is None or c.count < end)] or list(failure.cells)
    for cell in sorted(ran, key=lambda c: c.count or c.number, reverse=True):
        if (
            cell.source is not here.source
            and (binding := cell.source.binding(name, 10**9))
            and binding.value is not None
        ):
            return Origin(cell.source, binding.value, None, name)
    return None


def _attribute(failure: Failure, here: Origin, name: str) -> Origin | None:
    line = here.node.lineno
    owner = here.source.class_at(line)
    binding = here.source.attribute(owner, name) if owner else None
    if binding is None or binding.value is None:
        return None
    return Origin(here.source, binding.value, None, f"self.{name}")


def _argument(failure: Failure, here: Origin, name: str, line: int) -> Origin | None:
    """Follow a parameter to what the caller passes; the caller is in the traceback, or the only one in the source."""
    function = here.source.function_at(line)
    if function is None:
        return None
    names = parameters(function)
    owner = here.source.class_at(function.lineno)
    method = owner is not None and bool(names) and names[0] in ("self", "cls")
    position = names.index(name) - (1 if method else 0)
    callee = owner.name if owner is not None and function.name == "__init__" else function.name
    caller = _caller(failure, here.frame)
    if caller is not None:
        call = failing_call(failure, caller, callee) or (
            failing_call(failure, caller) if function.name == "forward" else None
        )
        if call is not None and (value := argument(call[1], position, name)) is not None:
            return Origin(call[0], value, caller, name)
    calls = [(source, call) for source in failure.all_sources() for call in source.calls(callee)]
    values = {
        ast.dump(value): (source, value)
        for source, call in calls
        if (value := argument(call, position, name)) is not None
    }
    if len(values) == 1:
        source, value = next(iter(values.values()))
        return Origin(source, value, None, name)
    default = default_value(function, name)
    if not values and default is not None:
        return Origin(here.source, default, None, name)
    return None


def _caller(failure: Failure, frame: Frame | None) -> Frame | None:
    frames = failure.own_frames
    at = next((index for index, candidate in enumerate(frames) if candidate is frame), 0)
    return frames[at - 1] if at > 0 else None


def _returned(failure: Failure, here: Origin, value: ast.expr, index: int) -> Origin | None:
    """Follow one part of an unpacked tuple into the function that returns it."""
    if not isinstance(value, ast.Call):
        return None
    for source in failure.all_sources():
        for function in source.functions(last_name(value.func)):
            for node in own_nodes(function):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and index < len(node.value.elts):
                    return Origin(source, node.value.elts[index], None, here.name)
    return None


def unpacked(place: Origin) -> Origin | None:
    """Return the call of which a name is one of several results."""
    binding = place.source.binding(place.node.id, place.node.lineno) if isinstance(place.node, ast.Name) else None
    if binding is None or binding.kind != "assign" or binding.index is None or not isinstance(binding.value, ast.Call):
        return None
    return Origin(place.source, binding.value, place.frame, place.name)


def _sample(failure: Failure, loader: Origin, index: int | None) -> Origin | None:
    """Follow a variable of `for x, y in loader` into the `collate_fn` or the data set that makes it."""
    maker = loader_of(failure, loader)
    if maker is None:
        return None
    call, source = maker.node, maker.source
    assert isinstance(call, ast.Call)
    collate = argument(call, 6, "collate_fn")
    functions = []
    if collate is not None:
        functions = [(s, f) for s in failure.all_sources() for f in s.functions(last_name(collate))]
    else:
        dataset = argument(call, 0, "dataset")
        if dataset is not None:
            where = origin(failure, source, dataset, maker.frame)
            name = last_name(where.node.func) if isinstance(where.node, ast.Call) else ""
            if name == "TensorDataset" and isinstance(where.node, ast.Call) and index is not None:
                tensor = argument(where.node, index)
                return Origin(where.source, tensor, where.frame, dotted(tensor)) if tensor is not None else None
            functions = [
                (s, f)
                for s in failure.all_sources()
                for c in s.classes(name)
                for f in c.body
                if isinstance(f, ast.FunctionDef) and f.name == "__getitem__"
            ]
    for where_, function in functions:
        for node in own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                value = node.value
                if isinstance(value, ast.Tuple) and index is not None and index < len(value.elts):
                    value = value.elts[index]
                return Origin(where_, value, None, dotted(value) or loader.name)
    return None


def returned(failure: Failure, place: Origin) -> Origin:
    """Follow a call of a function or method of the program to the expression that it returns, if there is only one."""
    if not isinstance(place.node, ast.Call):
        return place
    name = last_name(place.node.func)
    places = [(s, n.value) for s in failure.all_sources() for f in s.functions(name) for n in returns(f)]
    if len(places) != 1 or places[0][1] is None:
        return place
    return origin(failure, places[0][0], places[0][1], None)


def called_functions(failure: Failure, where: Origin) -> list[tuple[Source, ast.FunctionDef]]:
    """Return the program's own functions that a call may run: by its name, or the forward pass of its object."""
    if not isinstance(where.node, ast.Call):
        return []
    names = [last_name(where.node.func)]
    maker = origin(failure, where.source, where.node.func, where.frame).node
    names += [last_name(maker.func)] if isinstance(maker, ast.Call) else []
    return [
        (source, function)
        for source in failure.all_sources()
        for name in names
        for function in [
            *source.functions(name),
            *(f for c in source.classes(name) for f in c.body if isinstance(f, ast.FunctionDef)),
        ]
        if function.name in (name, "forward", "__call__")
    ]


def loader_of(failure: Failure, place: Origin) -> Origin | None:
    """Return the `DataLoader(...)` call behind an expression."""
    node = place.node
    if isinstance(node, ast.Call) and last_name(node.func) in ("enumerate", "tqdm", "iter", "zip") and node.args:
        place = Origin(place.source, node.args[0], place.frame, place.name)
    where = origin(failure, place.source, place.node, place.frame)
    if isinstance(where.node, ast.Call) and last_name(where.node.func) == "DataLoader":
        return where
    if isinstance(where.node, ast.Call):  # a function that builds and returns it
        for source in failure.all_sources():
            for function in source.functions(last_name(where.node.func)):
                for result in (part.value for part in own_nodes(function) if isinstance(part, ast.Return)):
                    if isinstance(result, ast.Call) and last_name(result.func) == "DataLoader":
                        return Origin(source, result, None, place.name)
    return None


def dataset_class(failure: Failure, loader: Origin) -> tuple[Source, ast.ClassDef] | None:
    """Return the user's class of the data set that a `DataLoader(...)` call reads."""
    assert isinstance(loader.node, ast.Call)
    dataset = argument(loader.node, 0, "dataset")
    if dataset is None:
        return None
    where = origin(failure, loader.source, dataset, loader.frame)
    name = last_name(where.node.func) if isinstance(where.node, ast.Call) else ""
    return next(((s, c) for s in failure.all_sources() for c in s.classes(name)), None)
