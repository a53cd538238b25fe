"""The DB loss read a second time: slow, in float64 and NumPy, with its gradient by hand; and the loss compared with it.

It was written from the paper (Liao et al. 2020, equations 3 to 7) and from `losses`' own words about a batch without
text, not from its code. Shapes: B batch, H W pixels; all maps are (B, 1, H, W).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocrlab.losses.db_loss import NO_TEXT_SHARE, TargetMaps
from ocrlab.records import Check

K = 50.0  # the paper's
VALUE, GRADIENT = 1e-5, 1e-4  # relative; float32 against float64 over a million pixels
NOTICEABLE = 1e-12  # a gradient below it is none

Map = NDArray[np.float64]
Loss = Callable[..., Any]  # as losses.db_loss


@dataclass(frozen=True)
class Reference:
    """The loss, its gradient by both logits, and how many pixels the BCE learned from."""

    total: float
    by_probability: Map
    by_threshold: Map
    positives: int
    hard: int


def reference(x: Tensor, y: Tensor, maps: TargetMaps, weights: tuple[float, float, float], ratio: float) -> Reference:
    """Return the DB loss of logits `x` (probability) and `y` (threshold) with its gradient, in float64."""
    logits, thresholds, truth, mask, border, band = map(_doubles, (x, y, *maps))
    p, t = 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-thresholds))
    text, rest = (truth > 0.5) & (mask > 0.5), (truth <= 0.5) & (mask > 0.5)
    positives, negatives = int(text.sum()), int(rest.sum())
    hard = min(int(ratio * positives), negatives) if positives else int(np.ceil(negatives * NO_TEXT_SHARE))
    pixel = np.logaddexp(0, logits) - logits * truth  # -log of the probability of what is true
    share = hardest(pixel, rest, hard)
    count = positives + hard + 1e-6
    bce, by_bce = float((pixel * (text + share)).sum() / count), (p - truth) * (text + share) / count

    b = 1 / (1 + np.exp(-K * (p - t)))
    both, size = float((b * text).sum()), float((b * (mask > 0.5)).sum() + positives + 1e-6)
    dice = 1 - 2 * both / size
    by_binary = -2 * (text * size - both * (mask > 0.5)) / size**2 * K * b * (1 - b)

    learned = max(float(band.sum()), 1e-6)
    l1, by_l1 = float((np.abs(t - border) * band).sum() / learned), np.sign(t - border) * band / learned
    total = weights[0] * bce + weights[1] * dice + weights[2] * l1
    gx = weights[0] * by_bce + weights[1] * by_binary * p * (1 - p)
    gy = (weights[2] * by_l1 - weights[1] * by_binary) * t * (1 - t)
    return Reference(total, gx, gy, positives, hard)


def hardest(pixel: Map, rest: NDArray[np.bool_], count: int) -> Map:
    """Return 1 for the `count` largest values among `rest`, else 0; values that tie for the last places share them."""
    share = np.zeros_like(pixel)
    if count:
        edge = np.sort(pixel[rest])[::-1][count - 1]
        share[rest & (pixel > edge)] = 1
        ties = rest & (pixel == edge)
        share[ties] = (count - share.sum()) / ties.sum()
    return share


def random_logits(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Return random logits for both maps, float32 that require a gradient."""
    rng = np.random.default_rng(seed)
    x, y = (torch.from_numpy(rng.normal(0, 2, shape).astype(np.float32)).requires_grad_() for _ in range(2))
    return x, y


def value_and_gradients(
    loss: Loss, x: Tensor, y: Tensor, maps: TargetMaps, weights: tuple[float, float, float], ratio: float
) -> tuple[float, Map, Map]:
    """Return a loss and its gradient by both logits in float64; zeros where there is none."""
    x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
    total = loss(x, y, maps, weights=weights, negative_ratio=ratio).total
    if total.requires_grad:
        total.backward()
    gx, gy = (np.zeros(v.shape) if v.grad is None else _doubles(v.grad) for v in (x, y))
    return float(total.detach()), gx, gy


def compare(loss: Loss, maps: TargetMaps, weights: tuple[float, float, float], ratio: float) -> list[Check]:
    """Judge value and gradient of a loss against the reference: on these maps, without any text, and all ignored."""
    cases = {"text": maps, "no text": blank(maps), "all ignored": ignored(maps)}
    apart: dict[str, dict[str, float]] = {"value": {}, "gradient": {}}
    for number, (name, case_maps) in enumerate(cases.items()):
        x, y = random_logits(tuple(maps.shrink_map.shape), number)
        total, gx, gy = value_and_gradients(loss, x, y, case_maps, weights, ratio)
        want = reference(x, y, case_maps, weights, ratio)
        apart["value"][name] = _apart(np.array(total), np.array(want.total))
        apart["gradient"][name] = max(_apart(gx, want.by_probability), _apart(gy, want.by_threshold))
    checks = []
    for kind, limit in (("value", VALUE), ("gradient", GRADIENT)):
        name = max(apart[kind], key=lambda case: apart[kind][case])
        result = f"{apart[kind][name]:.1e} apart from the float64 reference (worst: {name})"
        do = "Compare the order of the maps, the masks and the weights with ocrlab/losses"
        checks.append(make_check(f"loss: {kind}", apart[kind][name] <= limit, result, f"{limit:.0e} or less", do))
    return checks


def counts(loss: Loss, maps: TargetMaps, ratio: float) -> list[Check]:
    """Judge from how many pixels the BCE learns: every text pixel, `ratio` hard ones for each, 1/64 of a blank page."""
    checks = []
    for name, case_maps in {"": maps, " without text": blank(maps)}.items():
        x, y = random_logits(tuple(maps.shrink_map.shape), 7)
        _, gx, _ = value_and_gradients(loss, x, y, case_maps, (1.0, 0.0, 0.0), ratio)
        want = reference(x, y, case_maps, (1.0, 0.0, 0.0), ratio)
        text = (case_maps.shrink_map > 0.5).cpu().numpy()
        learned = np.abs(gx) > NOTICEABLE
        positives, hard = int((learned & text).sum()), int((learned & ~text).sum())
        result = f"{positives} text pixels, {hard} others" + (f" ({hard / positives:.2f} to 1)" if positives else "")
        same, need = (positives, hard) == (want.positives, want.hard), f"{want.positives} and {want.hard}"
        do = "Look at the masks, and at how many hard negatives the loss takes"
        checks.append(make_check(f"BCE counts{name}", same, result, need, do))
    return checks


def masks(loss: Loss, maps: TargetMaps, weights: tuple[float, float, float], ratio: float) -> Check:
    """Judge that nothing is learned where the masks are 0; half of each map is masked for it."""
    half = torch.ones_like(maps.shrink_mask)
    half[..., : half.shape[-1] // 2] = 0
    masked = maps._replace(shrink_mask=maps.shrink_mask * half, threshold_mask=maps.threshold_mask * half)
    x, y = random_logits(tuple(half.shape), 3)
    _, gx, gy = value_and_gradients(loss, x, y, masked, weights, ratio)
    off = (half == 0).cpu().numpy()
    leak = int(((np.abs(gx) > NOTICEABLE) & off).sum() + ((np.abs(gy) > NOTICEABLE) & off).sum())
    do = "Multiply each term of the loss by its mask, and count only pixels under it"
    return make_check("masked pixels", leak == 0, f"{leak} of {2 * int(off.sum())} pixels taught", "none", do)


def blank(maps: TargetMaps) -> TargetMaps:
    """Return the maps of a page without text."""
    zeros = torch.zeros_like(maps.shrink_map)
    low = torch.full_like(maps.threshold_map, float(maps.threshold_map.min()))
    return TargetMaps(zeros, torch.ones_like(zeros), low, zeros.clone())


def ignored(maps: TargetMaps) -> TargetMaps:
    """Return the maps of a page that is ignored all over."""
    zeros = torch.zeros_like(maps.shrink_map)
    return blank(maps)._replace(shrink_mask=zeros)


def make_check(name: str, good: bool, result: str, need: str, do: str, *, warn: bool = False) -> Check:
    """Return a check: ok, or with `warn` warn, or fail."""
    return Check(name, "ok" if good else "warn" if warn else "fail", result, need, "" if good else do)


def _apart(value: Map, want: Map) -> float:
    """Return the relative distance of two arrays; infinite where one is not finite."""
    if not np.isfinite(value).all():
        return float("inf")
    size = float(np.linalg.norm(want))
    return float(np.linalg.norm(value - want)) / size if size else float(np.linalg.norm(value))


def _doubles(tensor: Tensor) -> Map:
    return tensor.detach().cpu().double().numpy()
