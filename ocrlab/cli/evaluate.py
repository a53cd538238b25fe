"""`ocrlab evaluate`: score a checkpoint on annotated pages."""

from __future__ import annotations

import argparse
from pathlib import Path

from ocrlab.cli import pages, progress
from ocrlab.cli.answer import Answer, Parser, add_json, table
from ocrlab.errors import ConfigError
from ocrlab.records import SCHEMA

EXAMPLES = """
  ocrlab evaluate --checkpoint runs/NAME/checkpoints/last.ckpt data=receipts
  ocrlab evaluate --checkpoint best.ckpt data=receipts split=test --json
  ocrlab evaluate --checkpoint best.ckpt data=receipts post.threshold=0.4 evaluate.long_side=960
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="CKPT", help="a .ckpt file of ocrlab train")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="data=DIR (needed), split=NAME (val), and settings under post. and evaluate.",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> Answer:
    """Evaluate, and answer with hmean, precision and recall at IoU 0.5, 0.7 and 0.8, pages and seconds."""
    words = [word for word in args.settings if not word.startswith("split=")]
    splits = [word.removeprefix("split=") for word in args.settings if word.startswith("split=")]
    split = splits[-1] if splits else "val"
    if not split:
        raise ConfigError("split has no value", need="a folder in data=DIR, such as split=val")
    if not any(word.startswith("data=") for word in words):
        raise ConfigError("evaluate was not told on which pages", need="data=DIR", do="See ocrlab evaluate --help")
    asked = pages.check(words, also=("data",))
    detector = pages.open_detector(args.checkpoint, words, asked)
    from ocrlab import predict

    with progress.of_pages("evaluating") as tick:
        scores = predict.evaluate(detector, asked.data, split, exif=detector.config.exif, tick=tick)
    about = {"checkpoint": str(args.checkpoint), "data": asked.data, "split": split}
    record = {"schema": SCHEMA, **scores, "pages": int(scores["pages"]), **about}
    figures = ("hmean", "precision", "recall")
    rows = [[at, *(f"{scores[f'{figure}@{at}']:.4f}" for figure in figures)] for at in ("0.5", "0.7", "0.8")]
    return Answer(record, f"{table([['IoU', *figures], *rows])}\n{record['pages']} pages in {scores['seconds']:.1f} s")
