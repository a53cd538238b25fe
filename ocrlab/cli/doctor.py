"""`ocrlab doctor`: ten steps from Python to a training step, each finding with what fixes it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from ocrlab.cli.parser import Answer, Parser
from ocrlab.hardware.doctor import doctor_job, text_table
from ocrlab.hardware.doctor.check_spec import Options, interpreter
from ocrlab.hardware.doctor.doctor_job import STEPS, worst
from ocrlab.records import SCHEMA, Check, check_record
from ocrlab.redaction import clean

EXAMPLES = """
  ocrlab doctor                                      this machine and this Python, in ten steps
  ocrlab doctor --python ~/project/.venv/bin/python  another Python; ocrlab need not be installed there
  ocrlab doctor --json > doctor.json                 for a program, or for a bug report

exit status: 0 = ok or warnings; 1 = at least one check failed; 2 = usage error
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="Python interpreter to check (default: the current one)",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder for runs; its disk is tested (default: runs)",
    )


def run(args: argparse.Namespace) -> Answer:
    """Run the ten steps; status 1 with any finding that fails. Raises ConfigError where PATH is not a program."""
    options = Options(interpreter(args.python), args.runs)
    began = time.monotonic()
    # Colours only on a terminal that has not declined them (no-color.org).
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"
    look = text_table.TerminalStyle(shutil.get_terminal_size((80, 24)).columns, colours)
    if not args.json:
        print(f"ocrlab doctor looks at {clean(options.python)}\n", flush=True)
    checks = doctor_job.run(options) if args.json else doctor_job.run(options, LiveReport(look))
    seconds = time.monotonic() - began
    steps = [
        {"step": number, "title": title, "judgement": worst([check for check in checks if check.step == number])}
        for number, title in enumerate(STEPS, 1)
    ]
    record = {
        "schema": SCHEMA,
        "status": worst(checks),
        "python": clean(options.python),
        "seconds": round(seconds, 3),
        "steps": steps,
        "checks": [check_record(check) for check in checks],
        "notes": list(text_table.NOTES),
    }
    text = "\n".join(["", text_table.summary(checks, seconds, look), "", *text_table.notes(look)])
    return Answer(record, text, int(worst(checks) == "fail"), coloured=True)


class LiveReport:
    """Prints findings as they come, in the order of the steps; on a terminal the last line says what runs."""

    def __init__(self, look: text_table.TerminalStyle) -> None:
        self.look, self.tty = look, sys.stdout.isatty()
        self.next = 1

    def __call__(self, complete: dict[int, list[Check]], running: list[str]) -> None:
        """Print each step that is complete, as soon as all before it are."""
        if self.tty:
            print("\r\x1b[K", end="")
        while self.next in complete:
            print(text_table.heading(self.next, self.look))
            for check in complete[self.next]:
                print("\n".join(text_table.finding(check, self.look)))
            self.next += 1
        if self.tty and running:
            print(self.look.paint(f"    … {', '.join(running)}"[: self.look.columns - 1], "2"), end="")
        sys.stdout.flush()
