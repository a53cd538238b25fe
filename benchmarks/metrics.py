"""How long does the IoU metric take, beside the published evaluator, at the same matches?

    python benchmarks/metrics.py --peer official=../DB        a checkout of MhLiao/DB, which holds that evaluator

Ground truth is that of real receipts; detections are the same boxes moved, merged, split, missing and made up, by seed.
The sides take turns, in one thread; a figure is the median over rounds of all pages together.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from table import judged, markdown, page, parser, publish

from ocrlab.data import formats
from ocrlab.metrics import iou

Polygon = NDArray[np.float64]
Page = tuple[list[Polygon], list[bool], list[Polygon]]  # ground truth, ignored, detections
Pairs = list[list[tuple[int, int]]]  # of each page, at IoU 0.5
Side = Callable[[Sequence[Page]], tuple[float, Pairs]]
LIMIT = 0.2  # seconds for 100 pages of 50 boxes
PAGES, BOXES = 100, 50
OURS, OFFICIAL = "ours, IoU 0.5, 0.7 and 0.8", "official, IoU 0.5"


def main() -> None:
    """Measure, print the table, and end with 1 where the limit is not met or the figures differ."""
    args = arguments()
    named = dict(word.partition("=")[::2] for word in args.peer)
    pages = receipts(args.data, args.split)
    sides: dict[str, Side] = {OURS: ours}
    if "official" in named:
        sides[OFFICIAL] = official(Path(named["official"]))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    answers: dict[str, tuple[float, Pairs]] = {}
    for side in sides.values():
        side(pages[:1])  # warms up
    for _ in range(args.rounds):
        for name, side in sides.items():
            start = time.perf_counter()
            answers[name] = side(pages)
            seconds[name].append(time.perf_counter() - start)
    met, body = report({name: statistics.median(values) for name, values in seconds.items()}, answers, args.rounds)
    publish("metrics", page("The IoU metric", body), save=args.save)
    sys.exit(0 if met else 1)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    made = parser(__doc__)
    peer = "another implementation and its checkout; NAME is official"
    made.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help=peer)
    made.add_argument("--data", default="../shared/data/sroie", help="pages with boxes (default ../shared/data/sroie)")
    made.add_argument("--split", default="train", help="default train")
    made.add_argument("--rounds", type=int, default=5, help="default 5")
    return made.parse_args()


def receipts(data: str, split: str) -> list[Page]:
    """Return up to 100 pages of up to 50 boxes, some of them ignored, with the detections of an imperfect detector."""
    rng = np.random.default_rng(0)
    pages: list[Page] = []
    for sample in formats.load(data, split).samples[:PAGES]:
        truth = [polygon.astype(np.float64) for polygon in sample.polygons[:BOXES]]
        found: list[Polygon] = []
        for polygon, fate in zip(truth, rng.random(len(truth)), strict=True):
            moved = polygon + rng.normal(0, 2, polygon.shape)
            middle = (moved[[1, 2]] + moved[[0, 3]]) / 2
            if fate < 0.05:  # in two pieces
                found += [np.array([moved[0], *middle, moved[3]]), np.array([middle[0], moved[1], moved[2], middle[1]])]
            elif fate < 0.08 and found:  # one with the box before
                found[-1] = np.array([found[-1][0], moved[1], moved[2], found[-1][3]])
            elif fate < 0.95:
                found.append(moved)
        found += [polygon + rng.uniform(-200, 200, 2) for polygon in truth[::20]]
        found = [polygon for polygon in found if shapely.Polygon(polygon).is_valid]  # official leaves out, we count
        pages.append((truth, (rng.random(len(truth)) < 0.05).tolist(), found))
    return pages


def ours(pages: Sequence[Page]) -> tuple[float, Pairs]:
    """Return hmean and matches at IoU 0.5 by our metric, which finds those at 0.7 and 0.8 too."""
    matches = [iou.match(*one) for one in pages]
    return iou.summary(matches)["hmean@0.5"], [match.pairs[0.5] for match in matches]


def official(checkout: Path) -> Side:
    """Return the evaluator of a checkout of MhLiao/DB."""
    file = checkout / "concern" / "icdar2015_eval" / "detection" / "iou.py"
    if not file.is_file():
        raise SystemExit(f"--peer official: this is no checkout of MhLiao/DB, it has no detection/{file.name}")
    spec = importlib.util.spec_from_file_location("official_iou", file)
    assert spec is not None and spec.loader is not None, "a file that ends with .py has a loader"
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    evaluator = module.DetectionIoUEvaluator()

    def run(pages: Sequence[Page]) -> tuple[float, Pairs]:
        told = [
            evaluator.evaluate_image(
                [{"points": points, "ignore": skip} for points, skip in zip(truth, ignored, strict=True)],
                [{"points": points} for points in found],
            )
            for truth, ignored, found in pages
        ]
        pairs = [[(pair["gt"], pair["det"]) for pair in one["pairs"]] for one in told]
        return evaluator.combine_results(told)["hmean"], pairs

    return run


def report(seconds: dict[str, float], answers: dict[str, tuple[float, Pairs]], rounds: int) -> tuple[bool, str]:
    """Return whether the limit is met and all sides agree, and the text with the table."""
    rows = []
    for name in (OURS, OFFICIAL):
        if name not in seconds:
            rows.append((name, "not measured", "-", "-", "-"))
            continue
        hmean, pairs = answers[name]
        times = f"{seconds[name] / seconds[OURS]:.1f}"
        rows.append((name, f"{seconds[name]:.3f} s", times, f"{hmean:.6f}", str(sum(map(len, pairs)))))
    quick = seconds[OURS] <= LIMIT
    same = all(answer == answers[OURS] for answer in answers.values())
    lines = [
        f"{len(answers[OURS][1])} pages, 1 thread, median of {rounds} rounds in turn.",
        "",
        markdown(("side", "all pages", "times ours", "hmean@0.5", "matches"), rows),
        "",
        f"Ours: {seconds[OURS]:.3f} s; limit {LIMIT} s: {judged(quick)}.",
        f"The same matches on every page: {judged(same if OFFICIAL in answers else None)}.",
    ]
    return quick and same, "\n".join(lines)


if __name__ == "__main__":
    main()
