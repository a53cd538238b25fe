"""What runs in the child of a notebook: a function, or the code of a cell; its argument is a folder.

It is the notebook's own and private: `call.pickle` comes from it, `value.pickle` goes back, and `events.jsonl` is
written a line at a time. That is a file and no pipe, so that a notebook that does not read never stops a training.
"""

from __future__ import annotations

import ast
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
from typing import Any

from ocrlab.flight import handover
from ocrlab.records import finite

CALL, VALUE, EVENTS, CELL = "call.pickle", "value.pickle", "events.jsonl", "<isolated cell>"


def main(folder: Path) -> int:
    """Do what `call.pickle` says and return the exit status; an exception is printed without frames of this file."""
    call = pickle.loads((folder / CALL).read_bytes())
    sys.path[:] = call["path"]
    try:
        back = run_cell(call) if "code" in call else {"value": run_function(call, folder / EVENTS)}
    except SystemExit:
        raise
    except BaseException as error:
        told = error.__traceback__
        while told is not None and told.tb_frame.f_code.co_filename == __file__:
            told = told.tb_next
        traceback.print_exception(type(error), error, told)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    temporary = folder / f"{VALUE}.tmp"
    temporary.write_bytes(pickle.dumps(back))
    temporary.rename(folder / VALUE)
    return 0


def run_function(call: dict[str, Any], events: Path) -> Any:
    """Call an importable function; one that takes `progress` gets a function that sends events to the notebook."""
    function: Any = importlib.import_module(call["module"])
    for name in call["name"].split("."):
        function = getattr(function, name)
    more = {"progress": sender(events)} if call["progress"] else {}
    return function(*call["args"], **call["kwargs"], **more)


def train(config: Any, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Train and return the fields of the result: its class would make the notebook import torch."""
    handover.tell_runs(config.runs)  # before torch, whose import may be the end
    from ocrlab.train.fit import fit

    return dict(vars(fit(config, progress=progress)))


def sender(path: Path) -> Callable[[dict[str, Any]], None]:
    """Return a function that appends an event to a file as one line, in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def send(event: dict[str, Any]) -> None:
        os.write(descriptor, (json.dumps(finite(event), default=str) + "\n").encode())

    return send


def run_cell(call: dict[str, Any]) -> dict[str, Any]:
    """Run the code of a cell in a module of its own called `__main__`; returns the names it made, each pickled.

    {"value": pickle of the last expression or None, "names": {name: pickle}, "stayed": {name: why}}.
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    space = main.__dict__
    later = _values(call["values"], space)
    for name, module in call["modules"].items():
        space[name] = importlib.import_module(module)
    for source in call["sources"]:
        _run(compile(source, "<notebook>", "exec"), space)
    _values(later, space)
    before = {name: id(value) for name, value in space.items()}
    value = _execute(call["code"], space)
    new = {name: item for name, item in space.items() if not name.startswith("__") and before.get(name) != id(item)}
    names, stayed = {}, {}
    for name, item in new.items():
        if not isinstance(item, types.ModuleType):
            try:
                names[name] = pickle.dumps(item)
            except Exception as error:  # a pickle may raise anything
                stayed[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
    try:
        shown = None if value is None else pickle.dumps(value)
    except Exception:
        print(repr(value))
        shown = None
    return {"value": shown, "names": names, "stayed": stayed}


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
    _run(compile(tree, CELL, "exec"), space)
    return _run(compile(last, CELL, "eval"), space) if last else None


def _run(code: types.CodeType, space: dict[str, Any]) -> Any:
    return eval(code, space)  # runs statements too, and returns None for them


def start() -> None:
    """Be the child whose folder the command line names."""
    sys.exit(main(Path(sys.argv.pop())))
