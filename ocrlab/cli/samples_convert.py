"""`ocrlab samples convert`: annotated pages of any format that is read, written in another one."""

from __future__ import annotations

import argparse

from ocrlab.cli import progress
from ocrlab.cli.parser import Answer, table
from ocrlab.records import SCHEMA

TO = ("icdar", "jsonl", "ufo", "coco", "labelme", "shards")
EXAMPLES = """
  ocrlab samples convert cord cord-icdar --to icdar
  ocrlab samples convert totaltext totaltext-coco --to coco --images link
  ocrlab samples convert cocotext.v2.json street --to jsonl --split train val
  ocrlab samples convert street street-shards --to shards   tar shards, for millions of pages
  ocrlab samples convert ctw1500 ctw-quads --to icdar --quads

Images, polygons, transcriptions and ignore flags are copied exactly. What the new format cannot hold is counted. The
source is never changed, nothing is overwritten, and the new folder appears only when it is complete.

exit status: 0 = every page converted; 1 = pages left out; 2 = usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument("source", type="path", metavar="SRC", help="data folder or annotation file")
    parser.add_argument("target", type="path", metavar="DST", help="new folder to write")
    parser.add_argument("--to", required=True, choices=TO, help="format to write (required)")
    parser.add_argument("--split", nargs="+", default=[], metavar="NAME", help="splits to convert (default: all)")
    parser.add_argument(
        "--images",
        choices=("copy", "link", "none"),
        default="copy",
        help="copy images, hard-link them, or write annotations only (default: copy)",
    )
    parser.add_argument(
        "--quads", action="store_true", help="replace polygons that do not have 4 points by their smallest rectangle"
    )


def run(args: argparse.Namespace) -> Answer:
    """Convert, and answer with what was written, what was lost and what was left out."""
    from ocrlab.data.formats.convert import convert, pages_lost

    with progress.page_progress("converting") as tick:
        converted = convert(
            args.source, args.target, args.to, splits=args.split, images=args.images, quads=args.quads, progress=tick
        )
    lost = {what: count for what, count in converted.lost.items() if count}
    record = {
        "schema": SCHEMA,
        "folder": str(converted.folder),
        "format": args.to,
        "pages": converted.pages,
        "boxes": converted.boxes,
        "images": args.images,
        "lost": lost,
        "problems": [str(problem) for problem in converted.problems],
    }
    shown = [(name, value) for name, value in record.items() if name not in ("schema", "lost", "problems")]
    lines = [f"lost: {count} {what}" for what, count in lost.items()] or ["lost: nothing"]
    text = "\n".join([table(shown), *lines, *map(str, converted.problems)])
    return Answer(record, text, 1 if pages_lost(converted) else 0)
