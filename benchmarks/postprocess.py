"""How long do probability maps take to become quads and polygons, beside other implementations, at the same output?

    python benchmarks/postprocess.py --peer official=../DB --peer mmocr=../mmocr --peer PaddleOCR=../PaddleOCR

`db_peers.py` says what can be a peer. Maps are the shrunk boxes of real receipts in a square, blurred and with noise,
and the stored maps of `--golden`. Every side decodes each page in turn, in one thread; a figure is the median over
rounds of the mean over pages. Then the slowest of the maps that were made to be slow, one by one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from db_peers import BOX_THRESHOLD, DECODERS, THRESHOLD, Decoder, Map
from table import ROOT, figure, judged, markdown, page, parser, publish
from worst_maps import WORST

from ocrlab import geometry
from ocrlab.data.formats import reader
from ocrlab.evaluation.postprocess import decode

BLUR = {640: 1.0, 1024: 1.6}  # side of a map in pixels: the standard deviation of its blur
RATIO = {"quad": 1.5, "polygon": 2.0}  # the unclip ratios of the published code
LIMIT = {("quad", 640): 1.2, ("quad", 1024): 2.2}  # milliseconds a receipt
FACTOR = {"quad": 4.0, "polygon": 2.0}  # times faster than the official code
WORST_LIMIT = 1.0  # seconds for any map
OURS, EXACT, OFFICIAL = "ours", "ours, exact unclip", "official"


def main() -> None:
    """Measure, print the tables, and end with 1 where a limit is not met."""
    args = arguments()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    named = dict(word.partition("=")[::2] for word in args.peer)
    parts, verdicts = [], []
    for side in BLUR:
        kinds = {"receipts": maps(args.data, args.split, args.pages, side), "stored maps": golden(args.golden, side)}
        for kind, pages in kinds.items():
            rows: list[tuple[str, ...]] = []
            for shape in RATIO if pages else ():
                sides, faults = built(shape, named)
                spent, results = measure(sides, pages, args.rounds)
                rows += [row(name, shape, spent, results) for name in sides]
                for name in sides:
                    theirs, least = name if name in DECODERS else None, FACTOR[shape]
                    what = f"{shape}s, {kind}, {side} px: {name}"
                    figure(what, spent[name], "ms a page", peer=theirs)
                    if OFFICIAL in spent and name == OURS:
                        limit = f">= {least}" if kind == "receipts" else None
                        figure(
                            f"{what}, times faster", spent[OFFICIAL] / spent[name], "times", limit=limit, peer=OFFICIAL
                        )
                rows += [(f"{shape}s", name, "-", f"not measured: {fault}", "-", "-") for name, fault in faults.items()]
                verdicts += judge(shape, side, spent) if kind == "receipts" else []
            header = ("maps to", "decoder", "shapes", "a page", "times faster than official", "corners that differ")
            parts += [f"## {kind}, {side} x {side}: {len(pages)} pages", markdown(header, rows)] if pages else []
    slow, table = worst()
    parts += ["## Maps made to be slow, seconds", table, *(text for _, text in verdicts)]
    met = slow <= WORST_LIMIT
    figure("slowest of the maps made to be slow", slow, "s", limit=f"<= {WORST_LIMIT}")
    parts.append(f"Slowest map: {slow:.2f} s; limit {WORST_LIMIT:g} s: {judged(met)}.")
    publish("postprocess", page("Maps to quads and polygons", "\n\n".join(parts)), args)
    sys.exit(0 if met and all(met is not False for met, _ in verdicts) else 1)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    peer = f"another implementation and its checkout; NAME is {', '.join(DECODERS)}"
    command.add_argument("--golden", type=Path, default=ROOT.parent / "shared" / "golden", help="folder of db_maps.npz")
    command.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help=peer)
    command.add_argument(
        "--data", default="../shared/data/sroie", help="pages with boxes (default ../shared/data/sroie)"
    )
    command.add_argument("--split", default="val", help="default val")
    command.add_argument("--pages", type=int, default=60, help="at most so many (default 60)")
    command.add_argument("--rounds", type=int, default=5, help="default 5")
    return command.parse_args()


def maps(data: str, split: str, count: int, side: int) -> list[Map]:
    """Return probability maps (side, side) like those of a trained network, from the boxes of real pages."""
    rng = np.random.default_rng(0)
    pages = []
    for sample in reader.load(data, split).samples[:count]:
        canvas = np.zeros((side, side), np.float32)
        for polygon in sample.polygons:
            fitted = polygon * (side / max(sample.width, sample.height))
            shrunk = geometry.offset(fitted, -geometry.shrink_distance(fitted, 0.4))
            cv2.fillPoly(canvas, [piece.astype(np.int32) for piece in shrunk], 0.85)
        noise = rng.normal(0, 8 / 255, canvas.shape).astype(np.float32)
        pages.append(np.clip(cv2.GaussianBlur(canvas, (0, 0), BLUR[side]) + noise, 0, 1))
    return pages


def golden(folder: Path, side: int) -> list[Map]:
    """Return the stored maps of this size; none where there is no such folder."""
    if not (folder / "db_maps.npz").is_file():
        return []
    with np.load(folder / "db_maps.npz") as stored:
        arrays = [stored[key] for key in stored.files if key.endswith("probability_u8")]
    return [(array / 255).astype(np.float32) for array in arrays if len(array) == side]


def ours(shape: str, unclip: Any) -> Decoder:
    """Return our decoder."""
    settings: dict[str, Any] = {"threshold": THRESHOLD, "box_threshold": BOX_THRESHOLD, "shape": shape}
    return lambda heat: decode(heat, unclip=unclip, **settings).polygons


def built(shape: str, named: dict[str, str]) -> tuple[dict[str, Decoder], dict[str, str]]:
    """Return what decodes, by name, and why other implementations do not."""
    ratio = RATIO[shape]
    sides = {OURS: ours(shape, ratio), EXACT: ours(shape, "exact")}
    faults = {name: "there is no such peer" for name in named if name not in DECODERS}
    for name, build in DECODERS.items():
        if name not in named:
            faults[name] = f"no --peer {name}=PATH given"
            continue
        try:
            sides[name] = build(Path(named[name]), shape, ratio)
        except Exception as error:  # a peer may fail in any way; the table then says how
            faults[name] = f"{type(error).__name__}: {error}"
    return sides, faults


def measure(sides: dict[str, Decoder], pages: Sequence[Map], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return milliseconds a page, the median over rounds, and what was found on each page; for each side.

    All sides take their turn on each page. What is found comes from a round before, which also warms up.
    """
    results = {name: [decoder(heat) for heat in pages] for name, decoder in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        spent = dict.fromkeys(sides, 0.0)
        for heat in pages:
            for name, decoder in sides.items():
                start = time.perf_counter()
                decoder(heat)
                spent[name] += time.perf_counter() - start
        for name, total in spent.items():
            seconds[name].append(total / len(pages))
    return {name: statistics.median(values) * 1e3 for name, values in seconds.items()}, results


def row(name: str, shape: str, spent: dict[str, float], results: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of one side."""
    shapes = statistics.mean(map(len, results[name]))
    faster = f"{spent[OFFICIAL] / spent[name]:.1f}" if OFFICIAL in spent else "not measured"
    same = "-"
    if OFFICIAL in results and name != OFFICIAL:
        other = name not in (OURS, "PaddleOCR")
        same = "another method" if other else differing(results[name], results[OFFICIAL])
    return (f"{shape}s", name, f"{shapes:.0f}", f"{spent[name]:.2f} ms", faster, same)


def differing(first: Sequence[Any], second: Sequence[Any]) -> str:
    """Say how many corners are placed differently on two lists of pages; all of a page if the shapes do not match."""
    corners = wrong = 0
    for a, b in zip(first, second, strict=True):
        corners += sum(map(len, b))
        if [len(p) for p in a] != [len(p) for p in b]:
            wrong += sum(map(len, b))
        elif len(b):
            wrong += int((np.concatenate(a) != np.concatenate(b)).any(axis=1).sum())
    return f"{wrong} of {corners}"


def judge(shape: str, side: int, spent: dict[str, float]) -> list[tuple[bool | None, str]]:
    """Return whether the limits for one shape and size are met (None: not judged), each with a sentence."""
    verdicts: list[tuple[bool | None, str]] = []
    limit = LIMIT.get((shape, side))
    if limit is not None:
        met: bool | None = spent[OURS] <= limit
        verdicts.append((met, f"{shape}s at {side}: {spent[OURS]:.2f} ms; limit {limit} ms: {judged(met)}."))
    faster = spent[OFFICIAL] / spent[OURS] if OFFICIAL in spent else None
    met = faster >= FACTOR[shape] if faster is not None else None
    text = f"{faster:.1f} times" if faster is not None else "not measured"
    verdicts.append(
        (met, f"{shape}s at {side}: faster than official {text}; limit {FACTOR[shape]:g} times: {judged(met)}.")
    )
    return verdicts


def worst() -> tuple[float, str]:
    """Return the seconds that the slowest of all maps took, and the table of them: each way, regions in brackets."""
    ways = [(shape, unclip) for shape in RATIO for unclip in ("exact", RATIO[shape])]
    every: dict[str, Any] = {"box_threshold": 0.0, "min_size": 0.0, "max_candidates": 5000}
    rows, slowest = [], 0.0
    for name, make in WORST.items():
        heat, cells = make(), []
        for shape, unclip in ways:
            for more in ({}, every):
                start = time.perf_counter()
                regions = decode(heat, threshold=THRESHOLD, unclip=unclip, shape=shape, **more)  # type: ignore[arg-type]
                spent = time.perf_counter() - start
                slowest = max(slowest, spent)
                cells.append(f"{spent:.2f} ({len(regions)})")
        rows.append([name, *(f"{cells[i]}, {cells[i + 1]}" for i in range(0, len(cells), 2))])
    words = "The second figure of each: everything is let through, and 5,000 candidates instead of 1,000."
    return slowest, f"{words}\n\n" + markdown(("map", *(f"{shape}s, {unclip}" for shape, unclip in ways)), rows)


if __name__ == "__main__":
    main()
