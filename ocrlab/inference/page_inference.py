"""One whole page through the detector: the path that validation and prediction share, so that they cannot differ.

Shapes: B pages, H W canvas pixels, P points.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from ocrlab.config.schema import Config, Evaluate, Post
from ocrlab.data import transforms
from ocrlab.data.dataset import Page
from ocrlab.errors import ShapeError
from ocrlab.evaluation import postprocess
from ocrlab.evaluation.metrics import page_scores as scores
from ocrlab.model.dbnet import Detector
from ocrlab.model.inference_graph import Fused, fused

_FUSED: WeakKeyDictionary[Detector, tuple[tuple[Any, ...], Fused]] = WeakKeyDictionary()


def probability(model: Detector, canvas: NDArray[np.uint8], *, bf16: bool) -> NDArray[np.float32]:
    """Return the probability map (H, W) float32 of a canvas (H, W, 3) RGB uint8, both multiples of 32.

    Raises ShapeError where the weights or the map hold NaN.
    """
    return np.asarray(probabilities(model, canvas[None], bf16=bf16)[0])


def probabilities(model: Detector, canvases: NDArray[np.uint8], *, bf16: bool) -> NDArray[np.float32]:
    """Return the probability maps (B, H, W) float32 of canvases (B, H, W, 3) of one size; see `probability`."""
    network = cached_fused(model, bf16=bf16)
    images = torch.from_numpy(canvases).to(model.mean.device).permute(0, 3, 1, 2)  # (B, 3, H, W), channels last
    with torch.inference_mode(), torch.autocast(images.device.type, enabled=False):  # `bf16` alone decides
        maps: NDArray[np.float32] = network.probability(images)[:, 0].cpu().numpy()
    if not np.isfinite(maps).all():
        got, do = f"{int((~np.isfinite(maps)).sum())} of {maps.size} pixels", "Look at the training's loss curve"
        what = "The probability map holds NaN"
        raise ShapeError(what, got=got, need="finite weights", do=f"{do}; the checkpoint is broken")
    return maps


def cached_fused(model: Detector, *, bf16: bool) -> Fused:
    """Return the inference form of a detector, made anew only where its weights have changed since the last page.

    Changes are known by torch's version counters, which see every change in place but one through `.data`.
    """
    tensors = (*model.parameters(), *model.buffers())
    weights = (bf16, *((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors))
    cached = _FUSED.get(model)
    if cached is None or cached[0] != weights:
        free_fused(model)  # the old one goes before the new one comes
        cached = _FUSED[model] = (weights, fused(model, bf16=bf16))
    return cached[1]


def free_fused(model: Detector) -> None:
    """Free the inference form of a detector whose weights are about to change."""
    _FUSED.pop(model, None)


def regions(
    heat: NDArray[np.float32], warp: NDArray[np.float64], size: tuple[int, int], post: Post, shrink_ratio: float
) -> postprocess.Regions:
    """Return polygons and scores in page pixels from a probability map; `size` is the page's (width, height)."""
    to_page = transforms.invert(warp)
    return postprocess.decode(heat, **dict(post), shrink_ratio=shrink_ratio, to_page=to_page, size=size)


def detect(
    model: Detector, image: NDArray[np.uint8], *, post: Post, evaluate: Evaluate, shrink_ratio: float, bf16: bool
) -> postprocess.Regions:
    """Return the text regions of one page (H, W, 3) RGB uint8, in its own pixels."""
    size = (image.shape[1], image.shape[0])
    warp, canvas = transforms.letterbox(size, evaluate)
    heat = probability(model, transforms.warp_image(image, warp, canvas), bf16=bf16)
    return regions(heat, warp, size, post, shrink_ratio)


def judge(model: Detector, page: Page, config: Config, *, bf16: bool) -> scores.PageScores:
    """Return how IoU, DetEval and CLEval judge what the detector finds on an annotated page."""
    heat, sample = probability(model, page.canvas, bf16=bf16), page.sample
    detected = regions(heat, page.warp, (sample.width, sample.height), config.post, config.targets.shrink_ratio)
    return scores.judge(sample.polygons, sample.ignored, sample.texts, detected.polygons)
