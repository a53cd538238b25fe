"""Whether the network does what training and prediction take it for, and whether it can overfit one page.

Shapes: B batch, H W input pixels, N polygons.
"""

from __future__ import annotations

import copy
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
from ocrlab.training.sanity.reference_loss import Loss, blank, ignored, make_check

SAME_MAP = 1e-3  # largest difference of a probability between the path of training and that of prediction
# bf16 against fp32: random weights turn the gradient by up to 45 degrees, a fault by 90
HALF_LOSS, HALF_ANGLE = 0.02, 0.5
DEEPEST, FEW = 32, 32  # stride of the deepest maps; values of a channel below which bf16 turns a sound gradient more
CARD_LOSS, CARD_ANGLE = 1e-3, 0.999  # GPU against CPU, both fp32 (TF32 off)
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


def blank_pages(model: nn.Module, batch: Batch, loss: Loss, config: Config) -> list[Check]:
    """Judge a page without text, which must teach that there is none, and one all ignored, which must teach nothing."""
    maps = TargetMaps(*batch.maps)
    checks = []
    for name, page_maps in (("empty page", blank(maps)), ("all-ignored page", ignored(maps))):
        value, gradient = gradients(model, Batch(batch.images, page_maps, batch.pages), loss, config)
        norm, empty = float(torch.linalg.vector_norm(gradient)), name == "empty page"
        good = math.isfinite(value) and math.isfinite(norm) and (norm > 0 if empty else norm == 0)
        need = "finite, a gradient above 0" if empty else "finite, no gradient"
        do = "Guard the divisions of the loss, and let a page without text count some negatives"
        checks.append(make_check(name, good, f"loss {value:.3g}, gradient {norm:.3g}", need, do))
    return checks


def precision(model: nn.Module, batch: Batch, loss: Loss, config: Config) -> Check:
    """Judge how far bf16 leads away from fp32: loss and gradient of the same weights on the same batch."""
    device = batch.images.device.type
    exact = gradients(model, batch, loss, config)
    with torch.autocast(device, torch.bfloat16):
        rough = gradients(model, batch, loss, config)
    values = batch.images.shape[0] * batch.images[0, 0].numel() // DEEPEST**2  # of a channel of the deepest maps
    few, do = values < FEW, "Train in fp32: trainer.precision=fp32"
    if few:
        do = f"Take a larger crop or batch: BatchNorm of {values} values a channel makes much of rounding. Or t{do[1:]}"
    return _agree("bf16 against fp32", exact, rough, (HALF_LOSS, HALF_ANGLE), do, few=few)


def device(model: nn.Module, batch: Batch, loss: Loss, config: Config) -> Check:
    """Judge whether the GPU computes what the CPU does, both in fp32; skips without one."""
    name = "GPU against CPU"
    if not torch.cuda.is_available():
        return Check(name, "skip", "torch sees no CUDA device", f"loss within {CARD_LOSS:g}")
    there = torch.device("cuda")
    on_card = Batch(batch.images.to(there), tuple(m.to(there) for m in batch.maps), batch.pages)  # type: ignore[arg-type]
    tf32 = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = False
        ours = gradients(model, batch, loss, config)
        theirs = gradients(copy.deepcopy(model).to(there), on_card, loss, config)
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    do = "Compare both layer by layer: notebooks/04_layers.ipynb; then ocrlab doctor"
    return _agree(name, ours, theirs, (CARD_LOSS, CARD_ANGLE), do)


def _agree(
    name: str,
    want: tuple[float, Tensor],
    got: tuple[float, Tensor],
    limits: tuple[float, float],
    do: str,
    *,
    few: bool = False,
) -> Check:
    """Judge loss and gradient computed in another way; of a `few` values a gradient that is turned may be chance."""
    off = abs(got[0] - want[0]) / max(abs(want[0]), 1e-12)  # NaN fails every comparison below
    cosine = float(torch.nn.functional.cosine_similarity(want[1].double(), got[1].double(), dim=0, eps=1e-30))
    result = f"loss {off:.1e} apart, cosine of the gradients {cosine:.4f}"
    near, need = off <= limits[0], f"{limits[0]:g} or less, {limits[1]:g} or more"
    return make_check(name, near and cosine >= limits[1], result, need, do, warn=few and near and cosine > 0)


def gradients(model: nn.Module, batch: Batch, loss: Loss, config: Config) -> tuple[float, Tensor]:
    """Return the loss and the gradient by all weights, flat, on the CPU; the model given stays as it is."""
    net = copy.deepcopy(model).train()
    net.zero_grad(set_to_none=True)
    total = step(loss, config)(net, batch)
    if total.requires_grad:
        total.backward()
    flat = [
        (torch.zeros_like(p) if p.grad is None else p.grad).detach().float().flatten().cpu()
        for p in net.parameters()
        if p.requires_grad
    ]
    return float(total.detach()), torch.cat(flat)


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
