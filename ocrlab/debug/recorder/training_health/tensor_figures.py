"""What is computed of a tensor where it lies, without reading a value: each function returns a tensor.

Shapes never depend on values, so that nothing waits for a CUDA device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ocrlab.debug.laws.tensor_checks import is_readable, stored_values
from ocrlab.debug.recorder.figure_transfer import arrives_later

WIDTHS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SAMPLED = 64  # values of a tensor from which the size of its change is estimated


def flattened(tensor: Tensor) -> Tensor:
    """Return a tensor in one dimension, without a copy where its memory is dense (channels_last too)."""
    if tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.flatten()


def whole_numbers(tensor: Tensor) -> Tensor:
    """Return a tensor's values in one dimension, floating-point ones as the whole numbers that their bits are."""
    flat = flattened(tensor.detach())
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    return flat.view(WIDTHS[flat.element_size()]) if flat.is_floating_point() else flat


def bit_sum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's values taken as whole numbers: another one for every single value that changes."""
    return whole_numbers(tensor).sum(dtype=torch.int64)


def bits(tensor: Tensor) -> int:
    """Return the sum of all bits as a number; of a tensor on a device that waits."""
    return int(bit_sum(tensor))


def bit_sums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of all bits of each tensor whose values can be read."""
    return [bit_sum(t) for t in tensors if is_readable(t)]


def total(figures: Sequence[Tensor]) -> int:
    """Return the sum of whole numbers that are on the host."""
    return sum(map(int, figures))


def sample(tensor: Tensor) -> Tensor:
    """Return some values of a tensor, evenly spread."""
    flat = flattened(tensor.detach())
    return flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED].float().clone()


def norm(tensor: Tensor) -> Tensor:
    """Return the norm of a gradient in float32 or better."""
    return stored_values(tensor).float().norm()


def can_read_gradient(gradient: Tensor | None) -> bool:
    """Return whether a gradient can be read without a wait: a sparse one on a device is joined first, which waits."""
    return gradient is not None and not (gradient.layout != torch.strided and arrives_later(gradient))


def any_nonzero(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return flags for values that are not 0: one for all tensors on the host, then one for each tensor on a device."""
    later = [t for t in tensors if arrives_later(t)]
    here = (t for t in tensors if not arrives_later(t))
    any_here = any(bool(stored_values(t).count_nonzero()) for t in here)  # stops at the first one
    return [torch.tensor(any_here), *(t.detach().count_nonzero() > 0 for t in later if can_read_gradient(t))]
