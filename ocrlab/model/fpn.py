"""Feature pyramid decoder (Lin et al. 2017) as DBNet uses it: top-down sum, then all levels side by side.

Shapes: B batch, C channels of the decoder (`width`), h w pixels at stride 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate


def conv_block(inputs: int, outputs: int, kernel: int = 3) -> nn.Sequential:
    """Return convolution + BatchNorm + ReLU that keeps the size."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class FPN(nn.Module):
    """Four encoder levels -> one feature map (B, width / 2, h, w) at stride 4; the last block is `fusion`."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.laterals = nn.ModuleList(nn.Conv2d(c, width, 1) for c in channels)
        self.outputs = nn.ModuleList(nn.Conv2d(width, width // 4, 3, padding=1) for _ in channels)
        self.fusion = conv_block(width, width // 2)
        self.out_channels = width // 2

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        levels = [lateral(f) for lateral, f in zip(self.laterals, features, strict=True)]  # 4 x (B, C, h/s, w/s)
        for i in (2, 1, 0):
            levels[i] = levels[i] + interpolate(levels[i + 1], scale_factor=2.0, mode="nearest")
        outputs = [output(level) for output, level in zip(self.outputs, levels, strict=True)]
        outputs[1:] = [
            interpolate(x, scale_factor=float(2**i), mode="nearest") for i, x in enumerate(outputs[1:], start=1)
        ]
        return self.fusion(torch.cat(outputs, dim=1))  # (B, C/2, h, w)
