"""One whole page through the detector: the path that validation and prediction share, so that they cannot differ.

Shapes: H W canvas pixels, P points.
"""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from numpy.typing import NDArray

from ocrlab import postprocess
from ocrlab.config import Config, Evaluate, Post
from ocrlab.data import transforms
from ocrlab.data.dataset import Page
from ocrlab.errors import ShapeError
from ocrlab.metrics import iou
from ocrlab.model.detector import Detector


def probability(model: Detector, canvas: NDArray[np.uint8], *, bf16: bool) -> NDArray[np.float32]:
    """Return the probability map (H, W) float32 of a canvas (H, W, 3) RGB uint8, both multiples of 32."""
    device = next(model.parameters()).device
    images = torch.from_numpy(canvas).to(device).permute(2, 0, 1)[None]  # (1, 3, H, W), channels last
    half = torch.autocast(device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()
    with torch.inference_mode(), half:
        found: NDArray[np.float32] = model.probability(images)[0, 0].cpu().numpy()
    if not np.isfinite(found).all():
        raise ShapeError(
            "The probability map holds NaN",
            got=f"{int((~np.isfinite(found)).sum())} of {found.size} pixels",
            need="finite weights",
            do="Look at the training's loss curve; the checkpoint is broken",
        )
    return found


def regions(
    heat: NDArray[np.float32], warp: NDArray[np.float64], size: tuple[int, int], post: Post, shrink_ratio: float
) -> postprocess.Regions:
    """Return polygons and scores in page pixels from a probability map; `size` is the page's (width, height)."""
    return postprocess.decode(
        heat,
        threshold=post.threshold,
        box_threshold=post.box_threshold,
        unclip=post.unclip,
        shrink_ratio=shrink_ratio,
        shape=post.shape,
        max_candidates=post.max_candidates,
        min_size=post.min_size,
        to_page=transforms.invert(warp),
        size=size,
    )


def detect(
    model: Detector, image: NDArray[np.uint8], *, post: Post, evaluate: Evaluate, shrink_ratio: float, bf16: bool
) -> postprocess.Regions:
    """Return the text regions of one page (H, W, 3) RGB uint8, in its own pixels."""
    size = (image.shape[1], image.shape[0])
    warp, canvas = transforms.letterbox(size, evaluate)
    heat = probability(model, transforms.warp_image(image, warp, canvas), bf16=bf16)
    return regions(heat, warp, size, post, shrink_ratio)


def judge(model: Detector, page: Page, config: Config, *, bf16: bool) -> iou.PageMatch:
    """Return what the detector finds on an annotated page, matched with its ground truth."""
    heat = probability(model, page.canvas, bf16=bf16)
    size = (page.sample.width, page.sample.height)
    found = regions(heat, page.warp, size, config.post, config.targets.shrink_ratio)
    return iou.match(page.sample.polygons, page.sample.ignored, found.polygons)
