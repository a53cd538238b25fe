"""A training step of the detector on any device, from its own parts: forward, DB loss, backward, clipping, AdamW."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ocrlab.data import target_maps
from ocrlab.losses.db_loss import TargetMaps, db_loss
from ocrlab.model.dbnet import Detector

LINE = 28  # pixels from one line of text to the next
SLIM, FULL = ("resnet18_slim", 64), ("resnet18", 128)  # encoder, width of the decoder


def batch(count: int, side: int, device: str) -> tuple[Tensor, TargetMaps]:
    """Return pages of noise (B, 3, H, W) uint8 with the target maps of as many text lines as a receipt has."""
    rng = np.random.default_rng(0)
    images, maps = [], []
    for _ in range(count):
        images.append(torch.from_numpy(rng.integers(0, 256, (3, side, side), dtype=np.uint8)))
        lines = []
        for top in range(4, side - LINE, LINE):
            left, right = side * rng.uniform(0.02, 0.4), side * rng.uniform(0.5, 0.98)
            lines.append(np.array([[left, top], [right, top], [right, top + 20], [left, top + 20]], dtype=np.float32))
        ignored = np.zeros(len(lines), dtype=bool)
        page = target_maps.make(lines, ignored, (side, side), shrink_ratio=0.4, threshold_range=(0.3, 0.7))
        maps.append([torch.from_numpy(np.asarray(part)) for part in page.maps])
    stacked = [torch.stack(parts)[:, None].to(device) for parts in zip(*maps, strict=True)]  # each (B, 1, H, W)
    return torch.stack(images).to(device), TargetMaps(*stacked)


def training_step(
    kind: tuple[str, int],
    data: tuple[Tensor, TargetMaps],
    device: str,
    *,
    bf16: bool = False,
    channels_last: bool = False,
    compiled: bool = False,
) -> Callable[[], Tensor]:
    """Return a function that makes one step and returns its loss, which stays on the device."""
    torch.manual_seed(0)
    detector: Any = Detector(kind[0], "fpn", kind[1]).to(device).train()
    images, targets = data
    if channels_last:
        detector = detector.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(detector.parameters(), lr=1e-4, fused=device == "cuda")
    forward = torch.compile(detector) if compiled else detector

    def step() -> Tensor:
        with torch.autocast(device, torch.bfloat16) if bf16 else contextlib.nullcontext():
            maps = forward(images)
        loss: Tensor = db_loss(maps.probability_logits.float(), maps.threshold_logits.float(), targets).total
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 5.0)
        optimizer.step()
        return loss.detach()

    return step
