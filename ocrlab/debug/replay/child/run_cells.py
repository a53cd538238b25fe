"""A replay of a training that is written in a notebook: its cells one after the other, as the kernel has executed them.

    python -m ocrlab.debug.replay.child.run_cells runs/mine/flight/cells-0.json

Each is compiled from a file of its own in the folder of the replay: cell 5, line 3 is `cell-5.py:3`. What would start
another program, install or write (`!pip`, `%%bash`, `%run`, `%%writefile`) is not done again, and named.
"""

from __future__ import annotations

import ast
import builtins
import codeop
import contextlib
import importlib
import os
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from ocrlab import run_folder
from ocrlab.debug.flight_record import notebook_cells, program_info
from ocrlab.errors import RunError
from ocrlab.records import from_json

WRAPS = ("time", "capture")  # magics of a cell that execute its body
QUIET = (
    "matplotlib load_ext reload_ext autoreload config precision timeit pinfo pinfo2 psource who whos who_ls lsmagic"
).split()
QUIET += ["history", "html", "HTML", "javascript", "js", "markdown", "latex", "svg"]  # no training needs what they do
DONE = ("time", "cd", "env", "set_env")
SHELL = ("system", "system_raw", "getoutput")
MAGIC = {"run_line_magic": "%", "run_cell_magic": "%%"}


class Shell:
    """What get_ipython() returns in a replay: it measures and sets, and starts no program; all else does nothing."""

    def __init__(self, main: types.ModuleType) -> None:
        self.user_ns = vars(main)

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        """Return that a program has said nothing."""
        return []

    def run_line_magic(self, name: str, line: str, *_: Any, **__: Any) -> Any:
        """Do what a magic does that a training may depend on."""
        words = line.replace("=", " ", 1).split(maxsplit=1)
        if name == "cd":
            os.chdir(os.path.expanduser(line.strip().removeprefix("-q").strip(" '\"") or "~"))
        elif name in ("env", "set_env") and len(words) == 2:
            os.environ[words[0]] = words[1]
        if name != "time":
            return None
        frame = sys._getframe(1)  # what is measured is executed at the line where it is written
        placed, file = "\n" * (frame.f_lineno - 1) + line.strip(), frame.f_code.co_filename
        try:
            code = compile(placed, file, "eval")
        except SyntaxError:
            code = compile(placed, file, "exec")
        return eval(code, self.user_ns)

    def __getattr__(self, name: str) -> Any:
        """Return what takes any call and does nothing: the body of a magic that is executed is a cell of its own."""
        return MagicMock()


def start(path: Path) -> None:
    """Execute the cells of a file; raises what the last one raises, RunError, DataError."""
    notebook = from_json(path.read_bytes(), source=str(path))
    job = program_info.job()
    if job is None:
        raise RunError("Cells are executed again by a replay only", do="ocrlab replay RUN")
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv[:] = [str(word) for word in notebook["argv"]]
    sys.path.insert(0, "")  # as in a kernel
    os.environ["MPLBACKEND"] = "Agg"  # there is nobody to look
    cells = {int(cell["number"]): opened(str(cell["code"])) for cell in notebook["cells"]}
    shell = Shell(main)
    vars(builtins).update(get_ipython=lambda: shell, display=lambda *_, **__: None)
    if any("import get_ipython" in code for code in cells.values()):
        with contextlib.suppress(ImportError):
            import IPython

            vars(IPython).update(get_ipython=lambda: shell)
            vars(IPython.core.getipython).update(get_ipython=lambda: shell)
    left = {number: list(dict.fromkeys(left_out(code))) for number, code in cells.items()}
    names = [f"{', '.join(words)} (In [{number}])" for number, words in left.items() if words]
    warn(f"not executed again: {'; '.join(names)}" if names else "")
    execute(cells, {int(number) for number in notebook["began"]}, Path(job["out"]), vars(main))
    raise RunError(
        f"{path} started no recording", got=f"the last cell, In [{max(cells)}]", need="ocrlab.record or ocrlab.Recorder"
    )


def opened(code: str) -> str:
    """Return the code of a cell; of one that is only measured or kept quiet its body, at the same lines."""
    call = next(iter(_calls(code)), None)
    if call is None or len(call) != 4 or call[0] != "run_cell_magic" or call[1] not in WRAPS:
        return code
    body = str(call[3])
    if any(sign in body for sign in "%!?"):
        from IPython.core.inputtransformer2 import TransformerManager

        body = TransformerManager().transform_cell(body)
    above = code[: len(code) - len(code.lstrip("\n"))] + "\n"
    return above + opened(body)


def left_out(code: str) -> Iterator[str]:
    """Yield what of a cell is not executed again; of a command only its program, as the rest may hold a password."""
    for name, *words in _calls(code):
        if name in SHELL:
            program = (str(words[0]).split() or [""])[0] if words else ""
            yield f"!{'' if '=' in program else program}"
        elif name in MAGIC and words and words[0] not in (*QUIET, *DONE):
            yield f"{MAGIC[name]}{words[0]}"
    if _awaits(code):
        yield "await outside of a function"


def _calls(code: str) -> Iterator[tuple[Any, ...]]:
    """Yield the calls of get_ipython()'s methods, as IPython writes magics: the name and its constants."""
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "get_ipython":
                    yield (
                        node.func.attr,
                        *(constant.value for constant in node.args if isinstance(constant, ast.Constant)),
                    )


def _awaits(code: str) -> bool:
    """Return whether a cell can be compiled only where a loop of events runs it."""
    try:
        compile(code, "<cell>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        with contextlib.suppress(SyntaxError, ValueError):
            compile(code, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            return True
    return False


def execute(cells: Mapping[int, str], began: set[int], out: Path, space: dict[str, Any]) -> None:
    """Execute cells in their order; one that raises goes on to the next, as in a notebook, but for the last one.

    One that was recorded before is executed up to its recording.
    """
    compiler = codeop.Compile()  # what a cell has from __future__ holds for the next ones too
    for number, code in cells.items():
        is_last = number == max(cells)
        notebook_cells.passing[:] = [number] if number in began and not is_last else []
        file = out / f"cell-{number}.py"
        run_folder.write_text(file, code + "\n", private=True)
        try:
            if not _awaits(code):
                eval(compiler(code, str(file), "exec"), space)  # executes statements too
        except notebook_cells.CellSkipped:
            warn(f"In [{number}] was executed up to its recording only")
        except BaseException as error:
            message = f"{type(error).__name__}: {error}".partition("\n")[0]
            if is_last and notebook_cells.warned and not notebook_cells.begun:
                raise RunError(f"In [{number}] raised {message}", got="; ".join(notebook_cells.warned)) from error
            if is_last or isinstance(error, KeyboardInterrupt):
                raise
            if not isinstance(error, SyntaxError):
                warn(f"In [{number}] raised {message}; the next cell was executed, as in a notebook")


def warn(text: str) -> None:
    """Keep a warning for the answer of the replay."""
    if text:
        notebook_cells.warned.append(text)
        print(f"ocrlab: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":  # by its name, so that its own frames are not taken for the program's
    importlib.import_module("ocrlab.debug.replay.child.run_cells").start(Path(sys.argv[1]))
