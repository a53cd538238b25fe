"""A loss compared with the DB loss in float64, by plain tensor arithmetic (Liao et al. 2020, equations 3 to 7).

Shapes: B batch, H W pixels; all maps are (B, 1, H, W).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocrlab.losses.db_loss import TargetMaps, db_loss
from ocrlab.records import Check

VALUE, GRADIENT = 1e-5, 1e-4  # relative; float32 against float64 over a million pixels

Map = NDArray[np.float64]
Loss = Callable[..., Any]  # as losses.db_loss
Weights = tuple[float, float, float]


def value_and_gradients(loss: Loss, x: Tensor, y: Tensor, maps: TargetMaps, **named: Any) -> tuple[float, Map, Map]:
    """Return a loss and its gradient by both logits in float64; zeros where there is none."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    total = loss(x, y, maps, **named).total
    if total.requires_grad:
        total.backward()
    gx, gy = (np.zeros(v.shape) if v.grad is None else v.grad.cpu().double().numpy() for v in (x, y))
    return float(total.detach()), gx, gy


def compare(loss: Loss, maps: TargetMaps, weights: Weights, ratio: float) -> list[Check]:
    """Judge value and gradient of a loss against the reference: on these maps, without any text, and all ignored."""
    cases = {"text": maps, "no text": blank(maps), "all ignored": ignored(maps)}
    apart: dict[str, dict[str, float]] = {"value": {}, "gradient": {}}
    for number, (name, case_maps) in enumerate(cases.items()):
        rng = np.random.default_rng(number)
        x, y = (torch.from_numpy(rng.normal(0, 2, maps.shrink_map.shape).astype(np.float32)) for _ in range(2))
        named: dict[str, Any] = {"maps": case_maps, "weights": weights, "negative_ratio": ratio}
        total, *gradients = value_and_gradients(loss, x, y, **named)
        want, *wanted = value_and_gradients(db_loss, x.double(), y.double(), **named)
        apart["value"][name] = _apart(np.array(total), np.array(want))
        apart["gradient"][name] = max(map(_apart, gradients, wanted))
    checks = []
    for kind, limit in (("value", VALUE), ("gradient", GRADIENT)):
        name = max(apart[kind], key=lambda case: apart[kind][case])
        result = f"{apart[kind][name]:.1e} apart from the float64 reference (worst: {name})"
        do = "Compare the order of the maps, the masks and the weights with ocrlab/losses"
        checks.append(make_check(f"loss: {kind}", apart[kind][name] <= limit, result, f"{limit:.0e} or less", do))
    return checks


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
