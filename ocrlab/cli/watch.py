"""`ocrlab watch`: run any program, and name the cause when it crashes or hangs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ocrlab import redaction
from ocrlab.cli.parser import Answer, Parser
from ocrlab.debug.watch.supervisor import Options, watch
from ocrlab.errors import ConfigError, RunError
from ocrlab.records import SCHEMA, to_json

USAGE = "ocrlab watch [options] -- COMMAND"
TAKES_PROGRAM = True  # what comes after -- is the command
EXAMPLES = """
  ocrlab watch -- python train.py --epochs 3              output and exit status stay those of the program
  ocrlab watch --run-dir out/run7 -- torchrun train.py    the verdict goes to out/run7/incident/verdict.md
  ocrlab watch --silence 60 --on-hang kill -- python x.py terminate after a minute without progress
  ocrlab watch --record -- python train.py                add the flight recorder while it runs
  ocrlab watch --debug-cuda -- python train.py            raise CUDA errors where they happen

exit status: that of the program; 124 = a hang was terminated; 127 = command not found; 128 + N = signal N
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of this command."""
    parser.usage = "ocrlab watch [options] -- COMMAND..."
    parser.error = _wrong  # type: ignore[method-assign]  # its words are a command, not settings
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="run folder (default: runs/<time>-<program>)")
    parser.add_argument(
        "--silence",
        type=float,
        default=300.0,
        metavar="S",
        help="treat S seconds without progress as a hang (default: 300)",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="terminate the program after S seconds (default: no limit)"
    )
    parser.add_argument(
        "--debug-cuda",
        action="store_true",
        help="run CUDA synchronously, so errors are raised where they happen (slower)",
    )
    parser.add_argument(
        "--on-hang",
        choices=("report", "kill"),
        help="what to do on a hang (default: kill only programs whose heartbeat stopped)",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="add the flight recorder to a Python script while it runs, so that a crash names step and sample. The "
        "file is not changed. A script whose model, optimizer and loop are unclear runs without a recording",
    )
    parser.add_argument(
        "--outside",
        action="store_true",
        help="do not inject the error hook (it reports swallowed exceptions and values at the failing line)",
    )


def run(args: argparse.Namespace) -> Answer:
    """Run the program to its end; the answer has its exit status, and no text unless JSON is asked for."""
    if not args.program:
        raise ConfigError("watch: there is no command", need=USAGE)
    options = Options(args.run_dir, args.silence, args.timeout, args.debug_cuda, args.on_hang)
    options = replace(options, inside=not args.outside, record=args.record)
    try:
        ended = watch(args.program, options)
    except RunError as error:
        if isinstance(error.__cause__, OSError):
            raise
        do = "Choose another folder with --run-dir DIR, or stop that run first"
        raise ConfigError(error.what, got=error.got, need=error.need, do=do) from error
    record = {
        "schema": SCHEMA,
        "status": ended.status,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "exit_status": ended.exit_status,
        "run": str(ended.folder) if ended.folder else None,
        "verdict": redaction.clean(to_json(ended.verdict)) if ended.verdict else None,
    }
    return Answer(record, "", ended.exit_status)


def _wrong(message: str) -> NoReturn:
    """Raise ConfigError for arguments that argparse does not know: mostly a command without -- before it."""
    _, unrecognized, words = message.partition("unrecognized arguments: ")
    if unrecognized and not words.startswith("-"):
        raise ConfigError(f"watch: put -- before the command: {words}", need=USAGE)
    raise ConfigError(f"watch: {message}", need=USAGE, do="See ocrlab watch --help")
