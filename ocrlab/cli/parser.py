"""What every command shares: its answer, its argument parser, and how it splits settings from its own words."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from ocrlab.errors import ConfigError

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass
class Answer:
    """What a command has to say: a JSON-ready record, the same as text for people, and the exit status."""

    record: dict[str, Any]
    text: str = ""
    status: int = 0


class Parser(argparse.ArgumentParser):
    """argparse with examples under the help, no guessed abbreviations, and wrong use as ConfigError."""

    def __init__(self, prog: str, what: str, example_lines: str) -> None:
        super().__init__(
            prog=prog,
            description=what[0].upper() + what[1:],
            epilog=examples_text(example_lines),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with what argparse found wrong, and the nearest option for one that there is not."""
        hint = f"See {self.prog} --help"
        if any("key=value" in str(action.metavar) for action in self._get_positional_actions()):
            hint = f"Settings are written key=value; see {self.prog} --help"
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        options = [option.removeprefix("--") for option in self._option_string_actions if option.startswith("--")]
        near = get_close_matches(unknown.removeprefix("--"), options, n=1) if unknown.startswith("--") else []
        if near:
            hint = f"The nearest is --{near[0]}; see {self.prog} --help"
        raise ConfigError(f"{self.prog.removeprefix('ocrlab ')}: {message}", do=hint)


class SubcommandParser(Parser):
    """The parser of a subcommand, whose file is imported when it is meant: another one may lack its packages."""

    def __init__(self, prog: str, what: str, file: Callable[[], Any]) -> None:
        super().__init__(prog, what, "")
        self.file: Callable[[], Any] | None = file

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the arguments and the examples of the file, and read the words; what is none of them ends it here."""
        if self.file is not None:
            file, self.file = self.file(), None
            self.epilog = examples_text(file.EXAMPLES)
            file.arguments(self)
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed, rest


def examples_text(text: str) -> str:
    """Return what stands at the end of a command's help."""
    return f"examples:\n{text.strip(chr(10))}"


def add_subcommands(parser: Parser, command: str, words: Mapping[str, str]) -> None:
    """Add a subcommand for each word; the file of a word has `EXAMPLES`, `arguments(parser)` and `run(args)`."""
    commands = parser.add_subparsers(dest="word", metavar="WORD", required=True, parser_class=SubcommandParser)
    for word, what in words.items():
        commands.add_parser(word, help=what, what=what, file=partial(import_subcommand, command, word))


def import_subcommand(command: str, word: str) -> ModuleType:
    """Return the file of a subcommand."""
    return importlib.import_module(f"ocrlab.cli.{command}_{word}")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, which every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, everything else to stderr")


def escape_control(text: str) -> str:
    """Return a text for a terminal: a control character, in a stranger's file name, is shown and not obeyed."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def table(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as text, columns aligned to the left."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in texts)
