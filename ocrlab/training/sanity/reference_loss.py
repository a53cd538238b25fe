"""The DB loss read a second time, slow and in float64; and the loss compared with it.

It was written from the paper (Liao et al. 2020, equations 3 to 7) and from `losses`' own words about a batch without
text, not from its code. Shapes: B batch, H W pixels; all maps are (B, 1, H, W).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from ocrlab.losses.db_loss import NO_TEXT_SHARE, TargetMaps
from ocrlab.records import Check

K = 50.0  # the paper's
VALUE, GRADIENT = 1e-5, 1e-4  # relative; float32 against float64 over a million pixels
NOTICEABLE = 1e-12  # a gradient below it is none

Map = NDArray[np.float64]
Loss = Callable[..., Any]  # as losses.db_loss
Weights = tuple[float, float, float]


def reference(x: Tensor, y: Tensor, maps: TargetMaps, weights: Weights, ratio: float) -> Tensor:
    """Return the DB loss of logits `x` (probability) and `y` (threshold), in float64."""
    x, y, truth, mask, border, band = (v.double() for v in (x, y, *maps))
    p, t = torch.sigmoid(x), torch.sigmoid(y)
    text, rest = (truth > 0.5) & (mask > 0.5), (truth <= 0.5) & (mask > 0.5)
    positives, hard = learned_pixels(maps, ratio)
    pixel = softplus(x) - x * truth  # -log of the probability of what is true
    bce = (pixel * (text + hardest(pixel.detach(), rest, hard))).sum() / (positives + hard + 1e-6)
    b = torch.sigmoid(K * (p - t))
    dice = 1 - 2 * (b * text).sum() / ((b * (mask > 0.5)).sum() + positives + 1e-6)
    l1 = ((t - border).abs() * band).sum() / max(float(band.sum()), 1e-6)
    return weights[0] * bce + weights[1] * dice + weights[2] * l1


def learned_pixels(maps: TargetMaps, ratio: float) -> tuple[int, int]:
    """Return how many pixels the BCE learns from: those of text, and the hardest of the others."""
    counted, text = maps.shrink_mask > 0.5, maps.shrink_map > 0.5
    positives, negatives = int((text & counted).sum()), int((~text & counted).sum())
    if not positives:
        return 0, int(np.ceil(negatives * NO_TEXT_SHARE))
    return positives, min(int(ratio * positives), negatives)


def hardest(pixel: Tensor, rest: Tensor, count: int) -> Tensor:
    """Return 1 for the `count` largest values among `rest`, else 0; values that tie for the last places share them."""
    share = torch.zeros_like(pixel)
    if count:
        edge = pixel[rest].sort(descending=True)[0][count - 1]
        share[rest & (pixel > edge)] = 1
        ties = rest & (pixel == edge)
        share[ties] = (count - share.sum()) / ties.sum()
    return share


def random_logits(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Return random logits for both maps, float32 that require a gradient."""
    rng = np.random.default_rng(seed)
    x, y = (torch.from_numpy(rng.normal(0, 2, shape).astype(np.float32)).requires_grad_() for _ in range(2))
    return x, y


def value_and_gradients(total_of: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[float, Map, Map]:
    """Return a loss and its gradient by both logits in float64; zeros where there is none."""
    x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
    total = total_of(x, y)
    if total.requires_grad:
        total.backward()
    gx, gy = (np.zeros(v.shape) if v.grad is None else v.grad.cpu().double().numpy() for v in (x, y))
    return float(total.detach()), gx, gy


def compare(loss: Loss, maps: TargetMaps, weights: Weights, ratio: float) -> list[Check]:
    """Judge value and gradient of a loss against the reference: on these maps, without any text, and all ignored."""
    cases = {"text": maps, "no text": blank(maps), "all ignored": ignored(maps)}
    apart: dict[str, dict[str, float]] = {"value": {}, "gradient": {}}
    for number, (name, case_maps) in enumerate(cases.items()):
        x, y = random_logits(tuple(maps.shrink_map.shape), number)
        total, *gradients = value_and_gradients(_total(loss, case_maps, weights, ratio), x, y)
        want, *wanted = value_and_gradients(partial(reference, maps=case_maps, weights=weights, ratio=ratio), x, y)
        apart["value"][name] = _apart(np.array(total), np.array(want))
        apart["gradient"][name] = max(map(_apart, gradients, wanted))
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
        _, gx, _ = value_and_gradients(_total(loss, case_maps, (1.0, 0.0, 0.0), ratio), x, y)
        wanted = learned_pixels(case_maps, ratio)
        text = (case_maps.shrink_map > 0.5).cpu().numpy()
        learned = np.abs(gx) > NOTICEABLE
        positives, hard = int((learned & text).sum()), int((learned & ~text).sum())
        result = f"{positives} text pixels, {hard} others" + (f" ({hard / positives:.2f} to 1)" if positives else "")
        same, need = (positives, hard) == wanted, f"{wanted[0]} and {wanted[1]}"
        do = "Look at the masks, and at how many hard negatives the loss takes"
        checks.append(make_check(f"BCE counts{name}", same, result, need, do))
    return checks


def masks(loss: Loss, maps: TargetMaps, weights: Weights, ratio: float) -> Check:
    """Judge that nothing is learned where the masks are 0; half of each map is masked for it."""
    half = torch.ones_like(maps.shrink_mask)
    half[..., : half.shape[-1] // 2] = 0
    masked = maps._replace(shrink_mask=maps.shrink_mask * half, threshold_mask=maps.threshold_mask * half)
    x, y = random_logits(tuple(half.shape), 3)
    _, gx, gy = value_and_gradients(_total(loss, masked, weights, ratio), x, y)
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


def _total(loss: Loss, maps: TargetMaps, weights: Weights, ratio: float) -> Callable[[Tensor, Tensor], Tensor]:
    def total(x: Tensor, y: Tensor) -> Tensor:
        return loss(x, y, maps, weights=weights, negative_ratio=ratio).total  # type: ignore[no-any-return]

    return total
