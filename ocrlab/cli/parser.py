"""Shared by every command: its answer, its argument parser, and text tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from ocrlab.errors import ConfigError, escape_control, escape_name
from ocrlab.records import finite


@dataclass
class Answer:
    """The result of a command: a JSON-ready record, the same as text for people, and the exit status."""

    record: dict[str, Any]
    text: str = ""
    status: int = 0
    coloured: bool = False  # the text holds colours for a terminal


class Parser(argparse.ArgumentParser):
    """argparse with examples under the help, no guessed abbreviations, and wrong use as ConfigError."""

    def __init__(self, prog: str, what: str, examples: str, commands: str = "") -> None:
        """Set up a parser; `commands` is the text that lists the subcommands, empty for a command without any."""
        epilog = "\n\n".join(filter(None, [commands, "examples:\n" + examples.strip("\n")]))
        super().__init__(
            prog=prog,
            description=f"{what[0].upper()}{what[1:]}" + ("" if what.endswith("?") else "."),
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.register("type", "path", _path)
        self._positionals.title = "arguments"
        if not commands:
            help_text = "print one JSON object on stdout, and everything else on stderr"
            self.add_argument("--json", action="store_true", help=help_text)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with what argparse found wrong, and the nearest option for one that there is not."""
        hint = f"See {self.prog} --help"
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        if unknown and any("key=value" in str(action.metavar) for action in self._get_positional_actions()):
            hint = f"Settings are written key=value; see {self.prog} --help"
        options = [option.removeprefix("--") for option in self._option_string_actions if option.startswith("--")]
        near = get_close_matches(unknown.removeprefix("--"), options, n=1) if unknown.startswith("--") else []
        if near:
            hint = f"The nearest is --{near[0]}; see {self.prog} --help"
        raise ConfigError(f"{self.prog.removeprefix('ocrlab ')}: {message}", do=hint)


def reporter(command: str) -> Callable[[str], None]:
    """Return what prints the progress of a command on stderr; an empty text is nothing to report."""

    def report(text: str) -> None:
        if text:
            print(escape_control(f"ocrlab {command}: {text}").replace("\n", "\n  "), file=sys.stderr, flush=True)

    return report


def json_line(record: Any) -> bytes:
    """Return a record as one line of UTF-8; NaN becomes null, and half of a surrogate pair its JSON escape."""
    text = json.dumps(finite(record), allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def number(kind: type[int] | type[float], need: str, fits: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return the argparse type of a number that `fits`; the error of any other one says what is needed."""

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if fits(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text} cannot be used. Needed: {need}")

    return read


COUNT = number(int, "a whole number, 1 or more", lambda value: value >= 1)
NATURAL = number(int, "a whole number, 0 or more", lambda value: value >= 0)
POSITIVE = number(float, "a number above 0", lambda value: 0 < value < math.inf)


def _path(text: str) -> Path:
    """Return a path of the command line; an empty one would be this folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def list_commands(commands: Mapping[str, str]) -> str:
    """Return one line for each command: its name and its purpose."""
    return "\n".join(f"  {name:<10} {purpose}" for name, purpose in commands.items())


def table(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as text, columns aligned to the left."""
    texts = [[escape_name(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in texts)
