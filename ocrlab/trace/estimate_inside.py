"""What a convolution on the CPU takes inside itself, which no tensor shows: found in the source of torch, and measured.

oneDNN takes maps that lie channels-last as they are and lays out others anew. Where torch does not use it (bf16 on a
processor with AVX2 alone), each map is unfolded into columns, a copy of every pixel for each place of the kernel, and
groups are computed one by one and joined.

Source: ATen/native/ConvolutionMM2d.cpp, NaiveConvolutionTranspose2d.cpp, Convolution.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

CONVOLUTIONS = ("convolution", "convolution_backward", "convolution_overrideable")
UNFOLDED = ("Slow2d", "SlowTranspose2d")


def inside(name: str, args: Any) -> int:
    """Return the bytes that a convolution (of CONVOLUTIONS, with its arguments) takes and gives back as it runs."""
    backward = name == "convolution_backward"
    x, weight = args[1:3] if backward else args[:2]
    stride, padding, dilation, transposed, output_padding, groups = args[4:10] if backward else args[3:9]
    way = backend(x, weight, (stride, padding, dilation, transposed, output_padding, groups))
    if way not in UNFOLDED or x.ndim != 4:
        return relaid(args)
    if groups > 1:
        return 2 * bytes_of(x) if backward else bytes_of(x) * weight.shape[0] // x.shape[1] // math.prod(stride)
    return unfolded(x, weight, stride, padding, transposed=transposed, backward=backward)


def backend(x: Tensor, weight: Tensor, geometry: tuple[Any, ...]) -> str:
    """Return how torch computes a convolution here, by torch's own name (Mkldnn, Slow2d, ...); empty if unknown."""
    try:
        return str(torch._C._select_conv_backend(x, weight, None, *geometry)).rpartition(".")[2]
    except (AttributeError, RuntimeError, TypeError):
        return ""


def relaid(args: Any) -> int:
    """Return the bytes of the arguments that oneDNN copies into its own layout: none that lie channels-last."""
    tensors = [a for a in args[:3] if isinstance(a, Tensor) and a.ndim == 4]
    return sum(bytes_of(t) for t in tensors if not lies_last(t) or t.shape[1] == 1)


def unfolded(x: Tensor, weight: Tensor, stride: Any, padding: Any, *, transposed: bool, backward: bool) -> int:
    """Return the bytes of the columns of maps (B, C, H, W): of all of them at once, and of one for each thread."""
    kernel = math.prod(weight.shape[2:])
    size = x.element_size()
    threads = min(torch.get_num_threads(), x.shape[0])
    last = lies_last(x)
    if transposed:
        one = weight.shape[1] * kernel * math.prod(x.shape[2:]) * size
        return one if backward else (x.shape[0] + (0 if last else threads)) * one
    places = [
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], padding, weight.shape[2:], stride, strict=True)
    ]
    one = x.shape[1] * kernel * math.prod(places) * size
    as_it_is = kernel == 1 and math.prod(stride) == 1 and not any(padding)  # the map is its own columns
    if not backward:
        return 0 if as_it_is else x.shape[0] * one
    if last:
        return threads * one if as_it_is else x.shape[0] * one
    return (x.shape[0] + threads) * one


def lies_last(tensor: Tensor) -> bool:
    """Tell whether the channels of a map lie side by side in memory."""
    return tensor.is_contiguous(memory_format=torch.channels_last)


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
