"""Figures of tensors on a device reach the host without anybody waiting for them.

A check computes its figures where the tensor is and sends them; what uses them is called at once for a tensor on the
host, and for one on a CUDA device at a later step, after an event after the copy has passed. Other devices (MPS, XPU)
have no such copy here: their tensors are read at once, which waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

MOST = 256  # transfers under way; what is sent beyond them is dropped
LATER = {"cuda"}  # types of devices whose copies are asynchronous and have an event of torch.cuda
POLL = 1e-4  # seconds between two looks at what is still under way, at the end of a training

Use = Callable[[list[Tensor]], Any]


def arrives_later(tensor: Tensor) -> bool:
    """Return whether reading this tensor would make the host wait, so that its figures are sent."""
    return tensor.device.type in LATER


class FigureTransfer:
    """The figures of one training that are under way, oldest first."""

    def __init__(self) -> None:
        self.pending: deque[tuple[list[Tensor], list[Any], Use, list[Tensor]]] = deque()

    def __len__(self) -> int:
        return len(self.pending)

    def send(self, tensors: Iterable[Tensor], use: Use) -> None:
        """Call `use` with the tensors on the host: at once where they are there, else when they have arrived."""
        tensors = list(tensors)
        if not any(map(arrives_later, tensors)):
            use(tensors)
        elif len(self.pending) < MOST:
            self.pending.append(self._copied(tensors, use))

    def _copied(self, tensors: list[Tensor], use: Use) -> tuple[list[Tensor], list[Any], Use, list[Tensor]]:
        """Start one copy for each device and type; return results, events, `use` and the page-locked memory."""
        results, groups = list(tensors), dict[tuple[torch.device, torch.dtype], list[int]]()
        for place, tensor in enumerate(tensors):
            if arrives_later(tensor):
                groups.setdefault((tensor.device, tensor.dtype), []).append(place)
        events, buffers = [], []
        for (device, dtype), places in groups.items():
            flat = torch.cat([tensors[place].detach().reshape(-1) for place in places])
            buffer = torch.empty(flat.shape, dtype=dtype, pin_memory=True)
            with torch.cuda.device(device):  # else the event is on another stream, and passes at once
                buffer.copy_(flat, non_blocking=True)
                events.append(torch.cuda.Event())
                events[-1].record()
            buffers.append(buffer)
            for place, part in zip(places, buffer.split([tensors[p].numel() for p in places]), strict=True):
                results[place] = part.view(tensors[place].shape)
        return results, events, use, buffers

    def read(self, seconds: float = 0.0) -> None:
        """Use the figures that have arrived; at the end of a training those too that arrive within some seconds."""
        deadline = time.monotonic() + seconds
        while self.pending:
            results, events, use, _ = self.pending[0]
            while not all(event.query() for event in events):
                if time.monotonic() >= deadline:
                    return
                time.sleep(POLL)
            self.pending.popleft()
            use(results)

    def abandon(self) -> list[Any]:
        """Abandon what is under way, and return what must not be freed in a dead CUDA context."""
        left = [thing for _, events, _, buffers in self.pending for thing in (*events, *buffers)]
        self.pending.clear()
        return left
