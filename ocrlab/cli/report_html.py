"""`ocrlab report html`: an executed notebook, ours or anybody's, as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from ocrlab import redaction
from ocrlab.cli import output_paths
from ocrlab.cli.parser import Answer, number
from ocrlab.errors import ConfigError, DataError, escape_name
from ocrlab.records import SCHEMA

EXAMPLES = """
  ocrlab report html reports/20260102-030405-03_train.ipynb      writes the .html beside it
  ocrlab report html mine.ipynb --out mine-to-share.html         any executed notebook
  ocrlab report html mine.ipynb --most 300                       at most 300 kB
  ocrlab report html mine.ipynb --overwrite                      replace the earlier file
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    add = parser.add_argument
    add("notebook", type="path", metavar="NOTEBOOK", help="executed notebook; it is not changed")
    add("--out", type="path", metavar="FILE", help="new file (default: beside the notebook, as .html)")
    add(
        "--most",
        type=number(int, "100 KB or more", lambda value: value >= 100),
        default=2000,
        metavar="KB",
        help="maximum size of the file; pictures are shrunk to fit (default: 2000)",
    )
    add("--overwrite", action="store_true", help="replace FILE if it exists")


def run(args: argparse.Namespace) -> Answer:
    """Write the report, and answer with its size and the number of texts that were replaced in it."""
    notebook: Path = args.notebook
    need = "an executed notebook, a file that ends in .ipynb"
    if notebook.is_dir():
        raise ConfigError(f"{notebook} is a folder", need=need)
    out: Path = args.out or notebook.with_suffix(".html")
    if out.is_dir() or (out.exists() and out.samefile(notebook)):
        raise ConfigError("--out cannot be written", got=out, need="the name of an HTML file")
    if not args.overwrite:
        output_paths.new_file(out, "--out", need="a new file in --out, or --overwrite")
    if not notebook.exists():
        raise DataError(f"There is no notebook {notebook}", need=need, missing=True)
    from ocrlab.reports.html import document

    output_paths.make(out.parent, "--out")
    over = out.exists()
    written = document.write(notebook, out, 1000 * args.most)
    record = {
        "schema": SCHEMA,
        "notebook": str(notebook),
        "out": str(out),
        "overwritten": over,
        "bytes": out.stat().st_size,
        "outcome": written.outcome,
        "redacted": written.redacted,
    }
    size = f"{out.stat().st_size / 1e3:.0f} kB"
    text = f"{escape_name(out)}{' (replaced)' if over else ''}, {size}, {redaction.note(written.redacted)}"
    return Answer(record, text)
