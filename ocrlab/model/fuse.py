"""The inference form of a detector: the same function in fewer, larger steps, its weights stored as they are used.

The layers that end in the probability map are traced to a graph (torch.fx); then
- BatchNorm is folded into the convolution before it, the division by the standard deviation into the first one,
- a sum and a ReLU after a convolution become its own last step, so that the map is not read and written once more,
- weights are put into their final type and into oneDNN's own layout once, not in every call.
The threshold branch is not part of it.

Shapes: B batch, C channels, H W input pixels.
"""

from __future__ import annotations

import copy
import operator
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ocrlab.errors import ShapeError
from ocrlab.model.detector import Detector, check

SUMS = (operator.add, operator.iadd, torch.add)


class Fused(nn.Module):
    """What `fused` returns; `probability` is its only way in."""

    mean: Tensor

    def __init__(self, layers: nn.Module, mean: Tensor, kind: torch.dtype) -> None:
        super().__init__()
        self.layers, self.kind = layers, kind
        wide = torch.float64 if kind == torch.float64 else torch.float32
        self.register_buffer("mean", mean.flatten().to(wide), persistent=False)

    def probability(self, images: Tensor) -> Tensor:
        """Return the probability map (B, 1, H, W) float32 in 0..1 of RGB images (B, 3, H, W), uint8 or float in 0..255.

        Raises ShapeError for a size or type that cannot be.
        """
        check(images, letterbox=False)
        pixels = images.permute(0, 2, 3, 1).flatten(2)  # (B, H, 3 W): long rows, which are quick to go through
        centred = (pixels - self.mean.repeat(images.shape[3])).to(self.kind)
        x = centred.unflatten(2, (-1, 3)).permute(0, 3, 1, 2)  # (B, 3, H, W), channels last
        return cast(Tensor, self.layers(x)).float().sigmoid()


class Layers(nn.Module):
    """The part of a detector that is traced: centred pixels (B, 3, H, W) to logits (B, 1, H, W)."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.encoder, self.decoder, self.branch = detector.encoder, detector.decoder, detector.head.probability

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.branch(self.decoder(self.encoder(x))))


class Convolution(nn.Module):
    """A convolution with what follows it: the sum with another map and the ReLU, where the network has them."""

    def __init__(self, plain: nn.Conv2d) -> None:
        super().__init__()
        self.plain = plain
        self.relu = False
        self.packed: Tensor | None = None

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        plain = self.plain
        if self.packed is None:
            return _added(plain(x), other, self.relu)
        rest = (self.packed, plain.bias, plain.padding, plain.stride, plain.dilation, plain.groups)
        alone = other is None or x.shape[2:] == (1, 1)  # torch 2.8's oneDNN knows no sum of maps of a single pixel
        if alone:
            last = "relu" if self.relu and other is None else "none"
            y = cast(Tensor, torch.ops.mkldnn._convolution_pointwise(x, *rest, last, [], ""))
            return y if other is None else _added(y, other, self.relu)
        binary = torch.ops.mkldnn._convolution_pointwise.binary
        return cast(Tensor, binary(x, other, *rest, "add", None, "relu" if self.relu else None, [], None))

    def pack(self) -> None:
        """Keep the weights in the layout that oneDNN wants; it takes this shape of input as the usual one."""
        plain = self.plain
        usual = [1, plain.in_channels, 160, 160]
        geometry = (plain.padding, plain.stride, plain.dilation, plain.groups)
        self.packed = torch.ops.mkldnn._reorder_convolution_weight(plain.weight.detach(), *geometry, usual)
        plain.weight = nn.Parameter(plain.weight.new_empty(0), requires_grad=False)  # nobody reads it any more


def _added(y: Tensor, other: Tensor | None, relu: bool) -> Tensor:
    y = y if other is None else y.add_(other)
    return y.relu_() if relu else y


def fused(detector: Detector, *, bf16: bool) -> Fused:
    """Return the inference form of a detector, with its weights as they are now, in bf16 or float32.

    Its probability map is that of the detector in eval mode, but for rounding: float32 is as far from float64 as it was
    before, within 1e-5 on a trained detector. Raises ShapeError for weights that are not finite: a ReLU inside a
    convolution turns NaN into 0, so that nobody would see it in the map.
    """
    return build(detector, torch.bfloat16 if bf16 else torch.float32)


def build(detector: Detector, kind: torch.dtype) -> Fused:
    """Return the inference form of a detector that computes in `kind`; see `fused`."""
    check_finite(detector)
    whole = joined(detector, kind)
    if detector.mean.device.type == "cpu" and packable(kind):
        for module in whole.modules():
            if isinstance(module, Convolution):
                module.pack()
    return whole


def joined(detector: Detector, kind: torch.dtype) -> Fused:
    """Return the inference form of a detector with weights that are not packed: all that fake tensors can do."""
    layers = traced(Layers(copy.deepcopy(detector).requires_grad_(False).eval()))
    fold(layers, 1 / detector.std.double(), kind)
    wrap_convolutions(layers)
    join_sums(layers)
    join_relus(layers)
    layers.graph.lint()
    layers.recompile()
    layers.delete_all_unused_submodules()
    layers.graph.owning_module = None  # a cycle: without it old weights go at once, not when Python looks for cycles
    layers.to(kind).to(memory_format=torch.channels_last).requires_grad_(False)
    return Fused(layers, detector.mean, kind)


def traced(layers: Layers) -> fx.GraphModule:
    """Return the graph of some layers; the tracer, which is left behind in a cycle, keeps none of their weights."""
    tracer = fx.Tracer()
    graph = tracer.trace(layers)
    tracer.root, tracer.submodule_paths = nn.Module(), None
    return fx.GraphModule(layers, graph)


def check_finite(detector: Detector) -> None:
    """Raise ShapeError if a weight or a statistic is NaN or infinite, naming the first tensor that holds one."""
    for name, value in detector.state_dict().items():
        if not bool(value.isfinite().all()):
            raise ShapeError(
                "The detector holds NaN or infinite weights",
                got=f"{int((~value.isfinite()).sum())} of {value.numel()} in {name}",
                need="finite weights",
                do="Look at the training's loss curve; the checkpoint is broken",
            )


def packable(kind: torch.dtype) -> bool:
    """Return whether this torch and this processor have oneDNN's convolutions for a type."""
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    known = kind == torch.float32 or (kind == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return there and known


def module_of(layers: fx.GraphModule, node: Any) -> nn.Module | None:
    """Return the module that a node of the graph calls, if it calls one."""
    return layers.get_submodule(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None


def fold(layers: fx.GraphModule, scale: Tensor | None, kind: torch.dtype) -> None:
    """Fold each BatchNorm into the (transposed) convolution before it, and `scale` into the first convolution.

    Folded weights are rounded once, from float64; one convolution at a time, as all of them would take four times the
    memory of the weights.
    """
    for node in list(layers.graph.nodes):
        convolution = module_of(layers, node)
        if not isinstance(convolution, nn.Conv2d | nn.ConvTranspose2d):
            continue
        after = next(iter(node.users)) if len(node.users) == 1 else None
        norm = module_of(layers, after)
        if scale is None and not isinstance(norm, nn.BatchNorm2d):
            continue
        exact = convolution.double()
        if scale is not None:
            exact.weight.data *= scale
            scale = None
        if isinstance(norm, nn.BatchNorm2d):
            turned = isinstance(exact, nn.ConvTranspose2d)
            exact = fuse_conv_bn_eval(exact, norm.double(), transpose=turned)
            replace(cast(fx.Node, after), node)
        layers.set_submodule(node.target, exact.to(kind))


def wrap_convolutions(layers: fx.GraphModule) -> None:
    """Put a Convolution in the place of each plain one."""
    for node in layers.graph.nodes:
        plain = module_of(layers, node)
        if isinstance(plain, nn.Conv2d):
            layers.set_submodule(node.target, Convolution(plain))


def join_sums(layers: fx.GraphModule) -> None:
    """Let a convolution add the other map itself, where nobody else wants its result."""
    for node in list(layers.graph.nodes):
        if node.target not in SUMS:
            continue
        mine, other = node.args
        if not alone(layers, mine):
            mine, other = other, mine
        if alone(layers, mine):
            with layers.graph.inserting_before(node):
                joined = layers.graph.call_module(mine.target, (*mine.args, other))
            replace(node, joined)
            layers.graph.erase_node(mine)


def join_relus(layers: fx.GraphModule) -> None:
    """Let a convolution do the ReLU that follows it."""
    for node in list(layers.graph.nodes):
        if isinstance(module_of(layers, node), nn.ReLU) and alone(layers, node.args[0]):
            cast(Convolution, module_of(layers, node.args[0])).relu = True
            replace(node, node.args[0])


def alone(layers: fx.GraphModule, node: Any) -> bool:
    """Return whether a node is a Convolution whose result has one reader."""
    return isinstance(module_of(layers, node), Convolution) and len(node.users) == 1


def replace(old: fx.Node, new: fx.Node) -> None:
    """Take a node out of the graph; `new` stands for it."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
