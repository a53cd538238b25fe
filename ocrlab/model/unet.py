"""U-Net decoder (Ronneberger et al. 2015): upsample, put the encoder's level beside it, convolve twice.

Shapes: B batch, h w pixels at stride 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ocrlab.model.fpn import conv_block


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
