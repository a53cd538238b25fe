"""`ocrlab evaluate`: score a checkpoint, or anybody's predictions, on annotated pages."""

from __future__ import annotations

import argparse
import csv
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.cli import detector_options, output_paths, progress, upper_bound
from ocrlab.cli.parser import Answer, Parser, json_line, table
from ocrlab.errors import ConfigError
from ocrlab.records import SCHEMA

if TYPE_CHECKING:
    from ocrlab.config.schema import Config
    from ocrlab.evaluation.metrics.page_scores import DatasetScores

EXAMPLES = """
  ocrlab evaluate data=receipts                           the newest run's best detector, else the included one
  ocrlab evaluate --checkpoint runs/NAME/checkpoints/last.ckpt data=receipts
  ocrlab evaluate --checkpoint best.ckpt data=receipts split=test --json
  ocrlab evaluate --checkpoint best.ckpt data=receipts post.threshold=0.4 evaluate.long_side=960
  ocrlab evaluate --predictions found data=receipts --per-image pages.csv
  ocrlab evaluate --oracle receipts                       before training: what can these settings reach at best?

exit status: 0 = every page scored; 1 = pages left out; 2 = usage error
"""
FIGURES = ("hmean", "precision", "recall")
WORST = 5
NOTHING = "WARNING: no box of these pages counts: recall and hmean mean nothing, 0.0000 is not a failure."


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    group = parser.add_argument_group("what to score (at most one of these)")
    group.add_argument("--checkpoint", type="path", metavar="CKPT", help=detector_options.NEWEST)
    group.add_argument(
        "--predictions",
        type="path",
        metavar="PATH",
        help="predictions: output of ocrlab predict, a folder with one ICDAR .txt or .json for each page, or a .jsonl",
    )
    parser.add_argument(
        "--per-image", type="path", metavar="FILE", help="write one line for each page to this new .jsonl or .csv file"
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="data=DIR (required), split=NAME (default: val), and settings that start with post. or evaluate.",
    )
    upper_bound.arguments(parser)


def run(args: argparse.Namespace) -> Answer:
    """Evaluate, and answer with the figures of IoU, DetEval and CLEval, by size of text too, and the worst pages."""
    chosen = [f"--{name}" for name in ("checkpoint", "predictions", "oracle") if getattr(args, name) is not None]
    if len(chosen) > 1:
        need = "one of --checkpoint CKPT, --predictions PATH, --oracle DATA"
        raise ConfigError("evaluate scores one thing at a time", got=" and ".join(chosen), need=need)
    if args.oracle is not None:
        if args.per_image:
            raise ConfigError("--per-image has no effect on --oracle", do="Its --json names every box that is lost")
        return upper_bound.run(args)
    for name in upper_bound.OPTIONS:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} belongs to --oracle DATA", do="See ocrlab evaluate --help")
    words = [word for word in args.settings if not word.startswith("split=")]
    split = upper_bound.last_split(args)
    if not split:
        raise ConfigError("split has no value", need="a folder in data=DIR, such as split=val")
    if not any(word.startswith("data=") for word in words):
        raise ConfigError("evaluate needs the pages to score on", need="data=DIR", do="See ocrlab evaluate --help")
    if (rows_file := args.per_image) is not None:
        if rows_file.suffix not in (".jsonl", ".csv"):
            need = "a name ending in .jsonl or .csv"
            raise ConfigError("--per-image cannot write this kind of file", got=str(rows_file), need=need)
        output_paths.new_file(rows_file, "--per-image", in_existing_folder=True)
    others = [word for word in words if not word.startswith(("data=", "exif="))]
    if args.predictions and others:
        what = f"{others[0]} has no effect on predictions that exist already"
        raise ConfigError(what, need="data=DIR, split=NAME or exif=true")
    asked = detector_options.check(words, also=("data",))
    scored, source = score_predictions(args, asked, split) if args.predictions else score_checkpoint(args, asked, split)
    figures = scored.record()
    record = {"schema": SCHEMA, **figures, "pages": int(figures["pages"]), **source, "data": asked.data, "split": split}
    record["worst"] = scored.worst(WORST)
    if no_box(figures):
        record["warning"] = NOTHING
    if rows_file is not None:
        rows = scored.rows()
        with rows_file.open("x", encoding="utf-8", errors="backslashreplace", newline="") as file:
            if rows_file.suffix == ".csv":
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            else:
                file.writelines(json_line({"schema": SCHEMA, **row}).decode() for row in rows)
    step = f"ocrlab predict PAGES --checkpoint {shlex.quote(source.get('checkpoint', ''))}"
    if args.predictions:
        step = f"ocrlab samples check {shlex.quote(asked.data)}  (are the boxes of the worst pages right?)"
    return Answer(record, f"{scores_text(scored, figures)}\n\nnext: {step}", 1 if scored.skipped else 0)


def score_checkpoint(args: argparse.Namespace, asked: Config, split: str) -> tuple[DatasetScores, dict[str, str]]:
    """Score a detector; returns every page, and what was scored."""
    from ocrlab.data import folder_layouts

    folder_layouts.find(Path(asked.data).expanduser(), split)  # raises at once, before a network is loaded
    detector_options.check_checkpoint(args.checkpoint)
    words = [word for word in args.settings if not word.startswith("split=")]
    detector = detector_options.open_detector(args.checkpoint, words, asked)
    from ocrlab.inference import scoring

    with progress.page_progress("evaluating") as tick:
        scored = scoring.score(detector, asked.data, split, exif=detector.config.exif, tick=tick)
    return scored, {"checkpoint": str(detector.checkpoint)}


def score_predictions(args: argparse.Namespace, asked: Config, split: str) -> tuple[DatasetScores, dict[str, str]]:
    """Score existing predictions; returns every page, and what was scored."""
    from ocrlab.data.formats import reader
    from ocrlab.evaluation import prediction_scores

    predictions = prediction_scores.read(args.predictions)
    scored = prediction_scores.score(reader.load(asked.data, split, exif=asked.exif), predictions)
    return scored, {"predictions": str(args.predictions)}


def scores_text(scored: DatasetScores, figures: dict[str, float]) -> str:
    """Return the figures for people: by protocol, by size of text, and the worst pages."""
    from ocrlab.evaluation.metrics.page_scores import EDGES, SIZES

    protocols = {at: f"{{}}@{at}" for at in ("0.5", "0.7", "0.8")} | {"DetEval": "deteval_{}", "CLEval": "cleval_{}"}
    rows = [["IoU", *FIGURES]]
    for label, key in protocols.items():
        rows.append([label, *(f"{figures[key.format(name)]:.4f}" for name in FIGURES)])
    parts = [table(rows)]
    low, high = figures["hmean@0.5_low"], figures["hmean@0.5_high"]
    if low == low:  # not NaN, as with a single page
        parts.append(f"hmean@0.5: 95 % interval {low:.4f} to {high:.4f}, bootstrap over pages")
    ends = [f"below {EDGES[0]:g} px", f"{EDGES[0]:g} to {EDGES[1]:g} px", f"from {EDGES[1]:g} px"]
    sizes = [["text", "short side", "boxes", "hmean@0.5", "DetEval", "CLEval"]]
    for size, end in zip(SIZES, ends, strict=True):
        boxes = int(figures[f"truth/{size}"])
        of = [figures[f"{name}/{size}"] for name in ("hmean@0.5", "deteval_hmean", "cleval_hmean")]
        sizes.append([size, end, str(boxes), *(f"{value:.4f}" if boxes else "-" for value in of)])
    parts.append(table(sizes))
    keys = ("page", "hmean@0.5", "missed", "false", "deteval_hmean", "cleval_hmean")
    rows = [["worst pages", "hmean@0.5", "missed", "false", "DetEval", "CLEval"]]
    for row in scored.worst(WORST):
        rows.append([f"{row[key]:.4f}" if isinstance(row[key], float) else str(row[key]) for key in keys])
    parts.append(table(rows))
    if no_box(figures):
        parts.append(NOTHING)
    left_out = f", {scored.skipped} left out" if scored.skipped else ""
    return "\n\n".join([*parts, f"{len(scored.pages)} pages in {scored.seconds:.1f} s{left_out}"])


def no_box(figures: dict[str, float]) -> bool:
    """Return whether the pages have no box that counts, so that there was nothing to find."""
    from ocrlab.evaluation.metrics.page_scores import SIZES

    return not any(figures[f"truth/{size}"] for size in SIZES)
