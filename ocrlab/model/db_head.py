"""DB head (Liao et al. 2020): probability map, threshold map and the approximate binary map between them.

Shapes: B batch, C channels, h w pixels at stride 4, H W input pixels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

K = 50.0  # steepness of the approximate step function
PRIOR = 0.12  # probability of text at a pixel before anything is learned
BACKGROUND = 0.3  # threshold map away from text
SMALL = 0.1  # standard deviation of the last weights


class Maps(NamedTuple):
    """What the head says about each pixel, as logits (B, 1, H, W); the maps in 0..1 are made when asked for."""

    probability_logits: Tensor
    threshold_logits: Tensor

    @property
    def probability(self) -> Tensor:
        """Probability that a pixel lies in the shrunk text region, (B, 1, H, W) float32."""
        return self.probability_logits.float().sigmoid()

    @property
    def threshold(self) -> Tensor:
        """Threshold at each pixel, (B, 1, H, W) float32."""
        return self.threshold_logits.float().sigmoid()

    @property
    def binary(self) -> Tensor:
        """Approximate binary map sigmoid(k (P - T)), k = 50, (B, 1, H, W) float32."""
        return torch.sigmoid(K * (self.probability - self.threshold))


def branch(channels: int) -> nn.Sequential:
    """Return the layers from stride 4 to one logit a pixel at stride 1."""
    inner = channels // 2
    return nn.Sequential(
        nn.Conv2d(channels, inner, 3, padding=1, bias=False),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(inner, inner, 2, 2, bias=False),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(inner, 1, 2, 2),
    )


class DBHead(nn.Module):
    """Two branches over the decoder's features (B, C, h, w) -> Maps (B, 1, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.probability = branch(channels)
        self.threshold = branch(channels)

    def forward(self, x: Tensor) -> Maps:
        return Maps(self.probability(x), self.threshold(x))

    def start_quiet(self) -> None:
        """Start the last layers small, and their biases where text is rare, as RetinaNet does (Lin et al. 2017).

        The probability map begins below the threshold map. Where both begin at a half and loud, the binary map is noise
        of full contrast, and for some hundred steps its dice loss drowns what the cross-entropy has to say.
        """
        for branch, prior in ((self.probability, PRIOR), (self.threshold, BACKGROUND)):
            last: Any = branch[-1]
            nn.init.normal_(last.weight, std=SMALL)
            nn.init.constant_(last.bias, math.log(prior / (1 - prior)))
