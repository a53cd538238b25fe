"""What runs in the child of a notebook: a function, or the code of a cell; its argument is a folder.

It is the notebook's own and private: `call.pickle` comes from it, `value.pickle` goes back, and `events.jsonl` is
written a line at a time. That is a file and no pipe, so that a notebook that does not read never stops a training.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import linecache
import os
import pickle
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ocrlab.errors import ConfigError, OcrlabError, RunError
from ocrlab.hardware import openmp
from ocrlab.notebook import display_hook
from ocrlab.records import finite
from ocrlab.run_folder import watcher_link

CALL, VALUE, EVENTS, CELL = "call.pickle", "value.pickle", "events.jsonl", "<isolated cell>"
ERROR = "error.txt"  # the message of an error of ocrlab


def main(folder: Path) -> int:
    """Do what `call.pickle` says and return the exit status; an exception is printed without frames of this file."""
    call = pickle.loads((folder / CALL).read_bytes())
    sys.path[:] = call["path"]
    send = sender(folder / EVENTS)
    try:
        back = run_cell(call, send) if "code" in call else {"value": run_function(call, send)}
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, OcrlabError):
            (folder / ERROR).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        if isinstance(error, ConfigError):  # the words say what to do, and our frames say nothing
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    temporary = folder / f"{VALUE}.tmp"
    temporary.write_bytes(pickle.dumps(back))
    temporary.rename(folder / VALUE)
    return 0


def run_function(call: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> Any:
    """Call an importable function; one that takes `progress` gets a function that sends events to the notebook."""
    openmp.sleep_soon(os.environ)  # torch is not imported yet
    function: Any = importlib.import_module(call["module"])
    for name in call["name"].split("."):
        function = getattr(function, name)
    more = {"progress": send} if call["progress"] else {}
    return function(*call["args"], **call["kwargs"], **more)


def train(config: Any, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Train and return the fields of the result: its class would make the notebook import torch."""
    watcher_link.report_runs(config.runs)  # before torch, whose import may be the end
    from ocrlab.training.loop import fit

    return dict(vars(fit(config, progress=progress)))


def sender(path: Path) -> Callable[[dict[str, Any]], None]:
    """Return a function that appends an event to a file as one line, in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def send(event: dict[str, Any]) -> None:
        os.write(descriptor, (json.dumps(finite(event), default=str) + "\n").encode())

    return send


def run_cell(call: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run the code of a cell in a module of its own called `__main__`; returns the names it made, each pickled.

    {"value": pickle of the last expression or None, "shown": its MIME bundle or None, "why": why it has no pickle,
    "names": {name: pickle}, "stayed": {name: why}}. What the cell displays goes to `send`.
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    space = main.__dict__
    builtins.input = _no_keyboard
    display = display_hook.Display(send)
    display.take_over()
    later = _values(call["values"], space)
    for name, module in call["modules"].items():
        space[name] = importlib.import_module(module)
    for source in call["sources"]:
        exec(compile(source, "<notebook>", "exec"), space)
    _values(later, space)
    before = {name: id(value) for name, value in space.items()}
    value = _execute(call["code"], space)
    figures = display.figures()  # before anything is pickled: an open figure would be opened again by the notebook
    if display_hook.is_figure(value):
        if not any(value is figure for figure in figures):
            display.publish(display_hook.figure_bundle(value))
        value = None  # it is on the screen; as a value it would be drawn a second time
    names, stayed = {}, {}
    for name, item in space.items():
        defined = isinstance(item, type | types.FunctionType | types.BuiltinFunctionType)
        imported = isinstance(item, types.ModuleType) or (defined and item.__module__ != "__main__")
        if name.startswith("__") or before.get(name) == id(item) or imported:
            continue  # what the cell imported is imported again where it is needed
        data, why = _pickled(item)
        if defined:
            stayed[name] = "it is defined in the isolated cell; define it in a cell of its own"
        elif data is None:
            stayed[name] = why
        else:
            names[name] = data
    data, why = (None, "") if value is None else _pickled(value)
    plain = value is None or type(value) in (bool, int, float, complex, str, bytes)  # any notebook can have it
    shown = None if plain else display_hook.bounded(display_hook.formatted(value)[0])
    return {"value": data, "shown": shown, "why": why, "names": names, "stayed": stayed}


def _pickled(value: Any) -> tuple[bytes | None, str]:
    try:
        return pickle.dumps(value), ""
    except Exception as error:  # a pickle may raise anything
        return None, f"{type(error).__name__}: {error}".partition("\n")[0]


def _no_keyboard(*_: object) -> NoReturn:
    raise RunError("An isolated cell has no keyboard", do="Ask with input() in a cell of its own")


def _values(pickled: dict[str, bytes], space: dict[str, Any]) -> dict[str, bytes]:
    """Unpickle values into a namespace and return those that cannot be: they may need a class that comes later."""
    later = {}
    for name, data in pickled.items():
        try:
            space[name] = pickle.loads(data)
        except Exception:
            later[name] = data
    return later


def _execute(code: str, space: dict[str, Any]) -> Any:
    """Execute a cell and return the value of its last line, if that is an expression without a semicolon."""
    linecache.cache[CELL] = (len(code), None, code.splitlines(keepends=True), CELL)
    tree = ast.parse(code, CELL)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    exec(compile(tree, CELL, "exec"), space)
    return eval(compile(last, CELL, "eval"), space) if last else None


def start() -> None:
    """Be the child whose folder the command line names."""
    sys.exit(main(Path(sys.argv.pop())))
