"""The DB loss (Liao et al. 2020): balanced BCE with hard negatives, dice on the approximate binary map, masked L1.

Two paths, equal in value and gradient:
- the device path is plain tensor arithmetic. It never reads a value back to the host (no `.item()`, no `.cpu()`, no
  `nonzero`), so it can be captured in a CUDA graph and compiled without a break. OHEM's top-k with a k that only the
  device knows is a selection, not a sort: the k-th largest loss is found bit by bit, with no data-dependent shape.
- on the CPU one registered operator computes loss and gradient together, in blocks that stay in the cache.

Shapes: B batch, H W pixels. All maps are (B, 1, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ocrlab.errors import ShapeError

K = 50.0  # steepness of the approximate step function
EPS = 1e-6
BLOCK = 1 << 16  # pixels a block on the CPU: about 20 float32 temporaries fit the second-level cache
NO_TEXT_SHARE = 1 / 64  # share of the hardest negatives that teach when a batch holds no text at all


class TargetMaps(NamedTuple):
    """What the maps should be, each (B, 1, H, W); masks are 1 where a pixel counts."""

    shrink_map: Tensor
    shrink_mask: Tensor
    threshold_map: Tensor
    threshold_mask: Tensor


class LossParts(NamedTuple):
    """The weighted sum that is trained on, and its three terms before weighting (without gradient); 0-d tensors."""

    total: Tensor
    bce: Tensor
    dice: Tensor
    l1: Tensor


def db_loss(
    probability_logits: Tensor,
    threshold_logits: Tensor,
    targets: TargetMaps,
    *,
    weights: tuple[float, float, float] = (5.0, 1.0, 10.0),
    negative_ratio: float = 3.0,
) -> LossParts:
    """Return the DB loss of a batch of maps (B, 1, H, W) given as logits of any float type.

    `weights` are those of BCE, dice and L1. Raises ShapeError when shape, dtype or device do not fit together.
    """
    check(probability_logits, threshold_logits, targets)
    device = probability_logits.device.type
    path = _on_cpu if device == "cpu" else on_device
    with torch.autocast(device, enabled=False):  # sums over a million pixels want float32
        return path(probability_logits, threshold_logits, targets, weights, negative_ratio)


def check(probability_logits: Tensor, threshold_logits: Tensor, targets: TargetMaps) -> None:
    """Raise ShapeError with every shape, dtype and device unless all maps fit together."""
    named = {
        "probability_logits": probability_logits,
        "threshold_logits": threshold_logits,
        **targets._asdict(),
    }
    first = probability_logits
    fits = (
        first.ndim == 4 and first.shape[1] == 1 and first.is_floating_point() and threshold_logits.is_floating_point()
    )
    if fits and all(t.shape == first.shape and t.device == first.device for t in named.values()):
        return
    seen = "; ".join(f"{name} {tuple(t.shape)} {t.dtype} on {t.device}" for name, t in named.items())
    raise ShapeError(
        "The maps of the DB loss do not fit together",
        got=seen,
        need="six maps (B, 1, H, W) on one device, the logits of a float type",
    )


def kth_largest(values: Tensor, k: Tensor) -> Tensor:
    """Return the k-th largest of non-negative floats as a 0-d tensor, without a sort and without reading k on the host.

    Non-negative IEEE 754 floats order like their bits, so the answer is built from the highest bit down: a bit stays
    set if at least k values reach the candidate. k is a 0-d integer tensor; k = 0 gives NaN, which nothing reaches.
    """
    whole, top = (torch.int64, 62) if values.dtype == torch.float64 else (torch.int32, 30)
    bits = values.detach().view(whole)
    found = torch.zeros((), dtype=whole, device=values.device)
    for bit in range(top, -1, -1):
        candidate = found | (1 << bit)
        found = torch.where((bits >= candidate).sum() >= k, candidate, found)
    return found.view(values.dtype)


def negatives_wanted(positives: Tensor, negatives: Tensor, ratio: float) -> Tensor:
    """Return how many hard negatives count (0-d int64): `ratio` a positive, a small share when there is no positive."""
    wanted = torch.where(positives > 0, (positives * ratio).floor(), (negatives * NO_TEXT_SHARE).ceil())
    return torch.minimum(wanted, negatives).to(torch.int64)


def on_device(
    probability_logits: Tensor,
    threshold_logits: Tensor,
    targets: TargetMaps,
    weights: tuple[float, float, float],
    ratio: float,
) -> LossParts:
    """Return the DB loss by plain tensor arithmetic in float32 (float64 for float64 logits); see the module's text."""
    real = torch.float64 if probability_logits.dtype == torch.float64 else torch.float32
    x, y = probability_logits.to(real), threshold_logits.to(real)
    truth, mask, border, border_mask = (t.to(real) for t in targets)
    pixel = softplus(x) - x * truth
    with torch.no_grad():
        positive, negative = truth * mask, (1 - truth) * mask
        positives, negatives = positive.sum(), negative.sum()
        k = negatives_wanted(positives, negatives, ratio)
        hard = (pixel.clamp_min(0) * negative).flatten()
        edge = kth_largest(hard, k)
        above = hard > edge
        ties = (hard == edge) & (negative.flatten() > 0)
        share = (k - above.sum()).clamp_min(0) / ties.sum().clamp_min(1)
        chosen = (above.to(real) + ties * share).view_as(x)
    bce = (pixel * (positive + chosen)).sum() / (positives + k + EPS)
    probability, threshold = x.sigmoid(), y.sigmoid()
    binary = torch.sigmoid(K * (probability - threshold))
    dice = 1 - 2 * (binary * positive).sum() / ((binary * mask).sum() + positives + EPS)
    l1 = ((threshold - border).abs() * border_mask).sum() / border_mask.sum().clamp_min(EPS)
    total = weights[0] * bce + weights[1] * dice + weights[2] * l1
    return LossParts(total, bce.detach(), dice.detach(), l1.detach())


def _on_cpu(
    probability_logits: Tensor,
    threshold_logits: Tensor,
    targets: TargetMaps,
    weights: tuple[float, float, float],
    ratio: float,
) -> LossParts:
    parts, _, _ = _db_loss_cpu(probability_logits, threshold_logits, *targets, list(weights), ratio)
    total, bce, dice, l1 = parts.unbind()
    return LossParts(total, bce.detach(), dice.detach(), l1.detach())


@torch.library.custom_op("ocrlab::db_loss_cpu", mutates_args=(), device_types="cpu")
def _db_loss_cpu(
    probability_logits: Tensor,
    threshold_logits: Tensor,
    shrink_map: Tensor,
    shrink_mask: Tensor,
    threshold_map: Tensor,
    threshold_mask: Tensor,
    weights: list[float],
    ratio: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ((total, bce, dice, l1), gradient of total by the first logits, by the second); see `on_device`."""
    real = torch.float64 if probability_logits.dtype == torch.float64 else torch.float32
    x, y = (t.detach().to(real).reshape(-1) for t in (probability_logits, threshold_logits))
    maps = [t.reshape(-1) for t in (shrink_map, shrink_mask, threshold_map, threshold_mask)]
    blocks = [slice(i, i + BLOCK) for i in range(0, x.numel(), BLOCK)]
    forward = [_sums(x[b], y[b], *(m[b].to(real) for m in maps)) for b in blocks]
    totals = torch.stack([sums for sums, _ in forward]).sum(dim=0)
    positives, negatives, on_text, inside, binary_sum, off, border_count = totals.tolist()
    k = int(negatives_wanted(torch.tensor(positives), torch.tensor(negatives), ratio))
    hard = torch.cat([losses for _, losses in forward])
    edge, share, hard_sum = _hardest(hard, k)
    counted, area, borders = positives + k + EPS, binary_sum + positives + EPS, max(border_count, EPS)
    bce, dice, l1 = (on_text + hard_sum) / counted, 1 - 2 * inside / area, off / borders
    scale = (weights[0] / counted, 2 * weights[1] / area**2, area, inside, weights[2] / borders)
    gradients = [torch.empty(x.shape, dtype=real), torch.empty(x.shape, dtype=real)]
    for b in blocks:
        here = [m[b].to(real) for m in maps]
        _gradient(x[b], y[b], here, hard[b], edge, share, scale, [g[b] for g in gradients])
    parts = torch.tensor([weights[0] * bce + weights[1] * dice + weights[2] * l1, bce, dice, l1], dtype=real)
    gx, gy = (
        g.view(t.shape).to(t.dtype) for g, t in zip(gradients, (probability_logits, threshold_logits), strict=True)
    )
    return parts, gx, gy


def _sums(
    x: Tensor, y: Tensor, truth: Tensor, mask: Tensor, border: Tensor, border_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the seven sums that a block adds to the loss, and its negatives' losses (-1 where a pixel is none)."""
    positive = truth * mask
    pixel = softplus(x)
    hard = torch.where(mask > positive, pixel * (mask - positive), -1.0)
    probability = x.sigmoid()
    threshold = y.sigmoid()
    off = torch.dot((threshold - border).abs_(), border_mask)
    binary = probability.sub_(threshold).mul_(K).sigmoid_()
    on_text = torch.dot(pixel - x, positive)
    sums = (positive.sum(), (mask - positive).sum(), on_text, torch.dot(binary, positive), torch.dot(binary, mask), off)
    return torch.stack((*sums, border_mask.sum())).double(), hard


def _hardest(hard: Tensor, k: int) -> tuple[float, float, float]:
    """Return the k-th largest loss, the share of each loss equal to it that counts, and the sum of the k largest."""
    if k == 0:
        return float("inf"), 0.0, 0.0
    edge = _kth(hard, k)
    above = hard > edge
    count = int(above.sum())
    ties = int((hard == edge).sum())
    return edge, (k - count) / max(ties, 1), float((hard * above).sum(dtype=torch.float64)) + (k - count) * edge


def _kth(values: Tensor, k: int) -> float:
    array = values.numpy().copy()
    array.partition(array.size - k)  # introselect: linear, where a sort or topk is not
    return float(array[array.size - k])


def _gradient(
    x: Tensor,
    y: Tensor,
    maps: Sequence[Tensor],
    hard: Tensor,
    edge: float,
    share: float,
    scale: tuple[float, float, float, float, float],
    out: list[Tensor],
) -> None:
    """Write the gradient of the total by both logits for one block into `out`."""
    truth, mask, border, border_mask = maps
    by_bce, by_dice, area, inside, by_l1 = scale
    positive = truth * mask
    probability, threshold = x.sigmoid(), y.sigmoid()
    binary = torch.sub(probability, threshold).mul_(K).sigmoid_()
    step = binary.mul_(1 - binary).mul_(K * by_dice)
    step.mul_(mask * inside - positive * area)  # d dice / d (P - T)
    chosen = positive.add_(hard > edge)
    if share:
        chosen.add_(hard == edge, alpha=share)
    slope = torch.addcmul(probability, probability, probability, value=-1)
    torch.mul(step, slope, out=out[0]).addcmul_(probability.sub_(truth), chosen, value=by_bce)
    slope = torch.addcmul(threshold, threshold, threshold, value=-1)
    sign = threshold.sub_(border).sign_().mul_(border_mask).mul_(by_l1)
    torch.mul(sign.sub_(step), slope, out=out[1])


@_db_loss_cpu.register_fake
def _(
    probability_logits: Tensor,
    threshold_logits: Tensor,
    shrink_map: Tensor,
    shrink_mask: Tensor,
    threshold_map: Tensor,
    threshold_mask: Tensor,
    weights: list[float],
    ratio: float,
) -> tuple[Tensor, Tensor, Tensor]:
    real = torch.float64 if probability_logits.dtype == torch.float64 else torch.float32
    parts = probability_logits.new_empty(4, dtype=real)
    return (
        parts,
        probability_logits.new_empty(probability_logits.shape),
        threshold_logits.new_empty(threshold_logits.shape),
    )


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # signature of torch.library
    ctx.save_for_backward(output[1], output[2])


def _backward(ctx, parts: Tensor, _x: Tensor, _y: Tensor):  # type: ignore[no-untyped-def]
    gx, gy = ctx.saved_tensors  # only the total carries a gradient; the terms are for reading
    return gx * parts[0].to(gx.dtype), gy * parts[0].to(gy.dtype), None, None, None, None, None, None


_db_loss_cpu.register_autograd(_backward, setup_context=_keep)
