"""Somebody's project: his data set of scans with dict or tuple batches, and his network; no line of ocrlab in it.

Shapes: B batch, C channels, H W pixels.
"""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from flight_faults import BLANK, Plan, sample_name
from flight_truth import Truth
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.data import Dataset, get_worker_info

SIZE = 64


class Scans(Dataset[dict[str, Any]]):
    """Pages with dark lines and their mask, changed at random by three generators, as real projects do."""

    def __init__(self, plan: Plan, truth: Truth) -> None:
        self.plan, self.truth = plan, truth

    def __len__(self) -> int:
        return self.plan.pages

    def __getitem__(self, index: int) -> dict[str, Any]:
        plan, info = self.plan, get_worker_info()
        slot = 1 + info.id if info else 1
        name = sample_name(plan, index)
        self.truth.now(slot, f"{index} {name} begun")
        fault = plan.fault if index == plan.page else None
        dice = np.random.default_rng(index)
        height = SIZE if fault != "shape" or plan.phase != "forward" else (60, 62)[1 - plan.seed % 2]
        image, mask = np.full((3, height, SIZE), 0.9, np.float32), np.zeros((height, SIZE), np.int64)
        for _ in range(3):
            top, left = int(dice.integers(4, height - 12)), int(dice.integers(4, 24))
            image[:, top : top + 5, left : left + 36] = dice.random() * 0.3
            mask[top : top + 5, left : left + 36] = 1
        if random.random() < 0.5:
            image, mask = image[:, :, ::-1].copy(), mask[:, ::-1].copy()
        image *= 0.8 + 0.2 * np.random.rand()  # noqa: NPY002  # as others write it
        pixels = torch.from_numpy(image) + 0.02 * torch.randn(image.shape)
        broken = damaged(fault, plan, pixels, torch.from_numpy(mask))
        if plan.pause:
            time.sleep(plan.pause * (0.5 + dice.random()))
        self.truth.now(slot, f"{index} {name} done")
        source = 900 if fault == "index" else index % 8
        return {"pixels": broken[0], "mask": broken[1], "source": source, "file_name": name}


def damaged(fault: str | None, plan: Plan, pixels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the drawn page as it lies on disk: blank, with a NaN, or with 255 in its mask."""
    row, column = plan.seed % 50, plan.seed * 7 % 50
    if fault == "target":
        mask[row, column] = 255
    elif fault == "nan_page":
        pixels[1, row, column] = float("nan")
    elif fault in BLANK or (fault, plan.phase) == ("shape", "backward"):
        pixels, mask = torch.full_like(pixels, 0.9), torch.zeros_like(mask)
    return pixels, mask


class Down(nn.Module):
    """Halves the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )
        self.same = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return x + self.same(x)


class Merge(nn.Module):
    """Puts a coarse level beside a fine one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(inputs, outputs, 3, padding=1)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        return self.mix(torch.cat((interpolate(coarse, scale_factor=2.0), fine), 1)).relu()


class Pool(nn.Module):
    """Attention over the pixels that hold something; the others get -inf, which is healthy."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.score = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        score = self.score(x).flatten(2)  # (B, 1, h w)
        hidden = torch.arange(score.shape[-1]) % 3 == 0
        weight = score.masked_fill(hidden, float("-inf")).softmax(-1)
        return (x.flatten(2) * weight).sum(-1)  # (B, C)


class Net(nn.Module):
    """A small U-Net with an embedding of the scanner: images (B, 3, H, W), source (B,) -> logits (B, 2, H, W)."""

    clock: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU())
        self.stages = nn.ModuleList((Down(12, 20), Down(20, 32)))
        self.source = nn.Embedding(8, 32)
        self.pool = Pool(32)
        self.merge = nn.ModuleList((Merge(24 + 12, 16), Merge(32 + 20, 24)))
        self.drop = nn.Dropout2d(0.2)
        self.mask = nn.Conv2d(16, 2, 1)
        self.register_buffer("clock", torch.zeros((), dtype=torch.long))

    def forward(self, pixels: Tensor, source: Tensor) -> Tensor:
        if self.training:
            self.clock += 1
        fine = self.stem((pixels - 0.5) / 0.25)
        middle = self.stages[0](fine)
        coarse = self.stages[1](middle)
        coarse = coarse + (self.source(source) + self.pool(coarse))[:, :, None, None]
        x = self.merge[0](self.merge[1](coarse, middle), fine)
        logits: Tensor = self.mask(self.drop(x))
        return interpolate(logits, size=pixels.shape[-2:], mode="bilinear", align_corners=False)
