"""Runs a training script with the flight recorder in it, for `ocrlab watch --record`; the file stays as it is.

    python recorded_script.py RUN SCRIPT ARGUMENTS...

The recorder is added to the script's syntax tree, whose lines keep their numbers. Whatever fails at that is printed in
one line, and the script runs as it is. It is `__main__`, and the traceback of its error has no frame of this file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any


class ScriptRecording:
    """The recorder of one script; what it is asked before it begins, and after an error of its own, changes nothing."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.recorder: Any = None

    def begin(self, parts: Callable[[], tuple[Any, Any, dict[str, Any]]]) -> None:
        """Begin to record the models and optimizers of the script, once."""
        if self.recorder is None:
            try:
                import ocrlab

                model, optimizer, options = parts()
                self.recorder = ocrlab.record(self.run, model, optimizer, **options)
            except Exception as error:
                report(error)

    def __getattr__(self, method: str) -> Callable[[Any], Any]:
        """Return a method of the recorder, or what returns its argument where there is none."""
        recorder = self.recorder
        return getattr(recorder, method) if recorder is not None else lambda value: value


def report(error: BaseException | str) -> None:
    """Print that the program is not recorded, and why."""
    if sys.stderr is not None:
        why = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        print(f"ocrlab watch: not recorded: {why}", file=sys.stderr, flush=True)


def compile_script(script: str, path: str, recording: ScriptRecording, module: ModuleType) -> CodeType:
    """Return the code of the script with the recorder in it, or as it is."""
    try:
        from ocrlab.debug.watch import recording_edits

        source = recording_edits.read_script(recording_edits.Path(script))
        edits = recording_edits.find_edits(source) if source is not None else "it is not Python"
        if not isinstance(edits, str):
            code = compile(edits.applied(), path, "exec", dont_inherit=True)
            setattr(module, recording_edits.RECORDING, recording)
            return code
        report(edits)
    except Exception as error:
        report(error)
    with open(script, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def frames_of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this file at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def main() -> None:
    """Run the script as `python SCRIPT` would."""
    run, script, *arguments = sys.argv[1:]
    path = os.path.abspath(script)
    sys.argv[:] = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=path, __loader__=SourceFileLoader("__main__", path), __builtins__=__builtins__)
    this = sys.modules["__main__"]  # stays alive: its functions run
    sys.modules["__main__"] = module
    try:
        exec(compile_script(script, path, ScriptRecording(run), module), module.__dict__)
    except BaseException:
        hook = sys.excepthook
        sys.excepthook = lambda kind, error, trace: hook(
            kind, error.with_traceback(frames_of_script(trace)), error.__traceback__
        )
        raise
    finally:
        del this


if __name__ == "__main__":
    main()
