"""`ocrlab predict`: find the text of images and write it beside each other's names, never over a file."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ocrlab.cli import pages, progress
from ocrlab.cli.answer import Answer, Parser, add_json
from ocrlab.errors import ConfigError
from ocrlab.records import SCHEMA, to_json
from ocrlab.settings.overrides import is_override

FORMATS = ("json", "icdar", "overlay")
EXAMPLES = """
  ocrlab predict page.jpg --out found                     with the best checkpoint of the newest successful run
  ocrlab predict scans more/page.png --out found --checkpoint best.ckpt
  ocrlab predict scans --out found --format json overlay
  ocrlab predict scans --out found post.threshold=0.4 evaluate.long_side=960 --json
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.add_argument(
        "words", nargs="*", metavar="PATH|key=value", help="images, folders, and settings such as post.threshold=0.4"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="CKPT", help="a .ckpt file; without it the newest run's best"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for what is found")
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS), help="what to write (all three)")
    add_json(parser)


def run(args: argparse.Namespace) -> Answer:
    """Predict, and answer with every page's detections and the pages that were left out; fails when no page is left."""
    settings = [word for word in args.words if is_override(word) and not Path(word).exists()]
    paths = [Path(word) for word in args.words if word not in settings]
    asked = pages.check(settings)
    if not paths:
        raise ConfigError("predict was given no image", need="files or folders", do="See ocrlab predict --help")
    detector = pages.open_detector(args.checkpoint, settings, asked)
    from ocrlab import predict

    left_out: list[str] = []

    def complain(text: str) -> None:
        left_out.append(text)
        print(f"left out: {text}", file=sys.stderr)

    start = time.perf_counter()
    with progress.of_pages("predicting") as tick:
        found = list(predict.predict_files(detector, paths, args.out, args.format, tick=tick, complain=complain))
    record = {
        "schema": SCHEMA,
        "checkpoint": str(detector.checkpoint) if detector.checkpoint else None,
        "out": str(args.out),
        "formats": args.format,
        "pages": len(found),
        "left_out": left_out,
        "seconds": time.perf_counter() - start,
        "predictions": [to_json(page) for page in found],
    }
    count = sum(len(page.detections) for page in found)
    text = f"{len(found)} pages, {count} text regions, in {args.out}" + (
        f"; {len(left_out)} left out" if left_out else ""
    )
    return Answer(record, text, 0 if found else 1)
