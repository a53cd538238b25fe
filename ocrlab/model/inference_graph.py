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

from ocrlab.errors import ShapeError
from ocrlab.model.dbnet import Detector, check

SUMS = (operator.add, operator.iadd, torch.add)
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


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

    def pack(self, weight: Tensor) -> None:
        """Keep a copy of `weight` in the layout that oneDNN wants; it takes this shape of input as the usual one."""
        plain = self.plain
        input_size = [1, plain.in_channels, 160, 160]
        geometry = (plain.padding, plain.stride, plain.dilation, plain.groups)
        self.packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *geometry, input_size)
        plain.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)  # nobody reads it any more


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
    for name, value in detector.state_dict().items():
        if not bool(value.isfinite().all()):
            got = f"{int((~value.isfinite()).sum())} of {value.numel()} in {name}"
            do = "Look at the training's loss curve; a checkpoint that holds them is broken"
            raise ShapeError("The detector holds NaN or infinite weights", got=got, need="finite weights", do=do)
    return joined(detector, kind, pack=detector.mean.device.type == "cpu" and packable(kind))


def joined(detector: Detector, kind: torch.dtype, *, pack: bool = False) -> Fused:
    """Return the inference form of a detector; without `pack` it is all that fake tensors can do."""
    layers = traced(Layers(reader(detector)))
    norms = take_norms(layers)
    for node in layers.graph.nodes:
        plain = module_of(layers, node)
        if isinstance(plain, nn.Conv2d):
            layers.set_submodule(node.target, Convolution(plain))
    join_sums(layers)
    for node in list(layers.graph.nodes):  # a convolution does the ReLU that follows it
        if isinstance(module_of(layers, node), nn.ReLU) and alone(layers, node.args[0]):
            cast(Convolution, module_of(layers, node.args[0])).relu = True
            replace(node, node.args[0])
    layers.graph.lint()
    layers.recompile()
    layers.delete_all_unused_submodules()
    layers.graph.owning_module = None  # a cycle: without it old weights go at once, not when Python looks for cycles
    fold(layers, norms, 1 / detector.std.double(), kind, pack=pack)
    layers.to(kind).to(memory_format=torch.channels_last).requires_grad_(False)
    return Fused(layers, detector.mean, kind)


def reader(detector: Detector) -> Detector:
    """Return a copy of a detector in eval mode that reads the convolutions' weights where they are, and owns the rest.

    All weights copied, and folded in float64 among the copies, left a heap of three times their size.
    """
    weights = [module.weight for module in detector.modules() if isinstance(module, CONVOLUTIONS)]
    memo: dict[int, Any] = {id(weight): nn.Parameter(weight.detach(), requires_grad=False) for weight in weights}
    return copy.deepcopy(detector, memo).requires_grad_(False).eval()


def traced(layers: Layers) -> fx.GraphModule:
    """Return the graph of some layers; the tracer, which stays in a reference cycle, keeps none of their weights."""
    tracer = fx.Tracer()
    graph = tracer.trace(layers)
    tracer.root, tracer.submodule_paths = nn.Module(), None
    return fx.GraphModule(layers, graph)


def packable(kind: torch.dtype) -> bool:
    """Return whether this torch and this processor have oneDNN's convolutions for a type."""
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    supported = kind == torch.float32 or (kind == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return there and supported


def module_of(layers: fx.GraphModule, node: Any) -> nn.Module | None:
    """Return the module that a node of the graph calls, if it calls one."""
    return layers.get_submodule(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None


def take_norms(layers: fx.GraphModule) -> dict[nn.Module | None, nn.BatchNorm2d]:
    """Take each BatchNorm out of the graph that follows a (transposed) convolution; return it by its convolution."""
    norms: dict[nn.Module | None, nn.BatchNorm2d] = {}
    for node in list(layers.graph.nodes):
        convolution = module_of(layers, node)
        after = next(iter(node.users)) if len(node.users) == 1 else None
        norm = module_of(layers, after)
        if isinstance(convolution, CONVOLUTIONS) and isinstance(norm, nn.BatchNorm2d):
            norms[convolution] = norm
            replace(cast(fx.Node, after), node)
    return norms


def fold(
    layers: fx.GraphModule,
    norms: dict[nn.Module | None, nn.BatchNorm2d],
    scale: Tensor,
    kind: torch.dtype,
    *,
    pack: bool,
) -> None:
    """Give each convolution weights of its own: those it read, its BatchNorm, and in the first one `scale`.

    They are rounded once, from float64. All pass through the same two buffers: what is freed between tensors that
    stay is a hole of the heap, and 64 bytes too small for the next tensor of its size (glibc's posix_memalign).
    """
    modules = [module_of(layers, node) for node in layers.graph.nodes]
    plains = [module.plain if isinstance(module, Convolution) else module for module in modules]
    most = max(plain.weight.numel() for plain in plains if isinstance(plain, CONVOLUTIONS))
    room = torch.empty(most, dtype=torch.float64, device=scale.device)
    last = torch.empty(most, dtype=kind, device=scale.device) if pack else None
    first = True
    for module, plain in zip(modules, plains, strict=True):
        if not isinstance(plain, CONVOLUTIONS):
            continue
        weight = plain.weight.detach()  # (out, in, H, W), or (in, out, H, W) of a transposed one
        wide = room[: weight.numel()].view(weight.shape).copy_(weight)
        bias = None if plain.bias is None else plain.bias.detach().double()
        if first:
            wide *= scale
            first = False
        if norm := norms.get(plain):
            factor = norm.weight.double() / (cast(Tensor, norm.running_var).double() + norm.eps).sqrt()
            wide *= factor.view((1, -1, 1, 1) if isinstance(plain, nn.ConvTranspose2d) else (-1, 1, 1, 1))
            shift = cast(Tensor, norm.running_mean).double()
            bias = norm.bias.double() + ((0 if bias is None else bias) - shift) * factor
        if bias is not None:
            plain.bias = nn.Parameter(bias.to(kind), requires_grad=False)
        if last is not None and isinstance(module, Convolution):
            module.pack(last[: wide.numel()].view(wide.shape).copy_(wide))
        else:
            final = torch.empty_like(wide, dtype=kind, memory_format=torch.channels_last).copy_(wide)
            plain.weight = nn.Parameter(final, requires_grad=False)


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


def alone(layers: fx.GraphModule, node: Any) -> bool:
    """Return whether a node is a Convolution whose result has one reader."""
    return isinstance(module_of(layers, node), Convolution) and len(node.users) == 1


def replace(old: fx.Node, new: fx.Node) -> None:
    """Take a node out of the graph; `new` stands for it."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
