"""The facts of one tensor: how it lies in memory, what is in it, and where its first NaN or Inf is.

Statistics do not depend on the order of values, so that they are taken in the order of memory, of what is really
there: a channels-last or transposed tensor is not copied, and an expanded one is read once.

Shapes: n values in the order of memory; B samples, the first dimension of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 18  # values read together: as float32 they stay in a cache


@dataclass(frozen=True)
class Facts:
    """What is known of a tensor without reading its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    dtype: str
    device: str
    memory_format: str
    bytes: int  # of the values that are really there


@dataclass(frozen=True)
class Figures:
    """What is in a tensor: min, max, mean and std (of the whole population) over finite values, and three counts."""

    min: float
    max: float
    mean: float
    std: float
    zeros: int
    nan: int
    inf: int
    count: int

    @property
    def bad(self) -> int:
        """How many values are NaN or Inf."""
        return self.nan + self.inf


@dataclass(frozen=True)
class FirstBad:
    """The first value that is NaN or Inf: its index, its text, all counts, and those of each sample (dimension 0)."""

    index: tuple[int, ...]
    value: str
    nan: int
    inf: int
    samples: dict[int, int]


def facts(tensor: Tensor) -> Facts:
    """Return how a tensor lies in memory; reads no value."""
    strided = tensor.layout == torch.strided and not tensor.is_nested
    shape = () if tensor.is_nested else tuple(tensor.shape)
    stride = tuple(tensor.stride()) if strided else None
    there = math.prod(n for n, s in zip(shape, stride or shape, strict=True) if s) if shape else 1
    if tensor.is_nested:
        there = tensor.values().numel()
    elif tensor.layout == torch.sparse_coo:
        there = tensor._values().numel()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Facts(shape, stride, dtype, str(tensor.device), _format(tensor, strided), there * tensor.element_size())


def _format(tensor: Tensor, strided: bool) -> str:
    if not strided:
        return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    if tensor.is_contiguous():
        return "contiguous"
    for dimensions, form in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.dim() == dimensions and tensor.is_contiguous(memory_format=form):
            return str(form).removeprefix("torch.")
    return "expanded" if 0 in tensor.stride() else "strided"


def values(tensor: Tensor) -> Tensor | str:
    """Return the values of a tensor that can be read, as a plain dense real one; else why they cannot be read."""
    if under_vmap(tensor):
        return "inside of vmap no value can be read"
    tensor = tensor.detach()
    if type(tensor) is not Tensor:
        if hasattr(tensor, "to_local"):  # DTensor: what this rank holds
            return values(tensor.to_local())
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:  # fake and wrapped ones, jagged ones too
            if not tensor.is_nested:
                return f"a {type(tensor).__name__} has no values to read"
            return values(tensor.values())
        tensor = tensor.as_subclass(Tensor)
    if tensor.is_nested:
        return values(tensor.values())
    if tensor.layout == torch.sparse_coo:
        return values(tensor._values())
    if tensor.is_mkldnn:
        return values(tensor.to_dense())
    if tensor.layout != torch.strided:
        return values(tensor.values())
    if tensor.is_meta:
        return "a tensor on the meta device has no values"
    if tensor.is_quantized:
        return values(tensor.dequantize())
    if tensor.numel() == 0:
        return "empty"
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())  # real and imaginary parts count alike
    return tensor.resolve_neg()


def under_vmap(tensor: Tensor) -> bool:
    """Return whether vmap holds a tensor, also below what grad or jvp have wrapped around it: it allows no reading."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def flatten(tensor: Tensor) -> tuple[Tensor, int]:
    """Return the values of a plain tensor as (n,) in the order of memory, and how many times each of them counts."""
    times = 1
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor, times = tensor.narrow(dimension, 0, 1), times * size
    return tensor.permute(_order(tensor.stride())).reshape(-1), times


def _order(stride: Sequence[int]) -> list[int]:
    """Return the dimensions of a tensor from the slowest in memory to the fastest."""
    return sorted(range(len(stride)), key=lambda dimension: (-stride[dimension], dimension))


@torch.no_grad()
def figures_of(tensor: Tensor) -> Figures:
    """Return what is in a plain tensor of the CPU that is not empty: one pass, in pieces that fit a cache.

    Means and deviations of the pieces are put together as by Chan, Golub and LeVeque (1979), in float64.
    """
    line, times = flatten(tensor)
    low, high, mean, spread, total, zeros, nan = math.inf, -math.inf, 0.0, 0.0, 0, 0, 0
    exact = line.dtype in (torch.float32, torch.float64)
    wide = line.dtype if exact else torch.float32 if line.dtype.is_floating_point else torch.float64
    for start in range(0, line.numel(), CHUNK):
        piece = line[start : start + CHUNK].to(wide)
        zeros += piece.numel() - int(torch.count_nonzero(piece))
        least, most = (float(end) for end in torch.aminmax(piece))
        if not math.isfinite(least) or not math.isfinite(most):  # also with one NaN among them
            nan += int(torch.isnan(piece).sum())
            piece = piece[torch.isfinite(piece)]
            if not piece.numel():
                continue
            least, most = (float(end) for end in torch.aminmax(piece))
        low, high = min(low, least), max(high, most)
        count, own, squares = piece.numel(), *_moments(piece, least, most)
        step = own - mean
        spread += squares + step * step * total * count / (total + count)
        mean += step * count / (total + count)
        total += count
    inf, std = line.numel() - total - nan, math.sqrt(spread / total) if total and spread == spread else math.nan
    ends = (low, high, mean, std) if total else (math.nan,) * 4
    return Figures(*ends, zeros * times, nan * times, inf * times, line.numel() * times)


def _moments(piece: Tensor, low: float, high: float) -> tuple[float, float]:
    """Return the mean of finite values and the sum of their squared distances from it."""
    if low == high:
        return low, 0.0
    middle = low / 2 + high / 2  # near it squares lose nothing, even where the mean is far from 0
    reach = max(high - middle, middle - low)
    piece = (piece - middle).div_(reach)  # -1 to 1: no square overflows
    shift, squares = float(piece.mean()), float(torch.dot(piece, piece))
    return middle + shift * reach, max(0.0, squares - shift * shift * piece.numel()) * reach * reach


@torch.no_grad()
def device_figures(tensor: Tensor) -> Tensor:
    """Return (8,) float64 on the device of a plain tensor that is not empty, never waiting for it; see `figures`.

    That is min, max, mean, variance, zeros, NaN, non-finite, position of the first non-finite (in the order of memory).
    """
    line, _ = flatten(tensor)
    if line.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        line = line.float()
    low, high = torch.aminmax(line)
    variance, mean = torch.var_mean(line if line.dtype == torch.float64 else line.float(), correction=0)
    bad = (line * 0) != 0  # 0 x NaN and 0 x Inf are NaN
    counts = (
        line.numel() - torch.count_nonzero(line),
        torch.isnan(line).sum(),
        bad.sum(),
        bad.to(torch.uint8).argmax(),
    )
    return torch.cat([torch.stack(some).double() for some in ((low, high), (mean, variance), counts)])


def unpack_figures(
    read: Sequence[float], shape: Sequence[int], stride: Sequence[int]
) -> tuple[Figures, tuple[int, ...] | None]:
    """Return what `device_figures` computed, and the index of its first non-finite value in memory, or None.

    Here min, max, mean and std are NaN where any value is not finite: to leave those out the host would have to wait.
    """
    low, high, mean, variance, zeros, nan, bad, first = read
    there = [1 if step == 0 else size for size, step in zip(shape, stride, strict=True)]  # what `flatten` leaves
    times = math.prod(shape) // math.prod(there)
    ends = (math.nan,) * 4 if bad else (low, high, mean, math.sqrt(max(0.0, variance)))
    zeros, nan, inf = (int(number) * times for number in (zeros, nan, bad - nan))
    return Figures(*ends, zeros, nan, inf, math.prod(shape)), (
        unravel(int(first), there, _order(stride)) if bad else None
    )


def first_bad(tensor: Tensor) -> FirstBad | None:
    """Return the first value of a tensor, in the order of its indices, that is NaN or Inf, or None; waits for a device.

    Also None where values cannot be read: a meta or empty tensor has no bad one.
    """
    read = values(tensor)
    if isinstance(read, str) or not (read.is_floating_point() or read.is_complex()):
        return None
    with torch.no_grad():
        wide = torch.float64 if read.dtype in (torch.float64, torch.complex128) else torch.float32
        if math.isfinite(float(read.sum(dtype=wide))):  # of finite values only, unless it overflows
            return None
        bad = ~torch.isfinite(read)
        if not bad.any():
            return None
        nan = int(torch.isnan(read).sum())
        first = int(bad.reshape(-1).to(torch.uint8).argmax())
        each = bad.reshape(bad.shape[0], -1).sum(1).tolist() if bad.dim() else []
    index = unravel(first, tuple(read.shape), range(read.dim()))
    value = float(read[index])
    text = "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    samples = {sample: count for sample, count in enumerate(each) if count}
    return FirstBad(index, text, nan, int(bad.sum()) - nan, samples)


def unravel(position: int, shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the index in a tensor of the value at `position`, where dimensions vary in `order`, the slowest first."""
    index = [0] * len(shape)
    for dimension in reversed(order):
        position, index[dimension] = divmod(position, shape[dimension])
    return tuple(index)
