"""Whether the network does what training and prediction take it for, and whether it can overfit one page.

Shapes: B batch, H W input pixels, N polygons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ocrlab.config.schema import Config
from ocrlab.data import target_maps, transforms
from ocrlab.data.dataset import Batch
from ocrlab.data.formats.reader import Sample
from ocrlab.data.image_io import read_image
from ocrlab.evaluation.metrics import iou
from ocrlab.inference import page_inference
from ocrlab.losses.db_loss import TargetMaps
from ocrlab.model.dbnet import Detector
from ocrlab.records import Check
from ocrlab.training.sanity.reference_loss import Loss, make_check

SAME_MAP = 1e-3  # largest difference of a probability between the path of training and that of prediction
SIDE, STEPS, EVERY = 256, 240, 10  # of the page that is overfitted: pixels, most steps, steps between validations
RATE, CLIP = 2e-3, 5.0
LEGIBLE = 8  # pixels; the short side of a box that such a small part of a page can teach
ENOUGH, MOST = 12, 30  # boxes on it

Progress = Callable[[dict[str, Any]], None]


@dataclass
class LearnedPage:
    """A part of a page (H, W, 3) that was overfitted: its text, the detections, and the curve."""

    page: str = ""
    canvas: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0, 3), np.uint8))
    polygons: list[NDArray[np.float32]] = field(default_factory=list)
    ignored: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    detections: list[NDArray[np.float32]] = field(default_factory=list)
    curve: list[dict[str, float]] = field(default_factory=list)  # step and loss, and hmean@0.5 where it was looked at

    @property
    def hmean(self) -> float:
        """hmean at IoU 0.5 when it was last looked at."""
        return next((row["hmean@0.5"] for row in reversed(self.curve) if "hmean@0.5" in row), 0.0)


def step(loss: Loss, config: Config) -> Callable[[nn.Module, Any], Tensor]:
    """Return the training step of a config as a function of model and batch."""
    named = {
        "weights": (config.loss.bce, config.loss.dice, config.loss.l1),
        "negative_ratio": config.loss.negative_ratio,
    }

    def run(model: nn.Module, batch: Batch) -> Tensor:
        maps = model(batch.images)
        parts = loss(maps.probability_logits, maps.threshold_logits, TargetMaps(*batch.maps), **named)
        return parts.total  # type: ignore[no-any-return]

    return run


def inference(model: nn.Module, batch: Batch) -> Check:
    """Judge whether prediction reads the map that is trained: the same probability by both ways, in eval mode."""
    name, need = "trained map is the used one", f"{SAME_MAP} or less"
    if not isinstance(model, Detector):
        return Check(name, "skip", f"{type(model).__name__} is not an ocrlab.model.dbnet.Detector", need)
    canvas = np.ascontiguousarray(batch.images[0].permute(1, 2, 0).cpu().numpy())
    before = model.training
    try:
        model.eval()
        with torch.no_grad():
            trained = model(batch.images[:1]).probability[0, 0].cpu().numpy()
        used = page_inference.probability(model, canvas, bf16=False)
    finally:
        model.train(before)
    apart = float(np.abs(trained - used).max())
    do = "Look at what head.forward returns first: prediction reads head.probability alone"
    return make_check(name, apart <= SAME_MAP, f"{apart:.1e} apart at most", need, do)


def window(samples: Sequence[Sample]) -> tuple[Sample, NDArray[np.float64]]:
    """Return the page, and the warp to a part of it of 256 x 256 pixels, that shows most whole and legible boxes."""
    chosen, most = (samples[0], np.eye(2, 3)), 0
    for sample in samples[:8]:
        for scale in (1.0, 0.5, 0.25):
            edge = SIDE / scale
            stops = (np.arange(0, max(n - edge, 0) + 1, max(16.0, n / 32)) for n in (sample.width, sample.height))
            corners = np.stack(np.meshgrid(*stops), axis=-1).reshape(-1, 2)
            counts = legible(sample, corners * scale, scale).sum(axis=1)
            counts[counts > MOST] = 0  # more is too much for a few seconds
            best = int(counts.argmax())
            if counts[best] > most:
                x, y = corners[best] * scale
                chosen, most = (sample, np.array([[scale, 0, -x], [0, scale, -y]])), int(counts[best])
            if most >= ENOUGH:
                break  # the larger scale is the easier one
    return chosen


def legible(sample: Sample, corners: NDArray[np.float64], scale: float) -> NDArray[np.bool_]:
    """Return (M, N): which polygons count, and lie whole and large enough in the part at each of M corners."""
    if not len(sample.polygons):
        return np.zeros((len(corners), 0), bool)
    low, high = (np.array([f(np.asarray(p), axis=0) for p in sample.polygons]) * scale for f in (np.min, np.max))
    large = ((high - low).min(axis=1) >= LEGIBLE) & ~sample.ignored
    starts, stops = low - corners[:, None], high - corners[:, None]  # (M, N, 2)
    return np.asarray((starts >= 2).all(axis=2) & (stops <= SIDE - 2).all(axis=2) & large)


def learn(
    make: Callable[[], nn.Module], loss: Loss, samples: Sequence[Sample], config: Config, progress: Progress
) -> LearnedPage:
    """Overfit a part of one page, until all of its text is found or 240 steps are done.

    Where no box on it counts nothing is learned: that all of nothing was found would say nothing.
    """
    sample, warp = window(samples)
    counts = legible(sample, -warp[None, :, 2], float(warp[0, 0]))[0]
    moved = [transforms.warp_points(np.asarray(p), warp) for p in sample.polygons]
    visible = [bool((p.max(axis=0) > 0).all() and (p.min(axis=0) < SIDE).all()) for p in moved]
    polygons, ignored = [p for p, s in zip(moved, visible, strict=True) if s], ~counts[np.asarray(visible, bool)]
    canvas = transforms.warp_image(read_image(sample.image, exif=config.exif), warp, (SIDE, SIDE))
    learned = LearnedPage(sample.name, canvas, polygons, ignored)
    if ignored.all():
        return learned
    targets = target_maps.make([np.rint(p) for p in polygons], ignored, (SIDE, SIDE), **dict(config.targets))
    images = torch.from_numpy(np.ascontiguousarray(canvas)[None]).permute(0, 3, 1, 2)  # (1, 3, H, W), channels last
    maps = tuple(torch.from_numpy(m)[None, None] for m in targets.maps)
    batch = Batch(images, maps, [sample.name])  # type: ignore[arg-type]
    model = make().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=RATE)
    for number in range(1, STEPS + 1):
        total = step(loss, config)(model, batch)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(trainable, CLIP)
        optimizer.step()
        row = {"step": float(number), "loss": float(total.detach())}
        learned.curve.append(row)
        if not math.isfinite(row["loss"]):
            break
        if number % EVERY == 0:
            row["hmean@0.5"] = measure_page(model, batch, learned, config)
            progress({"kind": "train", "total": STEPS, **row})
            if row["hmean@0.5"] == 1.0:
                break
    return learned


def measure_page(model: nn.Module, batch: Batch, learned: LearnedPage, config: Config) -> float:
    """Return hmean@0.5 of what a model finds on the part of a page, and keep what it found."""
    model.eval()
    with torch.no_grad():
        heat = model(batch.images).probability_logits.float().sigmoid()[0, 0].numpy()
    model.train()
    if not np.isfinite(heat).all():
        return 0.0
    regions = page_inference.regions(heat, np.eye(2, 3), (SIDE, SIDE), config.post, config.targets.shrink_ratio)
    learned.detections = regions.polygons
    return iou.match(learned.polygons, learned.ignored, regions.polygons).hmean(0.5)


def by_heart(learned: LearnedPage, seconds: float) -> Check:
    """Judge whether everything on the part of a page is found."""
    count = int((~learned.ignored).sum())
    if not count:
        return Check("one page overfitted", "skip", "no legible box lies whole in any part of the first pages", "one")
    steps = len(learned.curve)
    result = f"hmean@0.5 {learned.hmean:.3f} over {count} boxes after {steps} steps, {seconds:.0f} s"
    do = "Look at the found polygons: what one page cannot teach, no data will"
    good, near = learned.hmean == 1.0, learned.hmean >= 0.9
    return make_check("one page overfitted", good, result, f"1.0 within {STEPS} steps", do, warn=near)
