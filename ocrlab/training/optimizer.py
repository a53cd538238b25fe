"""The optimizer of a training and its learning rate; apart from Lightning, which takes seconds to load."""

from __future__ import annotations

import math

import torch
from torch import nn

from ocrlab.config.schema import Optim


def adamw(model: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov and Hutter 2019) for all that trains of a model; vectors, as biases, are not decayed."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim > 1]
    vectors = [p for p in trained if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": optim.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=optim.lr, fused=True)


def shorten_warmup(warmup: int, steps: int) -> int:
    """Return how many steps a run warms up for: a short one for a tenth of it at the most."""
    return min(warmup, max(1, steps // 10))


def learning_rate(step: int, warmup: int, steps: int) -> float:
    """Return the share of the learning rate at a step: linear warm-up, then cosine (Loshchilov and Hutter 2017)."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))
