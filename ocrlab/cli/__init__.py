"""The command `ocrlab`: one file a command, imported only when it is the one that runs."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ocrlab._version import __version__
from ocrlab.cli.parser import Answer, Parser, escape_control
from ocrlab.cli.streams_and_signals import (
    allow_any_bytes,
    is_answering_process,
    open_streams,
    outputs_to_stderr,
    stop_signals,
)
from ocrlab.errors import ConfigError, OcrlabError
from ocrlab.hardware import openmp
from ocrlab.records import SCHEMA, finite

COMMANDS = {
    "train": "train a detector; everything about it stays in one run folder",
    "evaluate": "score a checkpoint or predictions on annotated pages",
    "predict": "find the text of images: JSON, ICDAR text, overlay pictures",
    "export": "write a detector as ONNX, compared with torch before it is kept",
    "samples": "make pages, look at them, check them, convert them between formats",
    "doctor": "check this machine: what torch needs, what is broken, and the command that mends it",
    "watch": "run any program, and name the cause when it crashes or hangs",
    "diagnose": "read a log, a run folder or a notebook, and name the cause",
    "replay": "run the step that failed again: which module, operator and sample it was, and what makes it go away",
    "bisect": "run short trials with one setting after the other flipped, and name what makes it fail",
    "memory": "what fits into memory, why it ran out, and who holds it now",
    "kernel": "check a CUDA launch against the limits of a device, or put a profile into words",
    "run": "run a notebook so that its report tells the truth, also when its kernel dies (`runs` lists trainings)",
    "runs": "list the runs of a folder: how they ended, how they differ, what fails again (`run` executes a notebook)",
    "report": "hand on what happened: a notebook as one HTML file, a bug report of a run",
}
LEARN = ("train", "evaluate", "predict", "export", "replay", "bisect", "memory")  # they or a child import torch
EXTRAS = {"run": "notebooks", "report": "notebooks"}  # what a command needs beyond the base, where that is not `train`
ALONE = ("numpy",)  # all that bisect lacks beside somebody's torch, which `ocrlab[train]` would replace

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # whoever writes is not told of which file
SPACE = " Needed: a disk with space (df -h shows it). Free some, or write to another one."

DONE, FAILED, WRONG_USE, BROKEN_PIPE = 0, 1, 2, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 2 wrong use, 128+n after signal n, else 1.

    With `--json` exactly one JSON object is printed, whatever happens; everything else goes to stderr.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    allow_any_bytes()
    wants_json = "--json" in before_dashes(words)
    with stop_signals() as stopped:
        try:
            with outputs_to_stderr(wants_json):
                answer = perform(words)
        except BaseException as error:  # whatever it is, it becomes an exit status
            status = exit_status(error)
            if isinstance(error, SystemExit) and not error.code and not stopped:
                answer, wants_json = Answer({}), False  # --help and --version, which argparse has printed
            else:
                answer = Answer(_failure(error, status), status=status)
                print_error(error, status, EXTRAS.get(words[0] if words else "", "train"))
        answer.status = 128 + stopped[0] if stopped else answer.status
        return _print(answer, wants_json)


def perform(words: list[str]) -> Answer:
    """Run the command that the first word names and return its answer; raises ConfigError if there is none."""
    name = words[0] if words else "--help"
    if name not in COMMANDS:
        _show_help(words or ["--help"])
    command: Any = importlib.import_module(f"ocrlab.cli.{name}")
    parser = Parser(f"ocrlab {name}", COMMANDS[name], command.EXAMPLES)
    command.arguments(parser)
    runs = getattr(command, "TAKES_PROGRAM", False)
    ours = before_dashes(words[1:]) if runs or getattr(command, "TAKES_PATHS", False) else words[1:]
    # argparse cannot take options between words where there are subcommands; each subcommand can.
    parse = parser.parse_args if getattr(command, "WORDS", None) else parser.parse_intermixed_args
    args = parse(ours)
    args.program = words[len(ours) + 2 :]  # what stands after --: somebody's program, or paths of any look
    if name in LEARN and not (runs and args.program):
        openmp.sleep_soon(os.environ)
    answer: Answer = command.run(args)
    return answer


def before_dashes(words: list[str]) -> list[str]:
    """Return the words before the first `--`: those behind it belong to somebody else's program."""
    return words[: words.index("--")] if "--" in words else words


def _show_help(words: list[str]) -> None:
    """Answer `--help` and `--version` by SystemExit; raises ConfigError for anything else."""
    listing = "\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items())
    parser = Parser("ocrlab", "Train a text detector, and know why training failed.", "  ocrlab train data=DIR")
    parser.epilog = f"commands:\n{listing}\n\n`ocrlab COMMAND --help` says more.\n\n{parser.epilog}"
    parser.add_argument("--version", action="version", version=f"ocrlab {__version__}")
    parser.add_argument("command", help="one of those below, with what belongs to it")
    rest = parser.parse_known_args(words)[0].command
    near = get_close_matches(rest, COMMANDS, n=1)
    do = f"The nearest is ocrlab {near[0]}" if near else "See ocrlab --help"
    raise ConfigError(f"{rest!r} is not a command", need=f"one of {', '.join(COMMANDS)}", do=do)


def exit_status(error: BaseException) -> int:
    """Return the exit status that an exception stands for."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    return WRONG_USE if isinstance(error, OcrlabError) and error.wrong_use else FAILED


def print_error(error: BaseException, status: int, extra: str = "train") -> None:
    """Say on stderr what went wrong, in one message; with OCRLAB_TRACEBACK=1 the traceback too.

    `extra` is what brings a package that is not installed: the base alone holds what watches.
    """
    if os.environ.get("OCRLAB_TRACEBACK") == "1":
        traceback.print_exception(error)
    if status == BROKEN_PIPE:
        return  # `ocrlab ... | head` is no failure
    if status > 128:
        print(f"ocrlab: {_signal(status)}", file=sys.stderr)
    elif isinstance(error, OcrlabError) or (isinstance(error, SystemExit) and isinstance(error.code, str)):
        print(f"ocrlab: {escape_control(str(error))}", file=sys.stderr)
    elif isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("ocrlab"):
        brings = error.name if error.name in ALONE else f"'ocrlab[{extra}]'"
        print(f"ocrlab: {error.name} is not installed; pip install {brings} brings it", file=sys.stderr)
    elif isinstance(error, OSError) and error.strerror:
        full = error.errno in FULL
        what = f"{error.filename or 'A file'} could not be written" if full else f"{error.filename} cannot be used"
        what = what if full or error.filename else "The system refused"
        print(f"ocrlab: {escape_control(what)}. Given: {error.strerror}.{SPACE if full else ''}", file=sys.stderr)
    elif not isinstance(error, SystemExit):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno} in {frame.name}"
        print(escape_control(f"ocrlab: {type(error).__name__}: {error}\n  at {place}"), file=sys.stderr)
        print("  OCRLAB_TRACEBACK=1 shows the whole way there.", file=sys.stderr)


def _failure(error: BaseException, status: int) -> dict[str, Any]:
    details = {"type": type(error).__name__, "message": str(error)}
    if status > 128:
        details = {"type": "Interrupted", "message": _signal(status)}
    return {"schema": SCHEMA, "status": "failure", "exit_status": status, "error": details}


def _signal(status: int) -> str:
    return f"stopped by {signal.Signals(status - 128).name}"


def json_line(record: dict[str, Any], encoding: str | None) -> str:
    """Return a record as one line of JSON that a stream of this encoding takes, whatever bytes file names hold."""
    try:
        text = json.dumps(finite(record), allow_nan=False, ensure_ascii=False)
        text.encode(encoding or "utf-8")
        return text
    except UnicodeEncodeError:
        return json.dumps(finite(record), allow_nan=False)


def _print(answer: Answer, wants_json: bool) -> int:
    """Print the answer and return the exit status; a reader that has gone away, or a full disk, has one of its own."""
    text = json_line(answer.record, sys.stdout.encoding) if wants_json else answer.text
    try:
        if not is_answering_process():
            return answer.status
        if text:
            print(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit is quiet too
        status = exit_status(error)
        print_error(OSError(error.errno, error.strerror, "stdout"), status)
        return status
    return answer.status
