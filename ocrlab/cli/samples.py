"""`ocrlab samples`: make synthetic receipts, and look at annotated pages as one contact sheet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.cli import progress
from ocrlab.cli.answer import Answer, Parser, add_json, table
from ocrlab.errors import ConfigError
from ocrlab.records import SCHEMA

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ocrlab.data.formats import Sample

CELL, COLUMNS, GAP = 400, 4, 8  # pixels, pages in a row, pixels
COUNTED, IGNORED = (40, 160, 40), (200, 40, 40)  # RGB
EXAMPLES = """
  ocrlab samples make receipts                            48 pages to learn from, 16 to measure on
  ocrlab samples make receipts --train 500 --val 50 --seed 7
  ocrlab samples show receipts --split val --out sheet.png
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.add_argument("action", choices=("make", "show"), help="write new pages, or look at those that are there")
    parser.add_argument("folder", type=Path, metavar="DIR", help="data folder")
    making = parser.add_argument_group("make")
    making.add_argument("--train", type=int, default=48, metavar="N", help="pages to learn from (48)")
    making.add_argument("--val", type=int, default=16, metavar="N", help="pages to measure on (16)")
    making.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other pages (0)")
    showing = parser.add_argument_group("show")
    showing.add_argument("--split", default="train", metavar="NAME", help="split to look at (train)")
    showing.add_argument("--pages", type=int, default=12, metavar="N", help="pages on the sheet (12)")
    showing.add_argument("--out", type=Path, metavar="PNG", help="the sheet (reports/samples-DIR-SPLIT.png)")
    add_json(parser)


def run(args: argparse.Namespace) -> Answer:
    """Make pages, or answer with what a split holds and draw its sheet."""
    if min(args.train, args.val, args.seed, args.pages - 1) < 0:
        raise ConfigError(
            "samples was given a number below its least", need="--train, --val, --seed from 0, --pages from 1"
        )
    return make(args) if args.action == "make" else show(args)


def make(args: argparse.Namespace) -> Answer:
    """Write synthetic receipts into the folder."""
    from ocrlab.data import synthetic

    with progress.of_pages("making") as tick:
        made = synthetic.make(args.folder, train=args.train, val=args.val, seed=args.seed, progress=tick)
    record = {"schema": SCHEMA, "folder": str(made.folder), "train": made.train, "val": made.val, "seed": args.seed}
    text = f"{made.train} train and {made.val} val pages with {made.lines} lines of text, {made.bytes / 1e6:.1f} MB"
    return Answer(record | {"lines": made.lines, "bytes": made.bytes}, f"{text}, in {made.folder}")


def show(args: argparse.Namespace) -> Answer:
    """Count pages and boxes of a split and draw its first pages."""
    picture = args.out or Path("reports") / f"samples-{args.folder.resolve().name}-{args.split}.png"
    if picture.suffix.lower() != ".png":
        raise ConfigError("The sheet is a PNG picture", got=str(picture), need="a name that ends in .png")
    import cv2

    from ocrlab import flight
    from ocrlab.data import formats

    index = formats.load(args.folder, args.split)
    picture.parent.mkdir(parents=True, exist_ok=True)
    _, data = cv2.imencode(".png", sheet(index.samples[: args.pages])[..., ::-1])
    flight.write_bytes(picture, data.tobytes())
    boxes = sorted(len(sample.polygons) for sample in index.samples)
    record = {
        "schema": SCHEMA,
        "folder": str(args.folder),
        "split": args.split,
        "pages": len(index.samples),
        "boxes": sum(boxes),
        "ignored": sum(int(sample.ignored.sum()) for sample in index.samples),
        "boxes_per_page": {"least": boxes[0], "median": boxes[len(boxes) // 2], "most": boxes[-1]},
        "dropped": dict(index.dropped),
        "problems": [str(problem) for problem in index.problems],
        "picture": str(picture),
    }
    shown = [(name, value) for name, value in record.items() if name not in ("schema", "problems")]
    return Answer(record, "\n".join([table(shown), *map(str, index.problems)]))


def sheet(samples: list[Sample]) -> NDArray[np.uint8]:
    """Return pages (H, W, 3) RGB beside and below each other; boxes that count are green, ignored ones red."""
    import numpy as np

    rows = -(-len(samples) // COLUMNS)
    columns = min(COLUMNS, len(samples))
    whole = np.full((rows * (CELL + GAP) - GAP, columns * (CELL + GAP) - GAP, 3), 255, np.uint8)
    for number, sample in enumerate(samples):
        page = drawn(sample)
        y, x = (CELL + GAP) * (number // COLUMNS), (CELL + GAP) * (number % COLUMNS)
        whole[y : y + page.shape[0], x : x + page.shape[1]] = page
    return whole


def drawn(sample: Sample) -> NDArray[np.uint8]:
    """Return one page at most CELL pixels high and wide, with its boxes."""
    import cv2
    import numpy as np

    from ocrlab.data import formats

    scale = CELL / max(sample.width, sample.height)
    size = (max(1, round(sample.width * scale)), max(1, round(sample.height * scale)))
    page = np.asarray(cv2.resize(formats.read_image(sample.image), size, interpolation=cv2.INTER_AREA), np.uint8)
    for polygon, ignored in zip(sample.polygons, sample.ignored, strict=True):
        points = np.rint(polygon * scale).astype(np.int32)
        cv2.polylines(page, [points], isClosed=True, color=IGNORED if ignored else COUNTED, lineType=cv2.LINE_AA)
    return page
