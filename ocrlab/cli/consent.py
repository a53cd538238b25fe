"""The option --trust, and the question on a terminal, of commands that start what a run folder names."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import TypeVar

from ocrlab.debug.trials.consent import NotTrusted
from ocrlab.errors import escape_control

Result = TypeVar("Result")
HELP = """
A recorded program is started without asking only if you recorded it on this machine and its files are unchanged (a
keyed digest beside each file proves it). Otherwise the command prints what it would start, and asks on a terminal;
--trust answers yes.
"""


def add_option(parser: ArgumentParser) -> None:
    """Add --trust."""
    what = "start the recorded program without asking; it gets all your permissions"
    parser.add_argument("--trust", action="store_true", help=what)


def with_consent(start: Callable[[bool], Result], trust: bool) -> Result:
    """Return start(trust); where that needs consent, ask on a terminal. Raises NotTrusted without it."""
    try:
        return start(trust)
    except NotTrusted as error:
        if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
            raise
        print(f"{escape_control(str(error))}\nStart it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise
        return start(True)


def _is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", bool)())
