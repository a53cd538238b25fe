"""`ocrlab memory why`: why a run ran out of memory, check by check, and what to set instead."""

from __future__ import annotations

import argparse

from ocrlab.cli.parser import Answer, table
from ocrlab.debug.memory.explain_oom import explain_oom
from ocrlab.redaction import clean

EXAMPLES = """
  ocrlab memory why runs/20260102-030405-receipts            a run folder of ocrlab train or ocrlab watch
  ocrlab memory why train.log                                a log
  python train.py 2>&1 | ocrlab memory why -                 stdin
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument("path", metavar="RUN|LOG", help="run folder, log or executed notebook; - reads stdin")


def run(args: argparse.Namespace) -> Answer:
    """Answer; status 0 where a cause was found, 1 otherwise."""
    answer = explain_oom(args.path)
    parts = [table(answer.rows), "", answer.sentence]
    return Answer(clean(answer.record), clean("\n".join(parts)), 0 if answer.kind.kind else 1)
