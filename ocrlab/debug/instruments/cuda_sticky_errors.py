"""Errors after which a CUDA context is dead, and what must not be freed then.

Sources: the CUDA runtime's cudaError ("the process must be terminated and relaunched"), torch's CachingHostAllocator.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from typing import Any

import torch

DEAD = re.compile(
    r"CUDA (?:driver )?error|HIP error|Triton Error|cuDNN error|CUBLAS_STATUS|CUDNN_STATUS|CUDA_ERROR_|cudaError"
    r"|cuFFT error|unhandled cuda error|device-side assert|illegal memory access|misaligned address"
)
DEEPEST = 10  # errors in a chain


def is_cuda_error(error: BaseException | None) -> bool:
    """Return whether an error, or a cause of it, shows that a CUDA context may be dead; out of memory does not."""
    accelerator = getattr(torch, "AcceleratorError", ())  # since torch 2.8
    for _ in range(DEEPEST):
        if error is None:
            return False
        text = str(error)
        memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in text  # the driver's own, when pinning
        if not memory and (isinstance(error, accelerator) or DEAD.search(text)):
            return True
        error = error.__cause__ or error.__context__
    return False


def never_free(things: Iterable[Any]) -> None:
    """Keep things until the process is gone, also when the interpreter ends.

    Pinned memory that a copy went to records an event when it is freed. In a dead context that fails, and before torch
    2.15 the error leaves a destructor and aborts the process, in place of the exception that the user is to see.
    """
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
