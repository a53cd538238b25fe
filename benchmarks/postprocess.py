"""How long do probability maps take to become quads and polygons, beside the published code, at the same output?

    python benchmarks/postprocess.py --peer official=../DB        a checkout of MhLiao/DB, the paper's own code

Maps are the shrunk boxes of real receipts in a square, blurred and with noise. Every side decodes each page in turn, in
one thread; a figure is the median over rounds of the mean over pages.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from table import judged, markdown, page, parser, publish

from ocrlab import geometry
from ocrlab.data import formats
from ocrlab.postprocess import decode

Map = NDArray[np.float32]
Decoder = Callable[[Map], Sequence[Any]]
BLUR = {640: 1.0, 1024: 1.6}  # side of a map in pixels: the standard deviation of its blur
RATIO = {"quad": 1.5, "polygon": 2.0}  # the unclip ratios of the published code
LIMIT = {("quad", 640): 1.2, ("quad", 1024): 2.2}  # milliseconds
FACTOR = 4.0  # times faster than the official code, all of them
OURS, EXACT, OFFICIAL = "ours", "ours, exact unclip", "official"


def main() -> None:
    """Measure, print the table, and end with 1 where a limit is not met."""
    args = arguments()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    named = dict(word.partition("=")[::2] for word in args.peer)
    rows, verdicts = [], []
    for side in BLUR:
        pages = maps(args.data, args.split, args.pages, side)
        for shape in RATIO:
            sides = {OURS: ours(shape, RATIO[shape]), EXACT: ours(shape, "exact")}
            if OFFICIAL in named:
                sides[OFFICIAL] = official(Path(named[OFFICIAL]), shape)
            spent = measure(sides, pages, args.rounds)
            rows += [row(name, shape, side, sides, spent, pages) for name in (OURS, EXACT, OFFICIAL)]
            verdicts += judge(shape, side, spent)
    header = ("maps to", "side", "decoder", "shapes", "a page", "times faster than official", "corners that differ")
    words = [f"{len(pages)} pages, 1 thread, median of {args.rounds} rounds in turn.", "", markdown(header, rows), ""]
    body = "\n".join(words + [text for _, text in verdicts])
    publish("postprocess", page("Maps to quads and polygons", body), save=args.save)
    sys.exit(1 if any(met is False for met, _ in verdicts) else 0)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    made = parser(__doc__)
    peer = f"another implementation and its checkout; NAME is {OFFICIAL}"
    made.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help=peer)
    made.add_argument("--data", default="../shared/data/sroie", help="pages with boxes (default ../shared/data/sroie)")
    made.add_argument("--split", default="val", help="default val")
    made.add_argument("--pages", type=int, default=60, help="at most so many (default 60)")
    made.add_argument("--rounds", type=int, default=5, help="default 5")
    return made.parse_args()


def maps(data: str, split: str, count: int, side: int) -> list[Map]:
    """Return probability maps (side, side) like those of a trained network, from the boxes of real pages."""
    rng = np.random.default_rng(0)
    made = []
    for sample in formats.load(data, split).samples[:count]:
        canvas = np.zeros((side, side), np.float32)
        for polygon in sample.polygons:
            fitted = polygon * (side / max(sample.width, sample.height))
            shrunk = geometry.offset(fitted, -geometry.shrink_distance(fitted, 0.4))
            cv2.fillPoly(canvas, [piece.astype(np.int32) for piece in shrunk], 0.85)
        noise = rng.normal(0, 8 / 255, canvas.shape).astype(np.float32)
        made.append(np.clip(cv2.GaussianBlur(canvas, (0, 0), BLUR[side]) + noise, 0, 1))
    return made


def ours(shape: str, unclip: Any) -> Decoder:
    """Return our decoder."""

    def run(heat: Map) -> Sequence[Any]:
        return decode(heat, threshold=0.3, unclip=unclip, shape=shape).polygons  # type: ignore[arg-type]

    return run


def official(checkout: Path, shape: str) -> Decoder:
    """Return the decoder of a checkout of MhLiao/DB; its configuration module, which it hardly needs, is replaced."""
    file = checkout / "structure" / "representers" / "seg_detector_representer.py"
    if not file.is_file():
        raise SystemExit(f"--peer {OFFICIAL}: this is no checkout of MhLiao/DB, it has no {file.name}")
    config: Any = types.ModuleType("concern.config")
    config.Configurable, config.State = object, lambda default=None: default
    sys.modules.update({"concern": types.ModuleType("concern"), "concern.config": config})
    setattr(np, "int", int)  # noqa: B010  # the code is older than NumPy 1.24
    spec = importlib.util.spec_from_file_location("official_representer", file)
    assert spec is not None and spec.loader is not None, "a file that ends with .py has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    decoder = module.SegDetectorRepresenter.__new__(module.SegDetectorRepresenter)
    decoder.thresh, decoder.box_thresh, decoder.max_candidates, decoder.min_size = 0.3, 0.5, 1000, 3
    method = decoder.boxes_from_bitmap if shape == "quad" else decoder.polygons_from_bitmap

    def run(heat: Map) -> Sequence[Any]:
        tensor = torch.from_numpy(heat)[None]  # (1, h, w)
        found, sure = method(tensor, decoder.binarize(tensor), heat.shape[1], heat.shape[0])
        return [polygon for polygon, score in zip(found, sure, strict=True) if score > 0]

    return run


def measure(sides: dict[str, Decoder], pages: Sequence[Map], rounds: int) -> dict[str, float]:
    """Return milliseconds a page for each side: the median over rounds, all sides in turn on each page."""
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
    return {name: statistics.median(values) * 1e3 for name, values in seconds.items()}


def row(
    name: str, shape: str, side: int, sides: dict[str, Decoder], spent: dict[str, float], pages: Sequence[Map]
) -> tuple[str, ...]:
    """Return the cells of one side."""
    if name not in sides:
        return (f"{shape}s", str(side), name, "-", "not measured", "-", "-")
    shapes = statistics.mean(len(sides[name](heat)) for heat in pages)
    faster = f"{spent[OFFICIAL] / spent[name]:.1f}" if OFFICIAL in spent else "not measured"
    same = "-"
    if OFFICIAL in sides and name != OFFICIAL:
        same = "another method" if name == EXACT else differing(sides[name], sides[OFFICIAL], pages)
    return (f"{shape}s", str(side), name, f"{shapes:.0f}", f"{spent[name]:.2f} ms", faster, same)


def differing(first: Decoder, second: Decoder, pages: Sequence[Map]) -> str:
    """Say how many corners two decoders place differently; all of a page if the shapes do not correspond."""
    corners = wrong = 0
    for heat in pages:
        a, b = first(heat), second(heat)
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
    met = faster >= FACTOR if faster is not None else None
    text = f"{faster:.1f} times" if faster is not None else "not measured"
    verdicts.append((met, f"{shape}s at {side}: faster than official {text}; limit {FACTOR:g} times: {judged(met)}."))
    return verdicts


if __name__ == "__main__":
    main()
