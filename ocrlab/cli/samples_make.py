"""`ocrlab samples make`: synthetic receipts with exact polygons."""

from __future__ import annotations

import argparse

from ocrlab.cli import output_paths, progress
from ocrlab.cli.parser import NATURAL, Answer
from ocrlab.errors import ConfigError, escape_name
from ocrlab.records import SCHEMA

EXAMPLES = """
  ocrlab samples make receipts                            48 training pages and 16 validation pages
  ocrlab samples make receipts --train 500 --val 50
  ocrlab samples make receipts-2 --seed 7                 other pages
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument("folder", type="path", metavar="DIR", help="data folder to write")
    parser.add_argument("--train", type=NATURAL, default=48, metavar="N", help="number of training pages (default: 48)")
    parser.add_argument("--val", type=NATURAL, default=16, metavar="N", help="number of validation pages (default: 16)")
    parser.add_argument("--seed", type=NATURAL, default=0, metavar="N", help="random seed (default: 0)")


def run(args: argparse.Namespace) -> Answer:
    """Write synthetic receipts into the folder."""
    if not args.train and not args.val:
        raise ConfigError("No page to write", got="--train 0 --val 0", need="at least one page")
    output_paths.folder(args.folder, "DIR")
    from ocrlab.data.synthetic import generate

    with progress.page_progress("making") as tick:
        data_set = generate.make(args.folder, train=args.train, val=args.val, seed=args.seed, progress=tick)
    record = {"schema": SCHEMA, "folder": str(data_set.folder), "seed": args.seed}
    record |= {name: getattr(data_set, name) for name in ("train", "val", "lines", "bytes")}
    size = f"{data_set.lines} lines of text, {data_set.bytes / 1e6:.1f} MB"
    text = f"{data_set.train} train and {data_set.val} val pages with {size}, in {escape_name(data_set.folder)}"
    return Answer(record, text)
