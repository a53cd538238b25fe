"""The whole detector: pixels in, maps out. Normalisation is inside, so training and inference cannot differ.

Shapes: B batch, C channels, H W input pixels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ocrlab.errors import ShapeError
from ocrlab.model.decoders import FPN, UNet
from ocrlab.model.encoder import CHANNELS, STRIDES, build

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


DECODERS: dict[str, type[FPN] | type[UNet]] = {"fpn": FPN, "unet": UNet}
MULTIPLE = 32  # the encoder halves five times
MEAN = (123.675, 116.28, 103.53)  # of ImageNet, RGB, 0..255
STD = (58.395, 57.12, 57.375)


class Detector(nn.Module):
    """DBNet (Liao et al. 2020): encoder, decoder that ends in `fusion`, DB head.

    Takes RGB images (B, 3, H, W), uint8 or float in 0..255, H and W multiples of 32 (any size with `letterbox`).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, encoder: str = "resnet18", decoder: str = "fpn", width: int = 128, weights: str | None = None
    ) -> None:
        super().__init__()
        self.names = (encoder, decoder)
        self.width = width
        self.encoder = build(encoder, weights=weights)
        self.decoder = DECODERS[decoder](CHANNELS[encoder], width)
        self.head = DBHead(self.decoder.out_channels)
        for part in (self.decoder, self.head):
            part.apply(initialise)
        self.head.start_quiet()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor, letterbox: bool = False) -> Maps:
        """Return the maps (B, 1, H, W) of a batch of images; raises ShapeError for a size or type that cannot be."""
        check(images, letterbox)
        height, width = images.shape[-2:]
        x = (images - self.mean) / self.std
        if letterbox:
            x = pad(x, (0, -width % MULTIPLE, 0, -height % MULTIPLE))  # 0 is the mean colour
        maps = self.head(self.decoder(self.encoder(x)))
        return Maps(*(m[..., :height, :width] for m in maps)) if letterbox else maps

    def probability(self, images: Tensor) -> Tensor:
        """Return only the probability map (B, 1, H, W) float32 in 0..1, without computing the threshold branch."""
        check(images, letterbox=False)
        x = self.decoder(self.encoder((images - self.mean) / self.std))
        return self.head.probability(x).float().sigmoid()

    def shapes(self, height: int, width: int) -> list[tuple[str, tuple[int, int, int]]]:
        """Return the stage table: (module name, (C, H, W) of its output) for one image of `height` x `width` pixels."""
        check(torch.empty(1, 3, height, width, device="meta"), letterbox=False)
        stages = [
            (f"encoder.layer{i + 1}", (c, height // s, width // s))
            for i, (c, s) in enumerate(zip(CHANNELS[self.names[0]], STRIDES, strict=True))
        ]
        fused = (self.decoder.out_channels, height // 4, width // 4)
        full = (1, height, width)
        return [*stages, ("decoder.fusion", fused), ("head.probability", full), ("head.threshold", full)]


def check(images: Tensor, letterbox: bool) -> None:
    """Raise ShapeError unless `images` is a batch that the detector can take."""
    if images.ndim != 4 or images.shape[1] != 3:
        got = f"shape {tuple(images.shape)}"
        raise ShapeError("The detector takes a batch of RGB images", got=got, need="shape (B, 3, H, W)")
    if not images.dtype.is_floating_point and images.dtype != torch.uint8:
        raise ShapeError("The detector takes pixels 0..255", got=f"dtype {images.dtype}", need="uint8 or a float type")
    height, width = images.shape[-2:]
    if letterbox or (height % MULTIPLE == 0 and width % MULTIPLE == 0 and height and width):
        return
    padded = tuple(max(MULTIPLE, -(-n // MULTIPLE) * MULTIPLE) for n in (width, height))
    what = f"Image is {width} x {height}; height and width must be multiples of {MULTIPLE}"
    raise ShapeError(what, do=f"Use letterbox=True or pad to {padded[0]} x {padded[1]}")


def initialise(module: nn.Module) -> None:
    """Start convolutions at He's normal (He et al. 2015) and BatchNorm at one."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
