"""`ocrlab evaluate --oracle DATA`: the best that any network could reach, over resolution x shrink ratio x unclip."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ocrlab.cli import output_paths, progress
from ocrlab.cli.parser import Answer, Parser, table
from ocrlab.records import SCHEMA

if TYPE_CHECKING:
    from ocrlab.inference.upper_bound import Box, Row

LONG_SIDES, SHRINKS, UNCLIPS = (640, 960, 1280), (0.4, 0.5, 0.6, 0.7), ("exact", 1.5, 2.0)
WORTH = 0.01  # of hmean: less is not worth a word
NAMED = 5  # boxes told by name; the JSON has all
AIM = 0.7  # as in ocrlab.inference.upper_bound, which is not imported before it is needed


def unclip(text: str) -> Literal["exact"] | float:
    """Return an unclip setting from the command line; raises ValueError, which argparse turns into its own."""
    return "exact" if text == "exact" else float(text)


def arguments(parser: Parser) -> None:
    """Add the words of the oracle to those of evaluate."""
    group = parser.add_argument_group("oracle", "perfect maps through post-processing: what the settings alone lose")
    group.add_argument(
        "--oracle", type=output_paths.path, metavar="DATA", help="a data folder; no checkpoint is needed"
    )
    group.add_argument("--split", default="val", help="of DATA (default val)")
    group.add_argument(
        "--config", type=output_paths.path, metavar="YAML", help="judge these settings, not the defaults"
    )
    group.add_argument("--long-side", type=int, nargs="+", default=LONG_SIDES, metavar="PX", help="(640 960 1280)")
    group.add_argument("--shrink", type=float, nargs="+", default=SHRINKS, metavar="R", help="(0.4 0.5 0.6 0.7)")
    group.add_argument("--unclip", type=unclip, nargs="+", default=UNCLIPS, metavar="U", help="(exact 1.5 2.0)")
    group.add_argument("--shape", choices=("quad", "polygon"), help="of a detection (default: as configured)")


def run(args: argparse.Namespace) -> Answer:
    """Sweep, and answer with every row, the best, that of the config, and what is lost where."""
    from ocrlab.config import schema as configs

    words = list(getattr(args, "settings", None) or [])
    splits = [word.removeprefix("split=") for word in words if word.startswith("split=")]  # as evaluate takes it
    split = [args.split, *splits][-1]
    config = configs.load(args.config, [word for word in words if not word.startswith("split=")])
    shape = args.shape or config.post.shape
    from ocrlab.data.formats import reader
    from ocrlab.inference import upper_bound

    index = reader.load(args.oracle, split, exif=config.exif)
    current = (config.evaluate.long_side, config.targets.shrink_ratio, config.post.unclip)
    with progress.page_progress("drawing perfect maps") as tick:
        rows = upper_bound.sweep(
            index,
            long_sides=sorted({*args.long_side, current[0]}),
            shrink_ratios=sorted({*args.shrink, current[1]}),
            unclips=list(dict.fromkeys([*args.unclip, current[2]])),
            shape=shape,
            config=config,
            tick=tick,
        )
    best, mine = upper_bound.best(rows), next(row for row in rows if row.setting == current)
    boxes = sum(int((~sample.ignored).sum()) for sample in index.samples)
    lines = finding_lines(rows, best, mine)
    record = {
        "schema": SCHEMA,
        "data": str(args.oracle),
        "split": split,
        "shape": shape,
        "pages": len(index.samples),
        "boxes": boxes,
        "skipped": len(index.problems),
        "best": row_record(best),
        "config": {**row_record(mine), "bins": mine.bins, **loss_record(mine)},
        "warning": config_warning(best, mine),
        "findings": lines,
        "rows": [row_record(row) for row in rows],
    }
    about = f"{len(index.samples)} pages, {boxes} boxes that count, shape {shape}: what perfect maps reach"
    return Answer(record, "\n\n".join([about, rows_table(rows, best, mine), "\n".join(lines)]))


def row_record(row: Row) -> dict[str, Any]:
    """Return a row for JSON, with numbers of boxes lost instead of the boxes."""
    figures = {f"hmean@{at}": value for at, value in row.hmean.items()}
    figures |= {f"hmean@{at} at stride 4": value for at, value in row.coarse.items()}
    lost = {"vanished": len(row.vanished), "thin": len(row.thin), "merged": len(row.merged)}
    return {"long_side": row.long_side, "shrink_ratio": row.shrink_ratio, "unclip": row.unclip, **figures, **lost}


def loss_record(row: Row) -> dict[str, Any]:
    """Return the boxes that a row loses, by name, for JSON."""
    merged = [[dataclasses.asdict(box) for box in group] for group in row.merged]
    alone = {name: [dataclasses.asdict(box) for box in getattr(row, name)] for name in ("vanished", "thin")}
    return {**alone, "merged": merged}


def rows_table(rows: Sequence[Row], best: Row, mine: Row) -> str:
    """Return the rows as a table; the best one and that of the config are marked."""
    head = ["long side", "shrink", "unclip", "hmean@0.5", "@0.7", "@0.8", "at stride 4: @0.5", "@0.7", "@0.8"]
    lines: list[list[object]] = [[*head, "vanished", "thin", "merged", ""]]
    for row in rows:
        marks = ", ".join(word for word, chosen in (("best", best), ("config", mine)) if row is chosen)
        figures = [f"{value:.4f}" for value in (*row.hmean.values(), *row.coarse.values())]
        lost = [len(row.vanished), len(row.thin), len(row.merged)]
        lines.append([*row.setting, *figures, *lost, f"<- {marks}" if marks else ""])
    return table(lines)


def finding_lines(rows: Sequence[Row], best: Row, mine: Row) -> list[str]:
    """Return what the sweep found, one sentence each, the verdict on the config first."""
    lines = [
        config_warning(best, mine) or f"The config is within {WORTH} of the best: hmean@{AIM} {mine.hmean[AIM]:.4f}."
    ]
    lines += cost_lines(rows, best)
    coarse = mine.hmean[AIM] - mine.coarse[AIM]
    if coarse > WORTH:
        lines.append(
            f"With maps of stride 4 the config loses {coarse:.2f} hmean@{AIM}: small text wants a larger page."
        )
    lines += lost_box_lines(mine)
    weak = [f"{name}: {hits} of {count}" for name, (count, hits) in mine.bins.items() if hits < (1 - WORTH) * count]
    if weak:
        lines.append(f"Found by the config at IoU {AIM}, by short side on the page: {', '.join(weak)}.")
    return lines


def config_warning(best: Row, mine: Row) -> str | None:
    """Return a warning if the config is more than 0.01 below the best row at an IoU, else None."""
    behind = {at: best.hmean[at] - mine.hmean[at] for at in mine.hmean}
    if max(behind.values()) <= WORTH:
        return None
    lost = ", ".join(f"{loss:.3f} hmean@{at}" for at, loss in behind.items() if loss > WORTH)
    changes = [
        f"{key}={new}"
        for key, new, old in zip(
            ("evaluate.long_side", "targets.shrink_ratio", "post.unclip"), best.setting, mine.setting, strict=True
        )
        if new != old
    ]
    return f"WARNING: no network can make up for what this config loses: {lost}. Try {' '.join(changes)}."


def cost_lines(rows: Sequence[Row], best: Row) -> list[str]:
    """Return what each setting costs, all else as in the best row, and what each unclip costs at its worst shrink."""
    at = {row.setting: row.hmean[AIM] for row in rows}
    top = best.hmean[AIM]
    lines = []
    for long_side in dict.fromkeys(row.long_side for row in rows):
        loss = top - at[long_side, best.shrink_ratio, best.unclip]
        if loss > WORTH:
            lines.append(f"A long side of {long_side} costs {loss:.2f} hmean@{AIM} against {best.long_side}.")
    for ratio in dict.fromkeys(row.shrink_ratio for row in rows):
        loss = top - at[best.long_side, ratio, best.unclip]
        if loss > WORTH:
            lines.append(f"Shrink {ratio:g} costs {loss:.2f} hmean@{AIM} against {best.shrink_ratio:g}.")
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
    """Return which boxes the config loses before anything is learned, and why."""
    lines = []
    for boxes, why in (
        (row.vanished, "are too small to be drawn (targets.min_text_size)"),
        (row.thin, "are thinner on the map than post.min_size once shrunk"),
    ):
        if boxes:
            lines.append(f"{count_text(len(boxes), 'box', 'boxes')} {why}: {list_text(boxes, box_name)}.")
    if row.merged:
        groups = count_text(len(row.merged), "group", "groups")
        lines.append(f"{groups} of boxes touch on the map and come back as one: {list_text(row.merged, group_name)}.")
    return lines


def count_text(count: int, singular: str, plural: str) -> str:
    """Return a number with its noun."""
    return f"{count} {singular if count == 1 else plural}"


def list_text(items: Sequence[Any], word: Callable[[Any], str]) -> str:
    """Return the first few items in words, and how many more there are."""
    more = f" and {len(items) - NAMED} more (--json has all)" if len(items) > NAMED else ""
    return "; ".join(map(word, items[:NAMED])) + more


def box_name(box: Box) -> str:
    """Return a box in words; positions count from 1, as lines of an annotation file do."""
    return f"{box.page} box {box.index + 1} ({box.short:g} px)"


def group_name(boxes: Iterable[Box]) -> str:
    """Return a group of boxes of one page in words."""
    group = list(boxes)
    return f"{group[0].page} boxes {' + '.join(str(box.index + 1) for box in group)}"
