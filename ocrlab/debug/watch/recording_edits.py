"""The edits that add the flight recorder to a training script, found in its syntax tree; standard library only.

`ocrlab watch` prints them after a crash without a flight record. `ocrlab watch --record` runs the script with them, as
`recorded_script.py` applies them in memory. Where a name is not clear the answer is what is missing, and no edit.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ocrlab.debug.diagnosis.explanations.source import Source, argument, dotted, last_name

RUNNER = Path(__file__).with_name("recorded_script.py")
RECORDING = "__ocrlab_recording__"  # the name of the recorder in a script that `--record` runs
WRAPPERS = ("enumerate", "tqdm", "zip", "islice", "track", "iter")  # whose first argument is what is iterated over
PYTHON = re.compile(r"python[\d.]*$")
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of Python that take the next word
MAX_CALLERS = 3  # functions from the backward pass up to the loop


@dataclass
class RecordingEdits:
    """What is added to one script: the recorder after a statement, and its methods around some expressions."""

    source: Source
    body: list[ast.stmt]
    after: ast.stmt
    models: list[str]
    optimizers: list[str]
    options: dict[str, str] = field(default_factory=dict)  # scheduler, scaler
    wrapped: list[tuple[ast.expr, str]] = field(default_factory=list)  # an expression, and the recorder's method
    loops: list[ast.For | ast.While] = field(default_factory=list)
    recorder: str = "rec"
    is_global: bool = False  # made in one function, used in another

    def covers(self, line: int) -> bool:
        """Whether a line belongs to the training loop."""
        return any(loop.lineno <= line <= (loop.end_lineno or loop.lineno) for loop in self.loops)

    def lines(self) -> list[str]:
        """Return the edits as lines of text: the place, and the line as it should be."""
        name = self.source.name
        imports = [n for n in self.source.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        start = imports[-1].end_lineno if imports else 0
        parts = [_list(self.models), _list(self.optimizers), *(f"{key}={value}" for key, value in self.options.items())]
        start_recorder = f'{self.recorder} = ocrlab.record("runs/{Path(name).stem}", {", ".join(parts)})'
        start_recorder = f"global {self.recorder}; {start_recorder}" if self.is_global else start_recorder
        edits = [(start or 0, f"{name}, after line {start}: import ocrlab")]
        edits += [(self.after.end_lineno or 0, f"{name}, after line {self.after.end_lineno}: {start_recorder}")]
        by_line: dict[int, list[tuple[ast.expr, str]]] = {}
        for node, method in self.wrapped:
            by_line.setdefault(node.lineno, []).append((node, method))
        for line, nodes in by_line.items():
            text = self.source.line(line).encode()
            for node, method in sorted(nodes, key=lambda entry: -entry[0].col_offset):
                end = node.end_col_offset if node.end_lineno == line else len(text)
                inner = text[node.col_offset : end]
                text = text[: node.col_offset] + f"{self.recorder}.{method}(".encode() + inner + b")" + text[end or 0 :]
            edits.append((line, f"{name}:{line}: {text.decode(errors='replace').strip()}"))
        return [text for _, text in sorted(edits, key=lambda edit: edit[0])]

    def applied(self) -> ast.Module:
        """Return the syntax tree with the recorder in it; every line keeps its number."""
        wrapped = {id(node): method for node, method in self.wrapped}

        class Wrap(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> ast.AST:
                method = wrapped.get(id(node))
                node = self.generic_visit(node)
                if method is None or not isinstance(node, ast.expr):
                    return node
                call = ast.parse(f"{RECORDING}.{method}()", mode="eval").body
                assert isinstance(call, ast.Call)
                for part in ast.walk(call):
                    ast.copy_location(part, node)
                call.args = [node]
                return call

        options = ", ".join(f"{name!r}: {value}" for name, value in self.options.items())
        parts = f"{_list(self.models)}, {_list(self.optimizers)}, {{{options}}}"
        begin = ast.parse(f"{RECORDING}.begin(lambda: ({parts}))").body[0]
        for part in ast.walk(begin):
            if isinstance(part, ast.expr | ast.stmt):
                ast.copy_location(part, self.after)
        self.body.insert(self.body.index(self.after) + 1, begin)
        tree = Wrap().visit(self.source.tree)
        assert isinstance(tree, ast.Module)
        return ast.fix_missing_locations(tree)


def find_edits(source: Source) -> RecordingEdits | str:
    """Return the edits that record the training of a script, or what about it is not clear."""
    optimizers = list(_optimizers(source))
    stepped = {
        dotted(part) for call in source.calls("step") for part in [*call.args, getattr(call.func, "value", None)]
    }
    optimizers = [entry for entry in optimizers if dotted(entry[0].targets[0]) in stepped] or optimizers
    if not optimizers:
        return "no optimizer of this script is made from `model.parameters()`"
    scopes = {source.function_at(node.lineno) for node, _ in optimizers}
    if len(scopes) > 1:
        return "its optimizers are made in different functions"
    scope = next(iter(scopes))
    names = list(dict.fromkeys(dotted(node.targets[0]) for node, _ in optimizers))
    models = list(dict.fromkeys(model for _, names_of_models in optimizers for model in names_of_models))
    loop, backward = _training_loop(source)
    if loop is None:
        return "it has no loop with `backward()` in it"
    owner = "self." if names[0].startswith("self.") else ""
    inner = source.function_at(loop.lineno)
    if owner and (cls := source.class_at(loop.lineno)) is not source.class_at(optimizers[0][0].lineno):
        return (
            f"the loop (line {loop.lineno}) is not in the class of `{names[0]}`, but in {cls.name if cls else 'none'}"
        )
    edits = RecordingEdits(source, [], loop, models, names, recorder=f"{owner}rec", loops=[loop])
    edits.is_global = not owner and scope is not None and inner is not scope
    last = optimizers[-1][0]
    for option, node in _helpers(source, names, scope):
        edits.options[option] = dotted(node.targets[0])
        last = max(last, node, key=lambda statement: statement.lineno)
    block = _block(scope.body if scope is not None else source.tree.body, last, loop)
    if block is None:
        return f"`{names[-1]}` is made inside of the training loop"
    edits.body, edits.after = block
    if isinstance(loop, ast.For):
        iterable = _iterated(source, loop)
        steps = isinstance(iterable, ast.Call) and last_name(iterable.func) in ("range", "trange", "count")
        edits.wrapped.append((iterable, "steps" if steps else "batches"))
        epochs = None if steps else _epochs(source, loop)
        if epochs is not None:
            edits.wrapped.append((epochs.iter, "epochs"))
            edits.loops.append(epochs)
    edits.wrapped += [(loss, "loss") for loss in _losses(backward)]
    return edits


def read_script(path: Path) -> Source | None:
    """Return a script as a syntax tree; None for one that cannot be read or is not Python."""
    with contextlib.suppress(OSError, ValueError):
        source = Source(path.read_text(encoding="utf-8"), str(path))
        return source if source.tree.body else None
    return None


def script_of(command: Sequence[str]) -> int | None:
    """Return the position of the script in a command such as `python -u train.py`; None where it runs none."""
    start = next((at for at, word in enumerate(command) if PYTHON.match(Path(word).name)), None)
    words = iter(enumerate(command)) if start is not None else iter(())
    for at, word in words:
        if start is None or at <= start:
            continue
        if word in WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return at if Path(word).is_file() else None
        elif word in ("-c", "-m", "-"):
            return None
    return None


def recorded_command(command: Sequence[str], run: Path) -> list[str] | str:
    """Return the command that runs the same script with the recorder, or why there is none."""
    at = script_of(command)
    if at is None:
        return (
            "--record takes `python SCRIPT.py`, and this command is another one (python -m, torchrun, a shell script)"
        )
    source = read_script(Path(command[at]))
    edits = find_edits(source) if source is not None else f"{command[at]} cannot be read"
    return edits if isinstance(edits, str) else [*command[:at], str(RUNNER), str(run.absolute()), *command[at:]]


def advice(command: Sequence[str], frames: Iterable[tuple[str, int]]) -> tuple[list[str], bool]:
    """Return the edits for the program of a crash, and whether `--record` can make them; nothing where none are clear.

    `frames` are the file and line of each frame of the program's traceback, or none where it has no traceback.
    """
    at, frames = script_of(command), list(frames)
    script = Path(command[at]).resolve() if at is not None else None
    files = dict.fromkeys([Path(file) for file, _ in reversed(frames)] + ([script] if script else []))
    for file in files:
        source = read_script(file)
        edits = find_edits(source) if source is not None else ""
        if isinstance(edits, RecordingEdits):
            inside = not frames or any(Path(name) == file and edits.covers(line) for name, line in frames)
            return (edits.lines(), file == script) if inside else ([], False)
        if source is not None and (lines := _lightning(source)):
            return lines, False
    return [], False


def _lightning(source: Source) -> list[str]:
    """Return the edit for a script with Lightning's Trainer; none where it has a recorder, or starts no training."""
    imported = any("lightning" in source.code(n) for n in source.nodes if isinstance(n, ast.Import | ast.ImportFrom))
    trainer = next(source.calls("Trainer"), None)
    if not imported or trainer is None or not any(source.calls("fit")) or any(source.calls("Recorder")):
        return []
    callbacks = argument(trainer, -1, "callbacks")
    code = source.code(trainer)
    if isinstance(callbacks, ast.List):
        code = code.replace("callbacks=[", "callbacks=[ocrlab.Recorder(), ").replace(", ]", "]")
    elif callbacks is None:
        code = f"{code[:-1]}{'' if code.endswith('()') else ', '}callbacks=[ocrlab.Recorder()])"
    else:
        code = f"{source.code(callbacks)} + [ocrlab.Recorder()]"
    return [f"{source.place(trainer)}: {code}  (and `import ocrlab`)"]


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def _optimizers(source: Source) -> Iterator[tuple[ast.Assign, list[str]]]:
    """Yield the assignments of optimizers in order, each with the names of its models."""
    nodes = [node for node in source.nodes if isinstance(node, ast.Assign) and len(node.targets) == 1]
    for node in sorted(nodes, key=lambda node: node.lineno):
        call, target = node.value, dotted(node.targets[0])
        if not isinstance(call, ast.Call) or not target or not last_name(call.func)[:1].isupper():
            continue
        arguments = list(call.args) + [keyword.value for keyword in call.keywords]
        for part in list(arguments):
            binding = source.binding(part.id, node.lineno) if isinstance(part, ast.Name) else None
            expression = binding.value if binding is not None else None
            if expression is not None and not (
                isinstance(expression, ast.Call) and last_name(expression.func)[:1].isupper()
            ):
                arguments.append(expression)  # a list of parameters, and not an object that holds them
        owners = [
            dotted(part.func.value)
            for value in arguments
            for part in ast.walk(value)
            if isinstance(part, ast.Call) and last_name(part.func) in ("parameters", "named_parameters")
            if isinstance(part.func, ast.Attribute)
        ]
        models = [".".join(owner.split(".")[: 2 if owner.startswith("self.") else 1]) for owner in owners if owner]
        bindings = [source.binding(model, node.lineno) for model in models]
        if models and len(models) == len(owners) and not any(b is not None and b.kind == "for" for b in bindings):
            yield node, list(dict.fromkeys(models))


def _training_loop(source: Source) -> tuple[ast.For | ast.While | None, list[ast.Call]]:
    """Return the innermost loop around the backward pass, also where that is in a function which the loop calls."""
    for call in source.calls("backward"):
        place = call
        for _ in range(MAX_CALLERS):
            function, loop = source.function_at(place.lineno), source.enclosing(place.lineno, ast.For, ast.While)
            if isinstance(loop, ast.For | ast.While):
                end = loop.end_lineno or loop.lineno
                inside = [c for c in source.calls("backward") if loop.lineno <= c.lineno <= end]
                return loop, inside or [call]
            callers = list(source.calls(function.name)) if function is not None else []
            if not callers:
                break
            place = callers[0]
    return None, []


def _helpers(source: Source, optimizers: list[str], scope: ast.FunctionDef | None) -> Iterator[tuple[str, ast.Assign]]:
    """Yield the learning-rate scheduler and the gradient scaler that are made in the same function."""
    for node in source.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not dotted(node.targets[0]):
            continue
        if source.function_at(node.lineno) is not scope:
            continue
        if last_name(node.value.func) == "GradScaler":
            yield "scaler", node
        elif dotted(argument(node.value, 0, "optimizer")) in optimizers and any(
            dotted(call.func) == f"{dotted(node.targets[0])}.step" for call in source.calls("step")
        ):
            yield "scheduler", node


def _block(body: list[ast.stmt], last: ast.stmt, loop: ast.stmt) -> tuple[list[ast.stmt], ast.stmt] | None:
    """Return the statements among which the recorder is made, and the one after which: before the loop begins."""
    for statement in body:
        if not statement.lineno <= last.lineno <= (statement.end_lineno or 0):
            continue
        has_loop = statement.lineno <= loop.lineno <= (statement.end_lineno or 0)
        is_main = isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)
        if not has_loop and not is_main:
            return body, statement
        if statement is last or isinstance(statement, ast.For | ast.While):
            return None
        parts = [getattr(statement, name, None) or [] for name in ("body", "orelse", "finalbody")]
        return next(filter(None, (_block(part, last, loop) for part in parts)), None)
    return None


def _iterated(source: Source, loop: ast.For) -> ast.expr:
    """Return what a loop draws its batches from: `loader` of `enumerate(tqdm(loader))` and of a progress bar."""
    node = loop.iter
    for _ in range(MAX_CALLERS):
        binding = source.binding(node.id, loop.lineno) if isinstance(node, ast.Name) else None
        value = binding.value if binding is not None and binding.kind in ("assign", "with") else None
        call = value if isinstance(value, ast.Call) else node
        if not isinstance(call, ast.Call) or last_name(call.func) not in WRAPPERS or not call.args:
            break
        node = call.args[0]
    return node


def _epochs(source: Source, loop: ast.For) -> ast.For | None:
    """Return the loop over epochs around a loop over batches, also one that calls the function of that."""
    function = source.function_at(loop.lineno)
    calls = list(source.calls(function.name)) if function is not None else []
    for line in [loop.lineno - 1, *(call.lineno for call in calls)]:
        outer = source.enclosing(line, ast.For)
        holds = isinstance(outer, ast.For) and any(
            isinstance(part, ast.Call) and last_name(part.func) in ("range", "trange") for part in ast.walk(outer.iter)
        )
        if isinstance(outer, ast.For) and holds and (calls or (outer.end_lineno or 0) >= (loop.end_lineno or 0)):
            return outer
    return None


def _losses(calls: list[ast.Call]) -> list[ast.expr]:
    """Return the loss of the only backward pass; of `scaler.scale(loss).backward()` it is `loss`."""
    if len(calls) != 1 or not isinstance(calls[0].func, ast.Attribute):
        return []
    value = calls[0].func.value
    inner = value.args[:1] if isinstance(value, ast.Call) and last_name(value.func) == "scale" else [value]
    return [node for node in inner if not calls[0].args]
