"""`ocrlab replay`: the step that failed is run again alone, and its first fault named: module, operator, sample."""

from __future__ import annotations

import argparse
from pathlib import Path

from ocrlab.cli import consent
from ocrlab.cli.parser import Answer, reporter, table
from ocrlab.debug.replay.replay_job import TIMEOUT, Replayed, replay
from ocrlab.redaction import clean

EXAMPLES = """
  ocrlab replay runs/20260102-030405-receipts               the step in which the run ended
  ocrlab replay runs/20260102-030405-receipts --step 212    another step of the record
  ocrlab replay runs/mine --timeout 120 --json              at most two minutes; one JSON object

It executes the program that the run folder names, and unpickles raw batches.
"""
EXAMPLES += consent.HELP
EXAMPLES += (
    "\nexit status: 0 = the step ran again, with or without a fault; 1 = it could not run again; 2 = usage error\n"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="run folder with a flight record: of ocrlab train, ocrlab.record or ocrlab.Recorder",
    )
    parser.add_argument("--step", type=int, metavar="N", help="optimizer step, from 0 (default: the one that failed)")
    parser.add_argument("--rank", type=int, metavar="N", help="rank to replay (default: the one that failed first)")
    consent.add_option(parser)
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="S", help=f"seconds for everything (default: {TIMEOUT:g})"
    )


def run(args: argparse.Namespace) -> Answer:
    """Replay; status 0 where the question is answered, fault or not, 1 where the step could not be run again."""

    def start(trust: bool) -> Replayed:
        report = reporter("replay")
        return replay(args.run, args.step, rank=args.rank, timeout=args.timeout, trust=trust, report=report)

    done = consent.with_consent(start, args.trust)
    path = str(done.path) if done.path else None
    warnings = [f"warning: {text}" for text in done.record["warnings"]]
    lines = filter(None, [done.agreement, *warnings, done.sentence, path])
    text = clean("\n".join([table(done.rows), "", *lines]))
    return Answer({**clean(done.record), "path": path}, text, 0 if done.done else 1)
