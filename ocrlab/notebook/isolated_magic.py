"""The cell magic `%%isolated`: a cell of a user's notebook runs in a child, and cannot take the kernel with it.

    %load_ext ocrlab              (or import ocrlab.notebook)

    %%isolated --timeout 600
    model = train(data, steps)
    model.score

What the child gets: every name that the cell uses and the notebook has. Modules are imported again, functions and
classes of the notebook are defined again from their source, everything else is copied by pickle. What comes back: the
value of the last line, shown as usual, and every variable that the cell set and that can be pickled. The names of the
others are printed. Figures and displayed objects appear as in any cell. Nothing else of the notebook changes: a
list that the cell appends to is the child's copy, unless the cell assigns it. Open files, generators and connections
are not handed over. Tensors come back on the CPU: a kernel that touches the GPU could be the next to die.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import pickle
import re
import shutil
import sys
import tempfile
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ocrlab.debug.watch.supervisor import Options
from ocrlab.errors import ConfigError, RunError
from ocrlab.notebook import child_runner, display_hook


def register(shell: Any) -> None:
    """Add `%%isolated` to an IPython shell."""
    shell.register_magic_function(lambda line, cell: run(line, cell, shell.user_ns), "cell", "isolated")


def register_here() -> None:
    """Add it to the shell that runs this, if one does."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        register(shell)


def run(line: str, code: str, namespace: dict[str, Any]) -> Any:
    """Run the code of a cell in a child and return the value of its last line; raises ConfigError, ChildFailed."""
    try:
        ast.parse(code)  # a typo is reported at once
    except SyntaxError:
        magic = next((line for line in code.splitlines() if re.match(r"\s*([\w, ]+=\s*)?[!%]", line)), None)
        if magic is None:
            raise
        do = "Put that line into a cell of its own"
        raise ConfigError("An isolated cell is plain Python", got=magic.strip(), do=do) from None
    parser = _Parser("%%isolated", add_help=False, allow_abbrev=False)
    parser.add_argument("--silence", type=float, default=300.0)  # seconds without progress that count as a hang
    parser.add_argument("--timeout", type=float)  # seconds for the whole cell
    words = parser.parse_args(line.split())
    call, left = gather(code, namespace)
    for name, why in left.items():
        print(f"{name} was not handed over: {why}", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="ocrlab-isolated-"))  # kept, with verdict and log, where the cell fails
    options = Options(folder, silence=words.silence, timeout=words.timeout)
    back = child_runner.run({"code": code, **call}, options, show)
    shutil.rmtree(folder, ignore_errors=True)
    names, stayed = {}, dict(back["stayed"])
    for name, data in back["names"].items():
        try:
            names[name] = loads(data)
        except Exception as error:  # a pickle may raise anything
            stayed[name] = _line(error)
    namespace.update(names)
    for name, why in stayed.items():
        print(f"{name} stayed in the child: {why}", file=sys.stderr)
    return _value(back)


def _value(back: Mapping[str, Any]) -> Any:
    """Return the value of the last line; where the notebook cannot have it, show what it looks like."""
    why = back["why"]
    if back["value"] is not None:
        try:
            return loads(back["value"])
        except Exception as error:  # a pickle may raise anything
            why = _line(error)
    if back["shown"]:
        show({"kind": display_hook.KIND, "data": back["shown"], "metadata": {}})
    if why:
        print(f"the value stayed in the child: {why}", file=sys.stderr)
    return None


def show(event: Mapping[str, Any]) -> None:
    """Display a bundle that the child sent."""
    if event["kind"] != display_hook.KIND:
        return
    from IPython.display import display

    more = {"display_id": event["id"], "update": event["update"]} if event.get("id") else {}
    display(event["data"], raw=True, metadata=event["metadata"], **more)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def gather(code: str, namespace: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a cell needs of a notebook, as `child.run_cell` takes it, and why some of it cannot be sent."""
    wanted = list(dict.fromkeys(_used(code)))
    values: dict[str, bytes] = {}
    modules: dict[str, str] = {}
    sources: dict[str, str] = {}
    left: dict[str, str] = {}
    for name in wanted:  # it grows by what functions and classes use
        if name not in namespace or name.startswith("_"):
            continue
        value = namespace[name]
        try:
            if isinstance(value, types.ModuleType):
                modules[name] = value.__name__
            elif isinstance(value, type | types.FunctionType) and value.__module__ == "__main__":
                sources[name] = inspect.getsource(value)
                wanted += [other for other in _used(sources[name]) if other not in wanted]
            else:
                values[name] = pickle.dumps(value)
                kind = type(value)
                if kind.__module__ == "__main__" and kind.__name__ not in wanted:
                    wanted.append(kind.__name__)
        except Exception as error:
            left[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
    ordered = [sources[name] for name in namespace if name in sources]  # as the notebook defined them
    return {"values": values, "modules": modules, "sources": ordered}, left


class _Careful(pickle.Unpickler):
    """An unpickler that imports nothing that the notebook has not imported, and leaves the GPU alone."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes") and "torch" in sys.modules:
            load = sys.modules["torch"].load  # as torch's own does, but to the CPU, wherever the tensor was
            return lambda data: load(io.BytesIO(data), map_location="cpu", weights_only=False)
        if module.partition(".")[0] not in sys.modules:
            raise RunError(f"it needs {module}, which this notebook has not imported")
        return super().find_class(module, name)


def loads(data: bytes) -> Any:
    """Return a value that came back from the child; raises RunError where the notebook lacks a module for it."""
    return _Careful(io.BytesIO(data)).load()


def _used(source: str) -> Iterable[str]:
    return [node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"%%isolated: {message}", need="%%isolated [--silence S] [--timeout S]")
