"""`ocrlab memory why`: why a run ran out of memory, seven questions answered, and what to set instead."""

from __future__ import annotations

import argparse
import sys

from ocrlab.cli.answer import Answer, add_json, table
from ocrlab.redact import clean
from ocrlab.rerun.why import tried, why

TIMEOUT = 120.0
EXAMPLES = """
  ocrlab memory why runs/20260102-030405-receipts            a run folder, of ocrlab train or ocrlab watch
  ocrlab memory why train.log                                a log is enough
  ocrlab memory why runs/20260102-030405-receipts --try      run again, as it was and with the remedy
  ocrlab memory why train.log --try -- python train.py --batch-size 8
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument("path", metavar="RUN|LOG", help="run folder, log, or executed notebook; - reads stdin")
    parser.add_argument("--try", dest="attempt", action="store_true", help="run again and show that the remedy works")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="S", help=f"seconds for each run of --try ({TIMEOUT:g})"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> Answer:
    """Answer; status 0 where a cause was found (and with --try its remedy works), 1 otherwise."""

    def say(text: str) -> None:
        print(f"ocrlab memory why: {text}", file=sys.stderr, flush=True)

    answer = why(args.path)
    fine = bool(answer.found.kind)
    if args.attempt:
        answer = tried(answer, getattr(args, "program", []), args.timeout, say)
        fine = fine and bool(answer.tried and answer.tried["works"])
    parts = [table(answer.rows), "", answer.sentence]
    return Answer(clean(answer.record), clean("\n".join(parts)), 0 if fine else 1)
