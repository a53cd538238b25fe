"""Losses on their way from a device to the host: nobody waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

Sent = deque[tuple[int, Tensor, Any]]  # micro-batch, where its loss arrives, the event behind it


def send(late: Sent, micro: int, value: Tensor, scale: float) -> None:
    """Start the way of a loss from its device to the host; inside of a CUDA graph it has no value yet."""
    if value.numel() != 1 or torch.cuda.is_current_stream_capturing():
        return
    with torch.cuda.device(value.device):  # else the event is behind nothing, and passes at once
        held = torch.empty(1, dtype=torch.float64, pin_memory=True)
        held.copy_(value.reshape(1).double() * scale, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
    late.append((micro, held, arrived))


def arrived(late: Sent) -> Iterator[tuple[int, float]]:
    """Take out the losses that have arrived, with their micro-batches."""
    while late and late[0][2].query():
        micro, held, _ = late.popleft()
        yield micro, float(held)
