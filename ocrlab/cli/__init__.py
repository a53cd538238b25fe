"""The command `ocrlab`: one file for each command, imported only when that command runs."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
import textwrap
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ocrlab._version import __version__
from ocrlab.cli.parser import Answer, Parser, list_commands, table
from ocrlab.cli.streams_and_signals import is_answering_process, outputs_to_stderr, prepare_streams, stop_signals
from ocrlab.errors import ConfigError, OcrlabError, escape_control, escape_name
from ocrlab.hardware import openmp
from ocrlab.records import SCHEMA, finite

GROUPS = {
    "train and use": {
        "train": "train a detector; everything about the run goes to one folder",
        "evaluate": "score a detector, or predictions of any detector, on annotated pages",
        "predict": "find the text in images: JSON, ICDAR text, pictures",
        "export": "write a detector as ONNX, after comparing it with torch",
        "run": "execute a notebook; if the kernel dies, the report names the cause",
        "runs": "list trainings: how they ended, in which settings they differ",
    },
    "something failed": {
        "watch": "run any program; when it crashes or hangs, name the cause and the fix",
        "diagnose": "name the cause in a log, a run folder or an executed notebook",
        "replay": "run the failed step again: which module, operator and sample?",
        "bisect": "run short trials: which setting, pair of settings or sample?",
        "memory": "why memory ran out, what fits, who uses it now",
        "kernel": "check a CUDA kernel launch against the limits of a device",
    },
    "before you train": {
        "doctor": "check this machine, and print the command that fixes each problem",
        "samples": "make, show, check and convert annotated pages",
    },
    "share": {"report": "write a bug report of a run, or one HTML file of a notebook; secrets are replaced"},
}
COMMANDS = {name: purpose for group in GROUPS.values() for name, purpose in group.items()}
WHICH = (  # symptom, first command, second command, seconds until the answer, whether code must change
    ("a program crashes", "watch -- COMMAND", "watch --record -- COMMAND", "1", "no"),
    ("a program hangs", "watch -- COMMAND", "diagnose stacks.txt", "300", "no"),
    ("only a log is left", "diagnose LOG", "watch -- COMMAND", "1", "no"),
    ("a CUDA error", "watch --debug-cuda -- COMMAND", "doctor", "1", "no"),
    ("out of memory, or Killed", "memory why RUN|LOG", "memory fit data=DIR", "1", "no"),
    ("NaN, or one bad sample", "watch --record -- COMMAND", "replay RUN", "60", "no"),
    ("only some settings fail", "bisect --factor ... -- COMMAND", "replay RUN", "trials", "no"),
    ("it learns nothing", "check_step(...), in Python", "diagnose RUN", "60", "yes, 1 line"),
    ("labels may be wrong", "samples check DIR", "evaluate --oracle DIR", "10", "no"),
    ("nothing starts here", "doctor", "doctor --python PATH", "15", "no"),
    ("others should see it", "report bug RUN|LOG", "report html NOTEBOOK", "5", "no"),
)
HEADINGS = ("what you see", "first: ocrlab ...", "then: ocrlab ...", "seconds", "edit your code?")
EXAMPLES = """
  ocrlab train data=DIR
  ocrlab watch -- python train.py
  ocrlab diagnose train.log

`ocrlab COMMAND --help` describes one command. Exit status: 0 = done, 1 = failed, 2 = usage error, 124 = a hang was
terminated, 128 + N = signal N; `watch` returns the exit status of the program.
"""
LEARN = ("train", "evaluate", "predict", "export", "replay", "bisect", "memory")  # they or a child import torch
EXTRAS = {"run": "notebooks", "report": "notebooks"}  # what a command needs beyond the base, where that is not `train`
ALONE = ("numpy",)  # all that bisect lacks beside somebody's torch, which `ocrlab[train]` would replace

SPACE = " Needed: free disk space (see df -h). Delete something, or write to another disk."
FULL = {  # these errors do not name the file
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EFBIG: " Needed: a higher limit for the size of a file (see ulimit -f), or another file system.",
}

DONE, FAILED, WRONG_USE, BROKEN_PIPE = 0, 1, 2, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 2 wrong use, 128+n after signal n, else 1.

    With `--json` exactly one JSON object is printed, whatever happens; everything else goes to stderr.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    wants_json = "--json" in before_dashes(words)
    with stop_signals() as stopped:
        try:
            with outputs_to_stderr(wants_json):
                answer = perform(words)
        except BaseException as error:  # whatever it is, it becomes an exit status
            if isinstance(error, SystemExit) and not error.code and not stopped:
                answer, wants_json = Answer({}), False  # --help and --version, which argparse has printed
            else:
                answer = report_failure(error, EXTRAS.get(words[0] if words else "", "train"))
        answer.status = 128 + stopped[0] if stopped else answer.status
        return _print(answer, wants_json)


def perform(words: list[str]) -> Answer:
    """Run the command, or the subcommand, that the first words name; raises ConfigError if there is none."""
    name = words[0] if words else "--help"
    if name not in COMMANDS:
        groups = [f"{heading}:\n{list_commands(commands)}" for heading, commands in GROUPS.items()]
        which = f"which command?\n{textwrap.indent(table([HEADINGS, *WHICH]), '  ')}"
        parser = Parser(
            "ocrlab", "train a text detector, and explain why a PyTorch training failed", EXAMPLES, "\n\n".join(groups)
        )
        parser.description = f"{parser.description}\n\n{which}"
        parser.add_argument("--version", action="version", version=f"ocrlab {__version__}")
        parser.add_argument("command", metavar="COMMAND", help="one of the commands below, followed by its arguments")
        name = parser.parse_known_args(words or ["--help"])[0].command
        near = get_close_matches(name, COMMANDS, n=1)
        do = f"The nearest is ocrlab {near[0]}" if near else "See ocrlab --help"
        raise ConfigError(f"{name!r} is not a command", need=f"one of {', '.join(COMMANDS)}", do=do)
    command: Any = importlib.import_module(f"ocrlab.cli.{name}")
    prog, what, words = f"ocrlab {name}", COMMANDS[name], words[1:]
    if subcommands := getattr(command, "WORDS", None):
        parser = Parser(prog, what, command.EXAMPLES, f"commands:\n{list_commands(subcommands)}")
        parser.add_argument("word", metavar="COMMAND", choices=subcommands, help="one of the commands below")
        word = parser.parse_args(words[:1]).word
        command = importlib.import_module(f"ocrlab.cli.{name}_{word}")
        prog, what, words = f"{prog} {word}", subcommands[word], words[1:]
    parser = Parser(prog, what, command.EXAMPLES)
    command.arguments(parser)
    runs = getattr(command, "TAKES_PROGRAM", False)
    ours = before_dashes(words) if runs or getattr(command, "TAKES_PATHS", False) else words
    args = parser.parse_intermixed_args(ours)
    args.program = words[len(ours) + 1 :]  # what stands after --: somebody's program, or paths of any look
    if name in LEARN and not (runs and args.program):
        openmp.sleep_soon(os.environ)
    answer: Answer = command.run(args)
    return answer


def before_dashes(words: list[str]) -> list[str]:
    """Return the words before the first `--`: those after it belong to the program to run."""
    return words[: words.index("--")] if "--" in words else words


def report_failure(error: BaseException, extra: str = "train") -> Answer:
    """Print on stderr what went wrong, with OCRLAB_TRACEBACK=1 its traceback too, and return it as an answer.

    `extra` is what brings a package that is not installed: the base alone holds what watches.
    """
    status = WRONG_USE if isinstance(error, OcrlabError) and error.wrong_use else FAILED
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else FAILED
    elif isinstance(error, KeyboardInterrupt | BrokenPipeError):
        status = 128 + (signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGPIPE)
    stopped = f"stopped by {signal.Signals(status - 128).name}" if status > 128 else ""
    text = stopped or _error_text(error, extra)
    details = {"type": "Interrupted" if stopped else type(error).__name__, "message": stopped or str(error)}
    if os.environ.get("OCRLAB_TRACEBACK") == "1":
        traceback.print_exception(error)
    if text and status != BROKEN_PIPE:  # `ocrlab ... | head` is not a failure
        print(f"ocrlab: {escape_control(text)}", file=sys.stderr)
    return Answer({"schema": SCHEMA, "status": "failure", "exit_status": status, "error": details}, status=status)


def _error_text(error: BaseException, extra: str) -> str:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, str) else ""
    if isinstance(error, OcrlabError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("ocrlab"):
        package = error.name if error.name in ALONE else f"'ocrlab[{extra}]'"
        return f"{error.name} is not installed; pip install {package} brings it"
    if isinstance(error, OSError) and error.strerror:
        name = escape_name(error.filename or "")
        if error.errno in FULL:
            return f"{name or 'A file'} could not be written. Given: {error.strerror}.{FULL[error.errno]}"
        return f"{f'{name} cannot be used' if name else 'The system refused'}. Given: {error.strerror}."
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename}:{frame.lineno} in {frame.name}"
    return f"{type(error).__name__}: {error}\n  at {place}\n  OCRLAB_TRACEBACK=1 shows the whole way there."


def _print(answer: Answer, wants_json: bool) -> int:
    """Print the answer and return the exit status; a reader that has gone away, or a full disk, has its own."""
    text = answer.text if answer.coloured else escape_control(answer.text)
    if wants_json:
        text = json.dumps(finite(answer.record), allow_nan=False, ensure_ascii=False)
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # file names may hold any bytes
            text = json.dumps(finite(answer.record), allow_nan=False)
    try:
        if is_answering_process():
            if text:
                print(text)
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit is quiet too
        return report_failure(OSError(error.errno, error.strerror, "stdout")).status
    return answer.status
