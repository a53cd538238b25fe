"""How long do maps take to become quads and polygons, beside the published code, at the same output?

    python benchmarks/postprocess.py --peer official=../DB

Maps are the shrunk boxes of real receipts, blurred and with noise, fitted into a square. Ours and a peer take turns, page
by page, in one thread; a figure is the median over rounds of the mean over pages. A peer is a checkout of MhLiao/DB.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ocrlab import geometry
from ocrlab.data import formats
from ocrlab.postprocess import decode, scores

Map = NDArray[np.float32]
Decoder = Callable[[Map], list[Any]]
SIDES = {640: 1.0, 1024: 1.6}  # pixels, and the blur of a map of this size
PUBLISHED = {"quad": 1.5, "polygon": 2.0}  # the unclip ratios of the published code


def maps(data: str, split: str, pages: int, side: int) -> list[Map]:
    """Return probability maps (side, side) float32 like those of a trained network, from the boxes of real pages."""
    rng = np.random.default_rng(0)
    made = []
    for sample in formats.load(data, split).samples[:pages]:
        points = np.concatenate(sample.polygons)
        scale = side / (points.max() + points.min())
        page = np.zeros((side, side), np.float32)
        for polygon in sample.polygons:
            shrunk = geometry.offset(polygon * scale, -geometry.shrink_distance(polygon * scale, 0.4))
            cv2.fillPoly(page, [piece.astype(np.int32) for piece in shrunk], 0.85)
        noise = rng.normal(0, 8 / 255, page.shape).astype(np.float32)
        made.append(np.clip(cv2.GaussianBlur(page, (0, 0), SIDES[side]) + noise, 0, 1))
    return made


def ours(shape: str, unclip: Any, numba: bool = True) -> Decoder:
    """Return our decoder; without numba it takes the NumPy and OpenCV path."""
    loops = scores.compiled() if numba else None

    def run(page: Map) -> list[Any]:
        scores.compiled = lambda: loops  # type: ignore[assignment]
        return decode(page, threshold=0.3, unclip=unclip, shape=shape).polygons  # type: ignore[arg-type]

    return run


def official(checkout: Path, shape: str) -> Decoder:
    """Return the published decoder of a checkout of MhLiao/DB, with the two modules that it does not need replaced."""
    config: Any = types.ModuleType("concern.config")
    config.Configurable, config.State = object, lambda default=None: default
    sys.modules.update({"concern": types.ModuleType("concern"), "concern.config": config})
    int = int  # type: ignore[attr-defined]  # the code is older than NumPy 1.24
    file = checkout / "structure" / "representers" / "seg_detector_representer.py"
    spec = importlib.util.spec_from_file_location("official_representer", file)
    if spec is None or spec.loader is None or not file.exists():
        raise SystemExit(f"There is no {file}")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    decoder = module.SegDetectorRepresenter.__new__(module.SegDetectorRepresenter)
    decoder.thresh, decoder.box_thresh, decoder.max_candidates, decoder.min_size = 0.3, 0.5, 1000, 3

    def run(page: Map) -> list[Any]:
        import torch

        heat = torch.from_numpy(page)[None]
        method = decoder.boxes_from_bitmap if shape == "quad" else decoder.polygons_from_bitmap
        found, sure = method(heat, heat > decoder.thresh, page.shape[1], page.shape[0])
        return [polygon for polygon, score in zip(found, sure, strict=True) if score > 0]

    return run


def measure(decoders: dict[str, Decoder], pages: list[Map], rounds: int) -> dict[str, float]:
    """Return milliseconds a page for each decoder: the median over rounds, all decoders in turn on each page."""
    seconds: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(rounds):
        spent = dict.fromkeys(decoders, 0.0)
        for page in pages:
            for name, decoder in decoders.items():
                start = time.perf_counter()
                decoder(page)
                spent[name] += time.perf_counter() - start
        for name, total in spent.items():
            seconds[name].append(total / len(pages))
    return {name: statistics.median(values) * 1e3 for name, values in seconds.items()}


def differing(first: Decoder, second: Decoder, pages: list[Map]) -> str:
    """Say how many corners differ between two decoders."""
    corners = wrong = 0
    for page in pages:
        a, b = first(page), second(page)
        same = len(a) == len(b) and all(len(p) == len(q) for p, q in zip(a, b, strict=True))
        total = sum(map(len, b))
        corners += total
        wrong += int((np.concatenate(a) != np.concatenate(b)).any(axis=1).sum()) if same and total else total * (not same)
    return f"{wrong} of {corners}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data/sroie", help="folder with SPLIT/images and SPLIT/gts")
    parser.add_argument("--split", default="val")
    parser.add_argument("--pages", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help="official=CHECKOUT of MhLiao/DB")
    arguments = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in arguments.peer)
    cv2.setNumThreads(1)
    table = Table("map to", "side", "mean shapes", "decoder", "ms a page", "official is slower by", "corners that differ")
    for side in SIDES:
        pages = maps(arguments.data, arguments.split, arguments.pages, side)
        for shape, ratio in PUBLISHED.items():
            decoders = {
                "ours": ours(shape, ratio),
                "ours, NumPy path": ours(shape, ratio, numba=False),
                "ours, exact unclip": ours(shape, "exact"),
            }
            if "official" in peers:
                decoders["official"] = official(Path(peers["official"]), shape)
            count = statistics.mean(len(decoders["ours"](page)) for page in pages)
            spent = measure(decoders, pages, arguments.rounds)
            for name, ms in spent.items():
                factor, same = "not measured", "not measured"
                if "official" in peers:
                    factor = f"{spent['official'] / ms:.1f} x"
                    published = "exact" not in name
                    same = differing(decoders[name], decoders["official"], pages) if published else "another method"
                table.add_row(f"{shape}s", str(side), f"{count:.0f}", name, f"{ms:.2f}", factor, same)
            if "official" not in peers:
                table.add_row(f"{shape}s", str(side), f"{count:.0f}", "official", "not measured", "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
