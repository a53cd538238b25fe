"""`ocrlab run`: execute a notebook with parameters; notebook, HTML and JSON tell the truth however it ends."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from pathlib import Path

from ocrlab.cli.parser import POSITIVE, Answer, Parser, table
from ocrlab.errors import ConfigError

EXAMPLES = """
  ocrlab run notebooks/03_train.ipynb                          with its default parameters
  ocrlab run notebooks/03_train.ipynb -p max_steps 600 -p lr 1e-3
  ocrlab run notebooks/03_train.ipynb --cell-timeout 3600      a slower cell is ended as STUCK, with a verdict
  ocrlab run mine.ipynb --out elsewhere --no-html

To list trainings, use `ocrlab runs`.
"""
EXIT_STATUS = """\
exit status: 0 = PASS, WARN, or your own notebook without an outcome; 1 = FAIL, error, or an ocrlab notebook without an
outcome; 2 = usage error; 124 = STUCK; 128 + N = signal N ended the kernel or the command"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.epilog = f"{parser.epilog}\n\n{EXIT_STATUS}"
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="notebook to execute; the file is not changed")
    parser.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="set a parameter; name and type are checked against the parameters cell first",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("reports"), metavar="DIR", help="folder for the results (default: reports)"
    )
    parser.add_argument(
        "--timeout", type=POSITIVE, metavar="S", help="seconds for the whole notebook (default: no limit)"
    )
    parser.add_argument("--cell-timeout", type=POSITIVE, metavar="S", help="seconds for one cell (default: 86400)")
    parser.add_argument(
        "--html",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also write an HTML report (default: yes)",
    )


def run(args: argparse.Namespace) -> Answer:
    """Execute the notebook and answer with its files and how it ended; raises ConfigError before a kernel starts."""
    if args.notebook.is_dir():
        do = f"To list the trainings in it: ocrlab runs {args.notebook}"
        raise ConfigError(f"{args.notebook} is a folder, and `ocrlab run` executes a notebook", need="a .ipynb", do=do)
    if args.notebook.suffix == ".ipynb" and not args.notebook.exists():  # before what takes seconds to import
        raise ConfigError(f"There is no notebook {args.notebook}", do="Name a file that ends in .ipynb")
    from ocrlab.reports.html import document
    from ocrlab.reports.notebooks import pipeline

    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")  # the kernel of this environment, not the user's
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # the notebook says it better
    prepared = pipeline.prepare(args.notebook, args.parameters)
    notebook = pipeline.reserve(prepared, args.out)
    html, result = notebook.with_suffix(".html"), notebook.with_suffix(".json")
    if args.html:
        threading.Thread(target=document.warm, daemon=True).start()  # while the kernel starts
    stop: BaseException | None = None
    try:
        pipeline.execute(
            prepared,
            notebook,
            progress_bar=sys.stderr.isatty(),
            deadline=args.timeout,
            execution_timeout=args.cell_timeout,
        )
    except BaseException as error:  # Ctrl-C too: what there is, is written first
        stop = error
    outcome = pipeline.finish(notebook, with_html=args.html)
    rows: list[tuple[str, object]] = [
        ("outcome", f"{outcome.outcome}. {outcome.sentence}"),
        ("notebook", notebook),
        *([("report", html)] if args.html else []),
        ("result", result),
    ]
    if stop is not None:
        print(table(rows), file=sys.stderr)
        raise stop
    record = {
        "schema": 1,
        "status": "success" if outcome.exit_status == 0 else "failure",
        "outcome": outcome.outcome,
        "sentence": outcome.sentence,
        "exit_status": outcome.exit_status,
        "notebook": str(notebook),
        "html": str(html) if args.html else None,
        "result": str(result),
    }
    return Answer(record, table(rows), outcome.exit_status)
