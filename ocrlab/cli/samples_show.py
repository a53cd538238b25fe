"""`ocrlab samples show`: annotated pages as one contact sheet, and what the split holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.cli import output_paths
from ocrlab.cli.parser import COUNT, Answer, table
from ocrlab.errors import ConfigError
from ocrlab.records import SCHEMA

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ocrlab.data.annotations import Problem
    from ocrlab.data.formats.reader import Sample

CELL, COLUMNS, GAP = 400, 4, 8  # pixels, pages in a row, pixels
COUNTED, IGNORED = (40, 160, 40), (200, 40, 40)  # RGB
EXAMPLES = """
  ocrlab samples show receipts                            12 pages of the train split
  ocrlab samples show receipts --split val --out sheet.png
  ocrlab samples show coco/train.json --pages 40
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument("folder", type="path", metavar="DIR", help="data folder or annotation file")
    parser.add_argument("--split", default="train", metavar="NAME", help="split to show (default: train)")
    parser.add_argument(
        "--pages", type=COUNT, default=12, metavar="N", help="number of pages on the sheet (default: 12)"
    )
    parser.add_argument(
        "--out", type="path", metavar="PNG", help="new file to write (default: reports/samples-DIR-SPLIT.png)"
    )


def run(args: argparse.Namespace) -> Answer:
    """Count pages and boxes of a split and draw its first pages."""
    picture = args.out or output_paths.unused(
        Path("reports") / f"samples-{args.folder.resolve().name}-{args.split}.png"
    )
    if picture.suffix.lower() != ".png":
        raise ConfigError("The sheet is a PNG picture", got=str(picture), need="a name that ends in .png")
    output_paths.new_file(picture, "--out")
    from ocrlab.data.formats import reader

    index = reader.load(args.folder, args.split)
    output_paths.make(picture.parent, "--out")
    pixels, unread = sheet(index.samples[: args.pages])
    output_paths.write_png(picture, pixels)
    problems = index.problems + unread
    left_out = index.left_out + len(unread)
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
        "problems": [str(problem) for problem in problems],
        "picture": str(picture),
    }
    shown = [(name, value) for name, value in record.items() if name not in ("schema", "problems")]
    return Answer(record, "\n".join([table(shown), *map(str, problems)]), 1 if left_out else 0)


def sheet(samples: Sequence[Sample]) -> tuple[NDArray[np.uint8], list[Problem]]:
    """Return pages (H, W, 3) RGB beside and below each other, and what is wrong with those whose place is empty.

    Boxes that count are green, ignored ones red.
    """
    import numpy as np

    from ocrlab.data.annotations import PageError, page_errors

    rows = -(-len(samples) // COLUMNS)
    columns = min(COLUMNS, len(samples))
    whole = np.full((rows * (CELL + GAP) - GAP, columns * (CELL + GAP) - GAP, 3), 255, np.uint8)
    problems = []
    for number, sample in enumerate(samples):
        try:
            with page_errors(sample.image):
                page = draw_page(sample)
        except PageError as error:
            problems.append(error.problem)
            continue
        y, x = (CELL + GAP) * (number // COLUMNS), (CELL + GAP) * (number % COLUMNS)
        whole[y : y + page.shape[0], x : x + page.shape[1]] = page
    return whole, problems


def draw_page(sample: Sample) -> NDArray[np.uint8]:
    """Return one page at most CELL pixels high and wide, with its boxes."""
    import cv2
    import numpy as np

    from ocrlab.data.formats import reader

    scale = CELL / max(sample.width, sample.height)
    size = (max(1, round(sample.width * scale)), max(1, round(sample.height * scale)))
    page = np.asarray(cv2.resize(reader.read_image(sample.image), size, interpolation=cv2.INTER_AREA), np.uint8)
    for polygon, ignored in zip(sample.polygons, sample.ignored, strict=True):
        points = np.rint(polygon * scale).astype(np.int32)
        cv2.polylines(page, [points], isClosed=True, color=IGNORED if ignored else COUNTED, lineType=cv2.LINE_AA)
    return page
