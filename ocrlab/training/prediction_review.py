"""Arrays of a training to look at: its data and targets, its network, and its predictions page by page.

`reports` draws them. Shapes: H W canvas pixels, N ground truths, M detections.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ocrlab.config.schema import Config, Post
from ocrlab.data import target_maps, transforms
from ocrlab.data.dataset import training_crop
from ocrlab.data.formats.reader import Sample
from ocrlab.data.image_io import read_image
from ocrlab.evaluation.metrics import iou
from ocrlab.evaluation.postprocess import Regions
from ocrlab.inference import page_inference
from ocrlab.model.dbnet import Detector

Unclip = Literal["exact"] | float
Tick = Callable[[int, int], None]  # done, total
AT = 0.5  # the IoU that ranks pages


@dataclass(frozen=True)
class Stage:
    """One row of the model table: a module, its output (C, H, W) where it has one of its own, and its parameters."""

    name: str
    shape: tuple[int, int, int] | None
    parameters: int


@dataclass(frozen=True)
class ReviewedPage:
    """One page with what was found on it, and the (H, W) probability map that this was read from, if it was kept."""

    sample: Sample
    regions: Regions
    match: iou.PageMatch
    warp: NDArray[np.float64]
    heat: NDArray[np.float32] | None

    @property
    def hmean(self) -> float:
        """hmean of this page alone, at IoU 0.5."""
        return self.match.hmean(AT)


@dataclass(frozen=True)
class Review:
    """Every page of a split as a detector saw it, and the settings it was read with."""

    config: Config
    pages: list[ReviewedPage]


def spread_samples(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return `count` samples from all over a split, or all of them."""
    if count >= len(samples):
        return list(samples)
    return [samples[int(at)] for at in np.linspace(0, len(samples) - 1, count)]


def example_crop(config: Config, samples: Sequence[Sample]) -> tuple[Sample, NDArray[np.uint8], target_maps.Targets]:
    """Return one page, a crop (crop, crop, 3) of it as training sees it, and its target maps; raises DataError."""
    sample = random.Random(config.seed).choice(samples)
    image = read_image(sample.image, exif=config.exif)
    crop, maps = training_crop(np.random.default_rng(config.seed), image, sample, config)
    return sample, crop, maps


def stages(config: Config) -> list[Stage]:
    """Return the network stage by stage for one training crop; every parameter is counted once."""
    with torch.device("meta"):  # only shapes and counts are needed
        net = Detector(config.encoder, config.decoder, config.width)

    def count(module: str) -> int:
        return sum(parameter.numel() for parameter in net.get_submodule(module).parameters())

    rows = [Stage(name, shape, count(name)) for name, shape in net.shapes(config.crop, config.crop)]
    for part, title in (("decoder", "decoder, before fusion"), ("encoder", "encoder.stem")):
        own = [at for at, row in enumerate(rows) if row.name.startswith(f"{part}.")]
        if rest := count(part) - sum(rows[at].parameters for at in own):
            rows.insert(own[0], Stage(title, None, rest))
    return rows


def review_pages(
    net: Detector,
    config: Config,
    samples: Sequence[Sample],
    *,
    bf16: bool,
    keep: int = 16,
    tick: Tick | None = None,
) -> Review:
    """Return every page with what `net` finds on it; the maps of `keep` pages, evenly spread, stay for `sweep`."""
    names = {sample.name for sample in spread_samples(samples, keep)}
    reviewed = []
    for number, sample in enumerate(samples, 1):
        image = read_image(sample.image, exif=config.exif)
        warp, canvas = transforms.letterbox((sample.width, sample.height), config.evaluate)
        heat = page_inference.probability(net, transforms.warp_image(image, warp, canvas), bf16=bf16)
        regions, match = _read(sample, heat, warp, config, config.post)
        reviewed.append(ReviewedPage(sample, regions, match, warp, heat if sample.name in names else None))
        if tick:
            tick(number, len(samples))
    return Review(config, reviewed)


def _read(
    sample: Sample, heat: NDArray[np.float32], warp: NDArray[np.float64], config: Config, post: Post
) -> tuple[Regions, iou.PageMatch]:
    """Return what a probability map gives with these settings, and how it matches the ground truth."""
    size = (sample.width, sample.height)
    regions = page_inference.regions(heat, warp, size, post, config.targets.shrink_ratio)
    return regions, iou.match(sample.polygons, sample.ignored, regions.polygons)


def sweep(
    review: Review,
    thresholds: Sequence[float],
    unclips: Sequence[Unclip],
    tick: Tick | None = None,
) -> dict[tuple[float, Unclip], dict[str, float]]:
    """Return `iou.summary` of the kept maps for every threshold and unclip, the configured ones always among them."""
    config = review.config
    pages = [page for page in review.pages if page.heat is not None]
    thresholds = sorted({*thresholds, config.post.threshold})
    unclips = [*unclips, *([] if config.post.unclip in unclips else [config.post.unclip])]
    matches: dict[tuple[float, Unclip], list[iou.PageMatch]] = {(t, u): [] for t in thresholds for u in unclips}
    for number, page in enumerate(pages, 1):
        assert page.heat is not None, "only pages with a map were taken"
        for (threshold, unclip), page_matches in matches.items():
            post = config.post.model_copy(update={"threshold": threshold, "unclip": unclip})
            page_matches.append(_read(page.sample, page.heat, page.warp, config, post)[1])
        if tick:
            tick(number, len(pages))
    return {setting: iou.summary(page_matches) for setting, page_matches in matches.items()}


def best_and_worst(review: Review, count: int) -> tuple[list[ReviewedPage], list[ReviewedPage]]:
    """Return the `count` best pages, best first, and of the others the `count` worst, worst first."""
    ranked = sorted(review.pages, key=lambda page: page.hmean, reverse=True)
    best = ranked[:count]
    return best, ranked[max(count, len(ranked) - count) :][::-1]
