"""How long do the target maps take? Ours in four ways against other implementations, one thread, on real receipts.

    python benchmarks/targets.py --peer official=../DB --peer mmocr=../mmocr --peer PaddleOCR=../PaddleOCR

`db_peers.py` says what can be a peer. Each page's boxes are scaled so that the page fits into the square; the made-up
pages of `--golden` (turned, tiny, curved, over the border) are as they are. The sides take turns, and the order changes
every round; a side's figure is the median of its rounds, each the mean over all pages. As in a data loader, the results
of the last four pages stay alive, so that new arrays are really new. Then ours alone on pages made to be slow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from db_peers import RANGE, RATIO, SMALLEST, TARGETS, Boxes, Draw, Maps
from table import ROOT, figure, judged, markdown, page, parser, publish

from ocrlab.data import target_maps
from ocrlab.data.formats import reader
from ocrlab.errors import DataError

LIMITS = {("ours", 640): 3.5, ("ours", 1024): 5.5}  # ms
FACTORS = {"ours": 5.0}  # times as fast as RIVAL, on receipts at 640
RIVAL = "PaddleOCR"  # the fastest of the others
BASES = (RIVAL, "official")
BATCH = 4  # pages, a batch
SLOWEST = 1.0  # seconds for any page


@dataclass
class Side:
    """One way to make the maps, and milliseconds a page, one figure a round."""

    name: str
    draw: Draw | None = None
    fault: str | None = None  # why it is not measured
    rounds: list[float] = field(default_factory=list)


def main() -> None:
    """Measure, print the table, and end with 1 where a limit is not met."""
    args = arguments()
    cv2.setNumThreads(1)
    named = dict(word.partition("=")[::2] for word in args.peer)
    parts: list[str] = []
    fine = True
    for size in args.sizes:
        try:
            pages = {"receipts": receipts(args.data, size, args.pages), "made-up pages": golden(args.golden, size)}
        except DataError as error:
            sys.exit(f"No receipts to measure on: {error}")
        for kind, boxes in pages.items():
            if boxes:
                sides = [ours(), *peers(named)]
                measure(sides, boxes, args.rounds)
                met, text = report(sides, boxes, size, kind)
                fine &= met
                parts.append(text)
    met, text = slow()
    fine &= met
    parts.append(text)
    publish("targets", page("Target maps", "\n\n".join(parts)), args)
    sys.exit(0 if fine else 1)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    data = ROOT.parent / "shared" / "data" / "sroie"
    command.add_argument("--data", type=Path, default=data, help="data folder; its split val is taken")
    command.add_argument(
        "--golden", type=Path, default=ROOT.parent / "shared" / "golden", help="folder of db_maps.json"
    )
    peer = f"another implementation and its checkout; NAME is {', '.join(TARGETS)}"
    command.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help=peer)
    command.add_argument("--rounds", type=int, default=7, help="measured rounds (default 7)")
    command.add_argument("--pages", type=int, default=60, help="(default 60)")
    command.add_argument("--sizes", type=int, nargs="+", default=[640, 1024], help="pixels (default 640 1024)")
    return command.parse_args()


def receipts(data: Path, size: int, pages: int) -> list[Boxes]:
    """Return the boxes of the first pages; raises DataError if there are none."""
    boxes = []
    for sample in reader.load(data, "val").samples[:pages]:
        scale = size / max(sample.width, sample.height)
        polygons = [np.asarray(polygon, np.float64) * scale for polygon in sample.polygons]
        boxes.append(Boxes(polygons, sample.ignored, (size, size)))
    return boxes


def golden(folder: Path, size: int) -> list[Boxes]:
    """Return the boxes of the made-up pages of this size; none where there is no such folder."""
    file = folder / "db_maps.json"
    pages = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return [
        Boxes([np.array(polygon, np.float64) for polygon in page["polygons"]], np.array(page["ignored"]), (size, size))
        for page in pages
        if page["size"] == size
    ]


def ours() -> Side:
    """Return the way of this package."""

    def maps(boxes: Boxes) -> Maps:
        settings: dict[str, Any] = {"shrink_ratio": RATIO, "threshold_range": RANGE, "min_text_size": SMALLEST}
        return target_maps.make(boxes.polygons, boxes.ignored, boxes.size, **settings).maps

    return Side("ours", maps)


def peers(named: dict[str, str]) -> list[Side]:
    """Return the other implementations; one that cannot be loaded says why."""
    sides = []
    for name in (*TARGETS, *(name for name in named if name not in TARGETS)):
        side = Side(name)
        sides.append(side)
        if name not in TARGETS:
            side.fault = f"only {', '.join(TARGETS)} can be built"
        elif name not in named:
            side.fault = f"no --peer {name}=PATH given"
        else:
            try:
                side.draw = TARGETS[name](Path(named[name]))
            except Exception as error:  # a peer may fail in any way; the table then says how
                side.fault = f"{type(error).__name__}: {error}"
    return sides


def measure(sides: Sequence[Side], boxes: Sequence[Boxes], rounds: int) -> None:
    """Time all pages with every side in turn; one round only warms up."""
    alive: deque[Maps] = deque(maxlen=BATCH)
    for index in range(rounds + 1):
        turn = index % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            if side.draw is None:
                continue
            start = time.perf_counter()
            for sample in boxes:
                alive.append(side.draw(sample))
            if index:
                side.rounds.append((time.perf_counter() - start) * 1e3 / len(boxes))


def report(sides: Sequence[Side], boxes: Sequence[Boxes], size: int, kind: str) -> tuple[bool, str]:
    """Return whether all limits are met, and the table of one size with what it says about equality.

    The limits in milliseconds are those of receipts.
    """
    middles = {side.name: statistics.median(side.rounds) for side in sides if side.rounds}
    rows, fine = [], True
    for side in sides:
        if not side.rounds:
            rows.append([side.name, f"not measured: {side.fault}", *[""] * (3 + len(BASES))])
            continue
        middle = middles[side.name]
        limit = LIMITS.get((side.name, size)) if kind == "receipts" else None
        factor = FACTORS.get(side.name) if limit and size == 640 else None
        what, theirs = f"target maps, {kind}, {size} px: {side.name}", side.name if side.name in TARGETS else None
        figure(what, middle, "ms a page", limit=f"<= {limit}" if limit else None, peer=theirs)
        for base in BASES if theirs is None else ():
            if base in middles:
                least = f">= {factor}" if factor and base == RIVAL else None
                figure(f"{what}, times faster", middles[base] / middle, "times", limit=least, peer=base)
        met = [middle <= limit] if limit else []
        met += [middles[RIVAL] >= factor * middle] if factor and RIVAL in middles else []
        fine &= all(met)
        spread = f"{min(side.rounds):.2f} .. {max(side.rounds):.2f}"
        times = [f"{middles[base] / middle:.1f}" if base in middles else "not measured" for base in BASES]
        words = f"{limit} ms" + (f", {factor:g} x {RIVAL}" if factor else "") if limit else ""
        rows.append([side.name, f"{middle:.2f} ms", spread, *times, words, judged(all(met)) if limit else ""])
    header = ("side", "a page", "fastest .. slowest round", *(f"times {b}" for b in BASES), "limit", "")
    count = sum(len(page.polygons) for page in boxes) / len(boxes)
    title = f"## {kind}, {size} x {size}: {len(boxes)} pages, {count:.0f} boxes a page"
    return fine, "\n\n".join([title, markdown(header, rows), equality(sides, boxes)])


def equality(sides: Sequence[Side], boxes: Sequence[Boxes]) -> str:
    """Return a sentence for each side about how its maps differ from ours."""
    lines = []
    for side in sides[1:]:
        if side.draw is None or sides[0].draw is None:
            continue
        pixels, far, largest = 0, 0, 0.0
        for sample in boxes:
            a, b = sides[0].draw(sample), [np.asarray(plane, np.float32) for plane in side.draw(sample)]
            pixels += sum(int((a[i] != b[i]).sum()) for i in (0, 1, 3))
            apart = np.abs(a[2] - b[2])
            far, largest = far + int((apart > 1e-6).sum()), max(largest, float(apart.max()))
        lines.append(
            f"{side.name}: {pixels} other pixels in shrink map and masks, {far} of the threshold map more than 1e-6"
            f" apart (at most {largest:.1g})."
        )
    if any(side.name == "official" and side.draw for side in sides):
        lines.append(
            "The official threshold map has holes: on edges, rounding can take its cosine beyond 1, which gives NaN."
        )
    return "\n".join(f"- {line}" for line in lines)


def slow() -> tuple[bool, str]:
    """Return whether pages made to be slow keep to the limit, and the table of them."""
    rng, size = np.random.default_rng(0), (1280, 1280)
    turn = np.linspace(0, 2 * np.pi, 100_000, endpoint=False)
    ring = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    corners = np.array([[0.0, 0], [14, 0], [14, 9], [0, 9]])
    pages = {
        "5,000 boxes": list(corners + rng.uniform(0, 1266, (5000, 1, 2))),
        "a circle of 100,000 points": [640 + 500 * ring],
        "100,000 points anywhere": [rng.uniform(0, 1280, (100_000, 2))],
        "100 curves of 200 points": [100 * rng.uniform(1, 12, 2) + 40 * ring[::500] for _ in range(100)],
    }
    rows, worst, draw = [], 0.0, ours().draw
    assert draw is not None
    for name, polygons in pages.items():
        start = time.perf_counter()
        draw(Boxes(polygons, np.zeros(len(polygons), bool), size))
        seconds = time.perf_counter() - start
        worst = max(worst, seconds)
        rows.append([name, f"{seconds:.2f} s"])
    figure("slowest page made to be slow", worst, "s", limit=f"<= {SLOWEST}")
    words = f"Slowest of the compiled: {worst:.2f} s; limit {SLOWEST:g} s: {judged(worst <= SLOWEST)}."
    table = markdown(("page", "ours"), rows)
    return worst <= SLOWEST, f"## Pages made to be slow, 1280 x 1280\n\n{table}\n\n{words}"


if __name__ == "__main__":
    main()
