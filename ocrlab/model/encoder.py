"""Encoders: torchvision backbones without their classifier, giving features at strides 4, 8, 16 and 32.

`resnet18_slim` is ResNet-18 with half the channels: a quarter of the weights, and more steps in the same minutes. Its
network is here, as the import of torchvision brings torch's compiler along and takes as long as that of torch.

Shapes: B batch, C channels, H W input pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ocrlab.errors import WeightsError
from ocrlab.model.memory_saving import recomputed

if TYPE_CHECKING:
    import torchvision.models as zoo

CHANNELS = {
    "resnet18_slim": (32, 64, 128, 256),
    "resnet18": (64, 128, 256, 512),
    "resnet34": (64, 128, 256, 512),
    "resnet50": (256, 512, 1024, 2048),
    "mobilenet_v3_large": (24, 40, 112, 960),
}
STRIDES = (4, 8, 16, 32)


class Encoder(nn.Module):
    """Four stages, whose outputs are the features; stage names are torchvision's.

    With `checkpoint_activations` only what the stages hand on is kept for the backward pass.
    """

    checkpoint_activations = False
    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module
    layer4: nn.Module

    def run_stage(self, stage: nn.Module, x: Tensor) -> Tensor:
        """Return `stage(x)`, computed again in the backward pass where activations are checkpointed."""
        return recomputed(stage, x) if self.checkpoint_activations else cast(Tensor, stage(x))

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = self.run_stage(layer, x)  # (B, C, H/s, W/s) for s in 4, 8, 16, 32
            features.append(x)
        return features


class ResNetEncoder(Encoder):
    """ResNet (He et al. 2016) up to `layer4`."""

    def __init__(self, net: zoo.ResNet | ResNet18) -> None:
        super().__init__()
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
        self.layer1, self.layer2, self.layer3, self.layer4 = net.layer1, net.layer2, net.layer3, net.layer4

    def forward(self, x: Tensor) -> list[Tensor]:
        return super().forward(self.run_stage(self.stem, x))  # the stem gives (B, 64, H/4, W/4)


class MobileNetEncoder(Encoder):
    """MobileNetV3-large (Howard et al. 2019), cut where the stride doubles."""

    def __init__(self, net: zoo.MobileNetV3) -> None:
        super().__init__()
        blocks = list(net.features)
        self.layer1 = nn.Sequential(*blocks[:4])
        self.layer2 = nn.Sequential(*blocks[4:7])
        self.layer3 = nn.Sequential(*blocks[7:13])
        self.layer4 = nn.Sequential(*blocks[13:])


def build(name: str, *, weights: str | None = None) -> nn.Module:
    """Return the encoder `name`, from random numbers or (`weights="imagenet"`) from torchvision's ImageNet weights.

    Raises WeightsError when the weights cannot be fetched.
    """
    if name == "resnet18_slim":
        if weights is not None:
            do = "Train from random weights with weights=none, or take encoder=resnet18"
            raise WeightsError("There are no ImageNet weights for resnet18_slim", got=f"weights={weights}", do=do)
        return ResNetEncoder(slim(CHANNELS[name]))
    import torchvision.models as zoo

    try:
        net = getattr(zoo, name)(weights="DEFAULT" if weights == "imagenet" else None)
    except Exception as error:  # urllib, hub and hash errors share no base class
        if weights is None:
            raise
        raise WeightsError(
            f"The ImageNet weights of {name} could not be fetched",
            got=f"{type(error).__name__}: {error}",
            need=f"network access, or the file already in {torch.hub.get_dir()}/checkpoints",
            do="Train from random weights with weights=null, or copy the file there from a machine with a network",
        ) from error
    return MobileNetEncoder(net) if name.startswith("mobilenet") else ResNetEncoder(net)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut; names and numbers are torchvision's."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        changes = stride != 1 or inputs != outputs
        shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs)) if shortcut else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return cast(Tensor, self.relu(y))


class ResNet18(nn.Module):
    """ResNet-18 without its classifier, with any number of channels in its four stages."""

    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module
    layer4: nn.Module

    def __init__(self, channels: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = channels[0]
        for i, count in enumerate(channels, start=1):
            first = BasicBlock(inputs, count, 1 if i == 1 else 2)
            setattr(self, f"layer{i}", nn.Sequential(first, BasicBlock(count, count, 1)))
            inputs = count
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def slim(channels: tuple[int, int, int, int]) -> ResNet18:
    """Return ResNet-18 with other numbers of channels, from the random numbers that torchvision's would be made of."""
    ResNet18(CHANNELS["resnet18"])
    nn.Linear(512, 1000)
    return ResNet18(channels)
