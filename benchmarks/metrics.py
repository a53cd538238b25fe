"""How long do the metrics take, beside the published evaluators, at the same figures?

    python benchmarks/metrics.py --peer official=../DB --peer cleval=../CLEval --peer sroie=../SROIE

`official` is a checkout of MhLiao/DB, which holds the IoU evaluator of ICDAR 2015; `cleval` one of clovaai/CLEval
(Polygon3 and numba must be importable: PYTHONPATH may name where they are); `sroie` a folder with script.py and
rrc_evaluation_funcs_1_1.py of the competition's task 1 (DetEval). Ground truth is that of real receipts; detections
are the same boxes moved, merged, split, missing and made up, by seed. The sides take turns, in one thread; a figure is
the median over rounds of all pages together. CLEval is also compared on random quads, page by page.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from metrics_peers import Asked, PageResult, cleval_reference, iou_reference, sroie_reference, upright
from table import figure, judged, markdown, page, parser, publish

from ocrlab.data.formats import reader
from ocrlab.evaluation.metrics import cleval, deteval, iou
from ocrlab.evaluation.metrics import page_scores as everything

LIMITS = {"IoU": 0.2, "CLEval": 0.15}  # seconds for 100 pages of 50 boxes
PAGES, BOXES = 100, 50
PEERS = {
    "official": ("IoU", iou_reference),
    "cleval": ("CLEval", cleval_reference),
    "sroie": ("DetEval", sroie_reference),
}
Side = Callable[[Sequence[Asked]], list[PageResult]]


def main() -> None:
    """Measure, print the table, and end with 1 where a limit is not met or figures differ."""
    args = arguments()
    pages = receipts(args.data, args.split)
    sides: dict[tuple[str, str], Side] = {(name, "ours"): side for name, side in OURS.items()}
    reasons: dict[str, str] = {}
    for word in args.peer:
        name, _, path = word.partition("=")
        if name not in PEERS:
            raise SystemExit(f"--peer {name}: there is no such side; the names are {', '.join(PEERS)}")
        protocol, load = PEERS[name]
        try:
            sides[protocol, name] = load(Path(path))
        except (ImportError, OSError) as error:
            reasons[name] = str(error)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in sides}
    answers: dict[tuple[str, str], list[PageResult]] = {}
    for side in sides.values():
        side(pages[:2])  # warms up; numba compiles
    for _ in range(args.rounds):
        for key, side in sides.items():
            start = time.perf_counter()
            answers[key] = side(pages)
            seconds[key].append(time.perf_counter() - start)
    random = random_pages(300)
    both = [(OURS["CLEval"](random), sides["CLEval", "cleval"](random))] if ("CLEval", "cleval") in sides else []
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    met, body = report(medians, answers, reasons, both, args.rounds)
    publish("metrics", page("The metrics", body), args)
    sys.exit(0 if met else 1)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    peer = f"another implementation and its checkout; NAME is {', '.join(PEERS)}"
    command.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help=peer)
    command.add_argument(
        "--data", default="../shared/data/sroie", help="pages with boxes (default ../shared/data/sroie)"
    )
    command.add_argument("--split", default="train", help="default train")
    command.add_argument("--rounds", type=int, default=5, help="default 5")
    return command.parse_args()


def receipts(data: str, split: str) -> list[Asked]:
    """Return up to 100 pages of up to 50 boxes, some of them ignored, with the detections of an imperfect detector."""
    rng = np.random.default_rng(0)
    pages: list[Asked] = []
    for sample in reader.load(data, split).samples[:PAGES]:
        truth = [polygon.astype(np.float64) for polygon in sample.polygons[:BOXES]]
        detections: list[Any] = []
        for polygon, fate in zip(truth, rng.random(len(truth)), strict=True):
            moved = polygon + rng.normal(0, 2, polygon.shape)
            middle = (moved[[1, 2]] + moved[[0, 3]]) / 2
            if fate < 0.05:  # in two pieces
                detections += [
                    np.array([moved[0], *middle, moved[3]]),
                    np.array([middle[0], moved[1], moved[2], middle[1]]),
                ]
            elif fate < 0.08 and detections:  # one with the box before
                detections[-1] = np.array([detections[-1][0], moved[1], moved[2], detections[-1][3]])
            elif fate < 0.95:
                detections.append(moved)
        detections += [polygon + rng.uniform(-200, 200, 2) for polygon in truth[::20]]
        ignored = (rng.random(len(truth)) < 0.05).tolist()
        pages.append(Asked(truth, ignored, list(sample.texts[:BOXES]), sound(detections)))
    return pages


def random_pages(count: int) -> list[Asked]:
    """Return pages of quads of any shape, convex or not, that overlap a lot; up to 30 on a side."""
    rng = np.random.default_rng(1)
    pages = []
    for _ in range(count):
        n, m = rng.integers(0, 30, 2)
        wide = np.array([[0, 0], [60, 0], [60, 20], [0, 20]]) * rng.uniform(0.3, 1.5, (n + m, 1, 2))
        quads = sound(list(rng.uniform(0, 300, (n + m, 1, 2)) + wide + rng.normal(0, 6, (n + m, 4, 2))))
        truth, detections = quads[:n], [*quads[n:], *(q + rng.normal(0, 3, (4, 2)) for q in quads[:n:2])]
        texts = ["".join(rng.choice(list("abc"), rng.integers(1, 15))) for _ in truth]
        pages.append(Asked(truth, (rng.random(len(truth)) < 0.2).tolist(), texts, sound(detections)))
    return pages


def sound(quads: list[Any]) -> list[Any]:
    """Return those that are valid, also in whole pixels: of others the sides think differently on purpose."""
    return [q for q in quads if shapely.Polygon(q).is_valid and shapely.Polygon(np.trunc(q)).is_valid]


def our_iou(pages: Sequence[Asked]) -> list[PageResult]:
    """Return the matches at IoU 0.5 of every page; those at 0.7 and 0.8 are found, too."""
    matches = [iou.match(page.truth, page.ignored, page.detections) for page in pages]
    return [tuple(sorted(match.pairs[0.5])) for match in matches]


def our_cleval(pages: Sequence[Asked]) -> list[PageResult]:
    """Return the seven sums of every page that CLEval's figures are made of."""
    results = [cleval.judge(page.truth, page.ignored, page.texts, page.detections) for page in pages]
    return [
        tuple(int(a.sum()) for a in (p.truth, p.detected, p.cuts, p.taken, p.right, p.merges, p.false)) for p in results
    ]


def our_deteval(pages: Sequence[Asked]) -> list[PageResult]:
    """Return recall and precision of every page, of bounding boxes in whole pixels: the competition takes no others."""
    results = [deteval.judge(upright(page.truth), page.ignored, upright(page.detections)) for page in pages]
    return [(round(page.recall, 9), round(page.precision, 9)) for page in results]


def all_three(pages: Sequence[Asked]) -> list[PageResult]:
    """Return the three hmeans of all pages, with everything that `ocrlab evaluate` needs."""
    figures = everything.summary(
        everything.judge(page.truth, page.ignored, page.texts, page.detections) for page in pages
    )
    return [tuple(figures[name] for name in ("hmean@0.5", "deteval_hmean", "cleval_hmean"))]


OURS: dict[str, Side] = {"IoU": our_iou, "CLEval": our_cleval, "DetEval": our_deteval, "all three": all_three}


def report(
    seconds: dict[tuple[str, str], float],
    answers: dict[tuple[str, str], list[PageResult]],
    reasons: dict[str, str],
    random: list[tuple[list[PageResult], list[PageResult]]],
    rounds: int,
) -> tuple[bool, str]:
    """Return whether every limit is met and all sides agree, and the text with the table."""
    rows, fates = [], []
    peers = {protocol: name for name, (protocol, _) in PEERS.items()}
    for protocol in OURS:
        mine = seconds[protocol, "ours"]
        limit = LIMITS.get(protocol)
        rows.append((protocol, "ours", f"{mine:.3f} s", "1", f"{limit} s" if limit else "-", "-"))
        fates += [mine <= limit] if limit else []
        figure(f"{protocol}, all pages", mine, "s", limit=f"<= {limit}" if limit else None)
        name = peers.get(protocol)
        if name is None:
            continue
        if (protocol, name) not in seconds:
            rows.append((protocol, name, f"not measured{': ' + reasons[name] if name in reasons else ''}", *"---"))
            continue
        same = sum(a == b for a, b in zip(answers[protocol, "ours"], answers[protocol, name], strict=True))
        fates.append(same == len(answers[protocol, name]))
        theirs = seconds[protocol, name]
        equal = f"{same} of {len(answers[protocol, name])}"
        figure(f"{protocol}, times {name}", theirs / mine, "times", peer=name)
        figure(
            f"{protocol}, pages with the figures of {name}",
            same / len(answers[protocol, name]),
            "share",
            limit=">= 1",
            peer=name,
        )
        rows.append((protocol, name, f"{theirs:.3f} s", f"{theirs / mine:.1f}", "-", equal))
    hmeans = ", ".join(f"{value:.6f}" for value in answers["all three", "ours"][0])
    lines = [
        f"{len(answers['IoU', 'ours'])} pages, 1 thread, median of {rounds} rounds in turn.",
        "",
        markdown(("protocol", "side", "all pages", "times ours", "limit", "pages with the same figures"), rows),
        "",
        f"Ours in one pass: hmean@0.5, DetEval and CLEval are {hmeans}. IoU is at 0.5, 0.7 and 0.8 at once.",
        *(f"{name}: {seconds[name, 'ours']:.3f} s; limit {limit} s: {judged(seconds[name, 'ours'] <= limit)}."
          for name, limit in LIMITS.items()),
    ]  # fmt: skip
    for mine_result, peer_result in random:
        same = sum(a == b for a, b in zip(mine_result, peer_result, strict=True))
        fates.append(same == len(mine_result))
        figure(
            "CLEval on random quads, pages with the same sums",
            same / len(mine_result),
            "share",
            limit=">= 1",
            peer="cleval",
        )
        lines.append(
            f"CLEval on random quads: {same} of {len(mine_result)} pages have the same sums: {judged(fates[-1])}."
        )
    return all(fates), "\n".join(lines)


if __name__ == "__main__":
    main()
