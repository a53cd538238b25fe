"""The decoders: the encoder's stages in, one map of features out; both end in the conv `fusion`.

Shapes: B batch, C channels, h w pixels of a stage.
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


class UNet(nn.Module):
    """Four encoder levels -> one feature map (B, width / 2, h, w) at stride 4; the last block is `fusion`."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        sizes = (width // 2, width, width * 2, width * 4)  # channels at stride 4, 8, 16, 32
        self.centre = conv_block(channels[3], sizes[3])
        self.ups = nn.ModuleList(
            nn.Sequential(conv_block(sizes[i + 1] + channels[i], sizes[i]), conv_block(sizes[i], sizes[i]))
            for i in (2, 1, 0)
        )
        self.fusion = conv_block(sizes[0], sizes[0])
        self.out_channels = sizes[0]

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        x = self.centre(features[3])  # (B, 4 width, h/8, w/8)
        for up, skip in zip(self.ups, reversed(features[:3]), strict=True):
            x = interpolate(x, scale_factor=2.0, mode="nearest")
            x = up(torch.cat((x, skip), dim=1))
        return self.fusion(x)  # (B, width / 2, h, w)
