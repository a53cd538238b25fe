"""`ocrlab evaluate --oracle DATA`: the best that any network could reach, over resolution x shrink ratio x unclip."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ocrlab.cli import progress
from ocrlab.cli.parser import Answer, Parser, table
from ocrlab.records import SCHEMA

if TYPE_CHECKING:
    from ocrlab.inference.upper_bound import Row

OPTIONS = ("config", "long_side", "shrink", "unclip", "shape")  # that only --oracle takes
WORTH = 0.01  # of hmean: a smaller difference is not reported
NAMED = 5  # boxes named in the text; the JSON has all
LOST = ("vanished", "thin", "merged")  # kinds of boxes
AIM = 0.7  # as in ocrlab.inference.upper_bound, which is not imported before it is needed


def unclip(text: str) -> Literal["exact"] | float:
    """Return an unclip setting from the command line; raises ValueError, which argparse turns into its own."""
    return "exact" if text == "exact" else float(text)


def arguments(parser: Parser) -> None:
    """Add the words of the oracle to those of evaluate."""
    group = parser.add_argument_group(
        "upper bound", "post-process perfect maps: the best score that these settings allow any network"
    )
    group.add_argument("--oracle", type="path", metavar="DATA", help="data folder; no checkpoint is needed")
    group.add_argument("--split", default="val", help="split of DATA (default: val)")
    group.add_argument(
        "--config", type="path", metavar="YAML", help="test the settings of this file (default: the default settings)"
    )
    group.add_argument(
        "--long-side",
        type=int,
        nargs="+",
        metavar="PX",
        help="page sizes to test, long side in pixels (default: 640 960 1280)",
    )
    group.add_argument(
        "--shrink", type=float, nargs="+", metavar="R", help="shrink ratios to test (default: 0.4 0.5 0.6 0.7)"
    )
    group.add_argument(
        "--unclip", type=unclip, nargs="+", metavar="U", help="unclip ratios to test (default: exact 1.5 2.0)"
    )
    group.add_argument(
        "--shape", choices=("quad", "polygon"), help="shape of a detection (default: post.shape of the config)"
    )


def last_split(args: argparse.Namespace) -> str:
    """Return the split that `split=NAME` or `--split NAME` asks for; the setting wins."""
    return str([args.split, *(word[6:] for word in args.settings if word.startswith("split="))][-1])


def run(args: argparse.Namespace) -> Answer:
    """Sweep, and answer with every row, the best, that of the config, and what is lost where."""
    from ocrlab.config import schema as configs

    split = last_split(args)
    config = configs.load(args.config, [word for word in args.settings if not word.startswith("split=")])
    shape = args.shape or config.post.shape
    from ocrlab.data.formats import reader
    from ocrlab.inference import upper_bound

    index = reader.load(args.oracle, split, exif=config.exif)
    current = (config.evaluate.long_side, config.targets.shrink_ratio, config.post.unclip)
    with progress.page_progress("drawing perfect maps") as tick:
        rows = upper_bound.sweep(
            index,
            long_sides=sorted({*(args.long_side or (640, 960, 1280)), current[0]}),
            shrink_ratios=sorted({*(args.shrink or (0.4, 0.5, 0.6, 0.7)), current[1]}),
            unclips=list(dict.fromkeys([*(args.unclip or ("exact", 1.5, 2.0)), current[2]])),
            shape=shape,
            config=config,
            tick=tick,
        )
    best, mine = upper_bound.best(rows), next(row for row in rows if row.setting == current)
    boxes = sum(int((~sample.ignored).sum()) for sample in index.samples)
    warning = config_warning(best, mine)
    lines = finding_lines(rows, best, mine, warning)
    merged = [[dataclasses.asdict(box) for box in group] for group in mine.merged]
    alone = {name: [dataclasses.asdict(box) for box in getattr(mine, name)] for name in ("vanished", "thin")}
    record = {
        "schema": SCHEMA,
        "data": str(args.oracle),
        "split": split,
        "shape": shape,
        "pages": len(index.samples),
        "boxes": boxes,
        "skipped": index.left_out,
        "best": row_record(best),
        "config": {**row_record(mine), "bins": mine.bins, **alone, "merged": merged},
        "warning": warning,
        "findings": lines,
        "rows": [row_record(row) for row in rows],
    }
    about = f"{len(index.samples)} pages, {boxes} boxes that count, shape {shape}: what perfect maps reach"
    about += f"; {index.left_out} pages left out" if index.left_out else ""
    text = "\n\n".join([about, rows_table(rows, best, mine), "\n".join(lines)])
    return Answer(record, text, 1 if index.left_out else 0)


def row_record(row: Row) -> dict[str, Any]:
    """Return a row for JSON, with numbers of boxes lost instead of the boxes."""
    return {
        **{name: getattr(row, name) for name in ("long_side", "shrink_ratio", "unclip")},
        **{f"hmean@{at}": value for at, value in row.hmean.items()},
        **{f"hmean@{at} at stride 4": value for at, value in row.coarse.items()},
        **{name: len(getattr(row, name)) for name in LOST},
    }


def rows_table(rows: Sequence[Row], best: Row, mine: Row) -> str:
    """Return the rows as a table; the best one and that of the config are marked."""
    head = ["long side", "shrink", "unclip", "hmean@0.5", "@0.7", "@0.8", "at stride 4: @0.5", "@0.7", "@0.8"]
    lines: list[list[object]] = [[*head, *LOST, ""]]
    for row in rows:
        marks = ", ".join(word for word, chosen in (("best", best), ("config", mine)) if row is chosen)
        figures = [f"{value:.4f}" for value in (*row.hmean.values(), *row.coarse.values())]
        lines.append([*row.setting, *figures, *(len(getattr(row, name)) for name in LOST), marks and f"<- {marks}"])
    return table(lines)


def finding_lines(rows: Sequence[Row], best: Row, mine: Row, warning: str | None) -> list[str]:
    """Return what the sweep found, one sentence each, the verdict on the config first."""
    good = f"The config is within {WORTH} of the best: hmean@{AIM} {mine.hmean[AIM]:.4f}."
    lines = [warning or good, *cost_lines(rows, best)]
    if (loss := mine.hmean[AIM] - mine.coarse[AIM]) > WORTH:
        small = "small text needs a larger page"
        lines.append(f"With maps of stride 4 the config loses {loss:.2f} hmean@{AIM}: {small}.")
    lines += lost_box_lines(mine)
    weak = [f"{name}: {hits} of {count}" for name, (count, hits) in mine.bins.items() if hits < (1 - WORTH) * count]
    if weak:
        lines.append(f"Found by the config at IoU {AIM}, by short side on the page: {', '.join(weak)}.")
    return lines


def config_warning(best: Row, mine: Row) -> str | None:
    """Return a warning if the config is more than 0.01 below the best row at an IoU, else None."""
    losses = {at: best.hmean[at] - mine.hmean[at] for at in mine.hmean}
    lost = ", ".join(f"{loss:.3f} hmean@{at}" for at, loss in losses.items() if loss > WORTH)
    pairs = zip(("evaluate.long_side", "targets.shrink_ratio", "post.unclip"), best.setting, mine.setting, strict=True)
    changes = " ".join(f"{key}={new}" for key, new, old in pairs if new != old)
    return f"WARNING: no network can make up for what this config loses: {lost}. Try {changes}." if lost else None


def cost_lines(rows: Sequence[Row], best: Row) -> list[str]:
    """Return what each setting costs, all else as in the best row, and what each unclip costs at its worst shrink."""
    at = {row.setting: row.hmean[AIM] for row in rows}
    top = best.hmean[AIM]
    sides, ratios = (dict.fromkeys(getattr(row, name) for row in rows) for name in ("long_side", "shrink_ratio"))
    costs = [
        *((f"A long side of {s}", top - at[s, best.shrink_ratio, best.unclip], best.long_side) for s in sides),
        *((f"Shrink {r:g}", top - at[best.long_side, r, best.unclip], best.shrink_ratio) for r in ratios),
    ]
    lines = [f"{what} costs {loss:.2f} hmean@{AIM} against {b:g}." for what, loss, b in costs if loss > WORTH]
    for setting in dict.fromkeys(row.unclip for row in rows):
        of = {
            row.shrink_ratio: at[best.long_side, row.shrink_ratio, best.unclip] - row.hmean[AIM]
            for row in rows
            if row.unclip == setting and row.long_side == best.long_side
        }
        if max(of.values()) > WORTH:
            each = ", ".join(f"{loss:.2f} with shrink {ratio:g}" for ratio, loss in of.items())
            lines.append(f"Unclip {setting} costs, in hmean@{AIM} against {best.unclip}: {each}.")
    return lines


def lost_box_lines(row: Row) -> list[str]:
    """Return which boxes the config loses before anything is learned, and why; they count from 1, as in a file."""

    def shown(names: Sequence[str]) -> str:
        more = f" and {len(names) - NAMED} more (--json has all)" if len(names) > NAMED else ""
        return "; ".join(names[:NAMED]) + more

    lines = []
    for boxes, why in (
        (row.vanished, "too small to be drawn (targets.min_text_size)"),
        (row.thin, "thinner on the map than post.min_size once shrunk"),
    ):
        if boxes:
            count = "1 box is" if len(boxes) == 1 else f"{len(boxes)} boxes are"
            lines.append(f"{count} {why}: {shown([f'{b.page} box {b.index + 1} ({b.short:g} px)' for b in boxes])}.")
    if row.merged:
        groups = "1 group" if len(row.merged) == 1 else f"{len(row.merged)} groups"
        names = [f"{group[0].page} boxes {' + '.join(str(b.index + 1) for b in group)}" for group in row.merged]
        lines.append(f"{groups} of boxes touch on the map and come back as one: {shown(names)}.")
    return lines
