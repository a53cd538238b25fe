"""The best that any network could reach: perfect maps of the ground truth through post-processing, over settings.

A page is letterboxed and its targets are drawn as in training; the shrink map is taken for the network's probability,
decoded by the path of validation and scored. What is missing from 1 is lost by the settings, whatever is trained.
Images are not decoded. Only their sizes matter, which the index has read from the headers.

Shapes: h w map pixels, N boxes, P points.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.data import target_maps, transforms
from ocrlab.data.formats.reader import Index, Sample, load
from ocrlab.errors import DataError
from ocrlab.evaluation.metrics import iou
from ocrlab.hardware import host
from ocrlab.inference import page_inference

Unclip = Literal["exact"] | float
Setting = tuple[int, float, Unclip]  # long side, shrink ratio, unclip
Tick = Callable[[int, int], None]  # pages done, of how many

AIM = 0.7  # the IoU that ranks rows and decides which boxes are lost: at 0.5 almost every setting looks good
STRIDE = 4  # of the features that the map is made from
SIZES = (8, 12, 16, 24, 32, 48)  # short sides in page pixels at which the size bins end; the last bin is open
BINS = (*(f"< {end} px" for end in SIZES), f">= {SIZES[-1]} px")


@dataclass(frozen=True)
class Box:
    """A box of the ground truth: its page, its position there, and its short side in page pixels."""

    page: str
    index: int
    short: float


@dataclass(frozen=True)
class Row:
    """What is possible with one setting.

    `hmean` is by IoU threshold; `coarse` is the same when the perfect map went through a quarter of the resolution,
    as what the network sees does. `bins` has for each size bin how many boxes count and how many are found at `AIM`.
    `vanished` are boxes too small to be drawn, `thin` those that are below `post.min_size` once shrunk, `merged` those
    that touch a neighbour on the map, in groups.
    """

    long_side: int
    shrink_ratio: float
    unclip: Unclip
    hmean: dict[float, float]
    coarse: dict[float, float]
    bins: dict[str, tuple[int, int]]
    vanished: tuple[Box, ...]
    thin: tuple[Box, ...]
    merged: tuple[tuple[Box, ...], ...]

    @property
    def setting(self) -> Setting:
        """Return long side, shrink ratio and unclip."""
        return self.long_side, self.shrink_ratio, self.unclip


@dataclass(frozen=True)
class PageLosses:
    """What the perfect map of a page loses, with V unclips.

    `counts` (V, 2, T, 3) are what is matched, truths and detections at each IoU threshold, on the perfect map and on
    the coarse one; `boxes` are those that count by size bin, and `matched` for each unclip those of them that are
    found at AIM. The rest is as in `Row`.
    """

    counts: NDArray[np.int64]
    boxes: Counter[str]
    matched: list[Counter[str]]
    vanished: list[Box]
    thin: list[Box]
    merged: list[tuple[Box, ...]]


def sweep(
    index: Index,
    *,
    long_sides: Sequence[int],
    shrink_ratios: Sequence[float],
    unclips: Sequence[Unclip],
    shape: Literal["quad", "polygon"] = "quad",
    config: Config | None = None,
    tick: Tick | None = None,
) -> list[Row]:
    """Return what is possible on the pages of `index` with each combination of settings, in the order given.

    All else (thresholds, smallest sizes, enlarging) is as in `config`, the defaults without one. `tick` is called with
    pages done and their number. Raises DataError where no box counts, ConfigError for a setting out of range.
    """
    if not any((~sample.ignored).any() for sample in index.samples):
        got = f"{len(index.samples)} pages with {sum(len(s.polygons) for s in index.samples)} boxes"
        what = f"{index.source} has nothing that the oracle could lose"
        raise DataError(what, got=got, need="a box that is not ignored")
    grid = []
    for long_side, ratio in itertools.product(dict.fromkeys(long_sides), dict.fromkeys(shrink_ratios)):
        chosen = {"evaluate.long_side": long_side, "targets.shrink_ratio": ratio, "post.shape": shape}
        grid.append([configs.apply(config or Config(), {**chosen, "post.unclip": unclip}) for unclip in unclips])
    done: list[list[PageLosses]] = []
    with ThreadPoolExecutor(host.cores()) as pool:  # what takes time here lets other threads run
        for losses in pool.map(lambda sample: [_page(sample, variants) for variants in grid], index.samples):
            done.append(losses)
            if tick:
                tick(len(done), len(index.samples))
    rows = []
    for pages, variants in zip(zip(*done, strict=True), grid, strict=True):
        counts, boxes = sum(page.counts for page in pages), sum((page.boxes for page in pages), Counter[str]())
        for number, (variant, (perfect, coarse)) in enumerate(zip(variants, counts, strict=True)):
            matched = sum((page.matched[number] for page in pages), Counter[str]())
            row = Row(
                long_side=variant.evaluate.long_side,
                shrink_ratio=variant.targets.shrink_ratio,
                unclip=variant.post.unclip,
                hmean=_hmeans(perfect),
                coarse=_hmeans(coarse),
                bins={name: (boxes[name], matched[name]) for name in BINS if boxes[name]},
                vanished=tuple(box for page in pages for box in page.vanished),
                thin=tuple(box for page in pages for box in page.thin),
                merged=tuple(group for page in pages for group in page.merged),
            )
            rows.append(row)
    return rows


def hmean_upper_bound(folder: Path | str, split: str = "val", config: Config | None = None) -> Row:
    """Return the best score that the settings of `config` (default: the default settings) allow on a data folder.

    Perfect maps are built from the annotations and post-processed, so only the settings cost anything. The row has
    `hmean` by IoU threshold, and counts the boxes that vanish, get too thin or merge. Raises DataError if the folder
    cannot be read or no box counts.
    """
    config = config or Config()
    (row,) = sweep(
        load(folder, split, exif=config.exif),
        long_sides=[config.evaluate.long_side],
        shrink_ratios=[config.targets.shrink_ratio],
        unclips=[config.post.unclip],
        shape=config.post.shape,
        config=config,
    )
    return row


def best(rows: Sequence[Row]) -> Row:
    """Return the row with the highest hmean at IoU 0.7, then 0.8, then the smallest maps."""
    return max(rows, key=lambda row: (round(row.hmean[AIM], 4), round(row.hmean[0.8], 4), -row.long_side))


def short_side(polygon: NDArray[np.floating]) -> float:
    """Return the short side in pixels of the rectangle that has the area and the perimeter of a polygon (P, 2)."""
    half, area = geometry.perimeter(polygon) / 2, abs(geometry.area(polygon))
    return float(half - np.sqrt(max(half * half - 4 * area, 0.0))) / 2


def bin_of(short: float) -> str:
    """Return the name of the size bin of a short side in page pixels."""
    return BINS[sum(short >= end for end in SIZES)]


def _page(sample: Sample, variants: Sequence[Config]) -> PageLosses:
    """Return what the perfect map of a page, drawn as training draws it, loses with configs that differ in unclip."""
    chosen, size = variants[0], (sample.width, sample.height)
    warp, (width, height) = transforms.letterbox(size, chosen.evaluate)
    moved = [np.rint(transforms.warp_points(polygon, warp)) for polygon in sample.polygons]  # as `training_crop` does
    targets = target_maps.make(moved, sample.ignored, (height, width), **dict(chosen.targets))
    heat = targets.shrink_map
    shorts = [short_side(polygon) for polygon in sample.polygons]
    counts, matched = [], []
    for config in variants:
        perfect, coarse = (
            iou.match(
                sample.polygons,
                sample.ignored,
                page_inference.regions(page_map, warp, size, config.post, config.targets.shrink_ratio).polygons,
            )
            for page_map in (heat, through_stride(heat))
        )
        counts.append(
            [
                [(match.matched(t), match.cared_truth, match.cared_detections) for t in iou.THRESHOLDS]
                for match in (perfect, coarse)
            ]
        )
        counted = set(np.flatnonzero(perfect.truth_counts).tolist())
        matched.append(Counter(bin_of(shorts[i]) for i in counted & {truth for truth, _ in perfect.pairs[AIM]}))
    lost = [Box(sample.name, i, round(short, 1)) for i, short in enumerate(shorts)]
    inner = {i: shrunk(moved[i], chosen.targets.shrink_ratio) for i in np.flatnonzero(~targets.ignored).tolist()}
    return PageLosses(
        counts=np.array(counts),
        boxes=Counter(bin_of(shorts[i]) for i in counted),
        matched=matched,
        vanished=[lost[i] for i in np.flatnonzero(targets.ignored & ~sample.ignored)],
        thin=[lost[i] for i, p in inner.items() if len(p) and min(cv2.minAreaRect(p)[1]) < chosen.post.min_size],
        merged=[tuple(lost[i] for i in group) for group in touching(inner, heat)],
    )


def shrunk(polygon: NDArray[np.floating], ratio: float) -> NDArray[np.int32]:
    """Return the polygon (P, 2) that is painted for a polygon, cut to whole pixels as the targets are."""
    inner = geometry.offset(polygon, -geometry.shrink_distance(polygon, ratio))
    return inner[0].astype(np.int32) if inner else np.zeros((0, 2), np.int32)


def touching(inner: Mapping[int, NDArray[np.int32]], painted: NDArray[np.float32]) -> list[list[int]]:
    """Return groups of positions whose shrunk polygons are connected on the map, so that they come back as one."""
    _, label = cv2.connectedComponents(painted.astype(np.uint8), connectivity=8)  # as cv2.findContours
    height, width = label.shape
    groups: dict[int, list[int]] = {}
    for i, points in inner.items():
        for x, y in points[((points >= 0) & (points < (width, height))).all(axis=1)][:1]:  # corners are painted
            groups.setdefault(int(label[y, x]), []).append(i)
    return [group for number, group in groups.items() if number and len(group) > 1]


def through_stride(heat: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a map (h, w) averaged over 4 x 4 pixels and enlarged again: what features of stride 4 can hold of it."""
    height, width = heat.shape
    small = cv2.resize(heat, (max(1, width // STRIDE), max(1, height // STRIDE)), interpolation=cv2.INTER_AREA)
    again = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.clip(again, 0, 1, dtype=np.float32)


def _hmeans(total: NDArray[np.int64]) -> dict[float, float]:
    """Return hmean by threshold from counts (T, 3) over all pages: matched, truths, detections."""
    return {
        t: iou.harmonic_mean(matched / detections if detections else 0.0, matched / truths if truths else 0.0)
        for t, (matched, truths, detections) in zip(iou.THRESHOLDS, total.tolist(), strict=True)
    }
