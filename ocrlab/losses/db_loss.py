"""The DB loss (Liao et al. 2020): balanced BCE with hard negatives, dice on the approximate binary map, masked L1.

Two paths, equal in value and gradient:
- the device path is plain tensor arithmetic. It never reads a value back to the host (no `.item()`, no `.cpu()`, no
  `nonzero`), so it can be captured in a CUDA graph and compiled without a break. OHEM's top-k with a k that only the
  device knows is a selection, not a sort: the k-th largest loss is found bit by bit, with no data-dependent shape.
- on the CPU one registered operator computes loss and gradient together, in compiled loops. The device path does it
  for float64.

Shapes: B batch, H W pixels. All maps are (B, 1, H, W).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ocrlab.errors import OcrlabError, ShapeError

K = 50.0  # steepness of the approximate step function
EPS = 1e-6
NO_TEXT_SHARE = 1 / 64  # share of the hardest negatives that teach when a batch holds no text at all


class TargetMaps(NamedTuple):
    """What the maps should be, each (B, 1, H, W); the masks are 1 where a pixel counts, else 0."""

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
    path = on_cpu if device == "cpu" else on_device
    with torch.autocast(device, enabled=False):  # sums over a million pixels want float32
        return path(probability_logits, threshold_logits, targets, weights, negative_ratio)


def check(probability_logits: Tensor, threshold_logits: Tensor, targets: TargetMaps) -> None:
    """Raise ShapeError with every shape, dtype and device unless all maps fit together."""
    named = {"probability_logits": probability_logits, "threshold_logits": threshold_logits, **targets._asdict()}
    first = probability_logits
    fits = first.ndim == 4 and first.shape[1] == 1
    fits = fits and first.is_floating_point() and threshold_logits.is_floating_point()
    if not fits or any(t.shape != first.shape or t.device != first.device for t in named.values()):
        got = "; ".join(f"{name} {tuple(t.shape)} {t.dtype} on {t.device}" for name, t in named.items())
        need = "six maps (B, 1, H, W) on one device, the logits of a float type"
        raise ShapeError("The maps of the DB loss do not fit together", got=got, need=need)


def kth_largest(values: Tensor, k: Tensor) -> Tensor:
    """Return the k-th largest of non-negative floats as a 0-d tensor, without a sort and without reading k on the host.

    Non-negative IEEE 754 floats order like their bits, so the answer is built from the highest bit down: a bit stays
    set if at least k values reach the candidate. k is a 0-d integer tensor; k = 0 gives NaN, which nothing reaches.
    """
    whole, top = (torch.int64, 62) if values.dtype == torch.float64 else (torch.int32, 30)
    bits = values.detach().view(whole)
    prefix = torch.zeros((), dtype=whole, device=values.device)
    for bit in range(top, -1, -1):
        candidate = prefix | (1 << bit)
        prefix = torch.where((bits >= candidate).sum() >= k, candidate, prefix)
    return prefix.view(values.dtype)


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
        chosen = (above.to(real) + ties * share).view_as(x) * negative  # which may be a fraction, of soft maps
    bce = (pixel * (positive + chosen)).sum() / (positives + k + EPS)
    probability, threshold = x.sigmoid(), y.sigmoid()
    binary = torch.sigmoid(K * (probability - threshold))
    dice = 1 - 2 * (binary * positive).sum() / ((binary * mask).sum() + positives + EPS)
    l1 = ((threshold - border).abs() * border_mask).sum() / border_mask.sum().clamp_min(EPS)
    total = weights[0] * bce + weights[1] * dice + weights[2] * l1
    return LossParts(total, bce.detach(), dice.detach(), l1.detach())


def on_cpu(
    probability_logits: Tensor,
    threshold_logits: Tensor,
    targets: TargetMaps,
    weights: tuple[float, float, float],
    ratio: float,
) -> LossParts:
    """Return the DB loss by compiled loops in float32, for float64 by `on_device`."""
    if torch.float64 in (probability_logits.dtype, threshold_logits.dtype):
        return on_device(probability_logits, threshold_logits, targets, weights, ratio)
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
    from ocrlab.losses import db_loss_numba as kernels  # compiled now, which takes longer than all other imports

    tensors = (probability_logits, threshold_logits, shrink_map, shrink_mask, threshold_map, threshold_mask)
    maps = [t.detach().to(torch.float32).contiguous().view(-1).numpy() for t in tensors]
    settings = torch.tensor([*weights, ratio, NO_TEXT_SHARE], dtype=torch.float64).numpy()
    hard, gx, gy = (torch.empty(probability_logits.shape, dtype=torch.float32) for _ in range(3))
    parts = torch.empty(4, dtype=torch.float64)
    arrays = [*maps, settings, *(t.view(-1).numpy() for t in (hard, gx, gy)), parts.numpy()]
    kernels.db_loss(*arrays)
    return parts.float(), gx.to(probability_logits.dtype), gy.to(threshold_logits.dtype)


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
    return (
        probability_logits.new_empty(4, dtype=torch.float32),
        probability_logits.new_empty(probability_logits.shape),
        threshold_logits.new_empty(threshold_logits.shape),
    )


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # signature of torch.library
    ctx.save_for_backward(output[1], output[2])


def _backward(ctx, parts: Tensor, _x: Tensor, _y: Tensor):  # type: ignore[no-untyped-def]
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # else a penalty on gradients would teach nothing
        raise OcrlabError(
            "The DB loss in compiled loops has no second derivative",
            got="backward(create_graph=True) on the CPU",
            need="create_graph=False",
            do="For second derivatives give it float64 logits, or call losses.on_device",
        )
    gx, gy = (t.detach() for t in ctx.saved_tensors)  # only the total carries a gradient; the terms are for reading
    factor = parts[0]
    if torch.compiler.is_compiling() or float(factor) != 1:  # it is 1 unless somebody scales the loss
        gx, gy = gx * factor.to(gx.dtype), gy * factor.to(gy.dtype)
    return gx, gy, None, None, None, None, None, None


_db_loss_cpu.register_autograd(_backward, setup_context=_keep)
