"""`ocrlab report`: what is handed on to others: an executed notebook as one HTML file, and a bug report of a run."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from types import ModuleType

from ocrlab.cli.answer import Answer, Parser

WORDS = {
    "html": "write an executed notebook as one HTML file that needs no network and no script",
    "bug": "write a bug report of a run that fills itself in",
}
EXAMPLES = """
  ocrlab report html reports/20260102-030405-03_train.ipynb      beside it, as .html
  ocrlab report bug runs/20260102-030405-receipts                what failed, why, and how to see it again

`ocrlab report WORD --help` says more; each WORD takes --json.
"""


def arguments(parser: Parser) -> None:
    """Add a subcommand for each word that is there; `ocrlab report WORD --help` says more."""
    commands = parser.add_subparsers(dest="word", metavar="WORD", required=True, parser_class=Parser)
    for word, what in WORDS.items():
        if importlib.util.find_spec(f"ocrlab.cli.report_{word}") is None:
            continue
        command = module(word)
        command.arguments(commands.add_parser(word, help=what, what=what, examples=command.EXAMPLES))


def run(args: argparse.Namespace) -> Answer:
    """Run the subcommand."""
    answer: Answer = module(args.word).run(args)
    return answer


def module(word: str) -> ModuleType:
    """Return the file of a subcommand: `EXAMPLES`, `arguments(parser)` and `run(args)`."""
    return importlib.import_module(f"ocrlab.cli.report_{word}")
