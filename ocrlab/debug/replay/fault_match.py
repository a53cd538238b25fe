"""Whether two variants show the same fault, and what a variant that shows another one says.

Sources: the CUDA runtime's cudaError, PyTorch's messages where there is no GPU and its CUDA stream sanitizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Fault = Mapping[str, Any]

OF_CUDA = {  # how a kernel ends, and the pattern of its message; the first match counts
    "device-side assert": r"device-side assert|cudaErrorAssert|CUDA_ERROR_ASSERT",
    "misaligned address": r"misaligned address|cudaErrorMisalignedAddress|CUDA_ERROR_MISALIGNED_ADDRESS",
    "illegal instruction": r"CUDA.{0,40}illegal instruction|cudaErrorIllegalInstruction|CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "illegal address": r"illegal (?:memory|address) access|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS",
    "launch failure": r"unspecified launch failure|cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED",
    "invalid address": r"invalid program counter|global/shared address space"
    r"|CUDA_ERROR_(?:HARDWARE_STACK|INVALID_(?:ADDRESS|PC))",
    "cuDNN status": r"CUDNN_STATUS_|cuDNN error",
    "cuBLAS status": r"CUBLAS_STATUS_",
    "cuFFT status": r"CUFFT_(?:EXEC_FAILED|INTERNAL_ERROR)|cuFFT error",
    "NCCL status": r"NCCL error|unhandled (?:cuda|system) error",
}
VALUES = frozenset(("nonfinite", "target", "index", "exception"))  # kinds that may surface as an exception
LIBRARY = ("cuDNN status", "cuBLAS status", "cuFFT status", "NCCL status")  # which say little of how a kernel ended
WANTS_GPU = re.compile(
    r"No CUDA GPUs are available|not compiled with CUDA|no NVIDIA driver|object on a CUDA device|no CUDA-capable device"
    r"|No supported gpu backend|no GPUs? (?:is|are|were)|from the 'CPU' backend|CUDA tensor|'cuda' device type"
    r"|0 active drivers|from Triton \(cpu tensor",
    re.IGNORECASE,
)
RACE = re.compile(r"CUDASanitizerError|possible data race", re.IGNORECASE)


def of_cuda(fault: Fault) -> str:
    """Return how a kernel ended, where a fault is an error of CUDA: `illegal address`; else empty."""
    text = str(fault.get("exception") or "")
    return next((kind for kind, pattern in OF_CUDA.items() if re.search(pattern, text)), "")


def ends_context(fault: Fault) -> bool:
    """Return whether an error means that the CUDA context is dead; messages of libraries leave that open."""
    return of_cuda(fault) not in ("", *LIBRARY)


def same(fault: Fault, other: Fault, *, placed: bool = True) -> bool:
    """Return whether two faults are the same: one kind, one type of exception, and one module where both are `placed`.

    For CUDA the type is how the kernel ended. A hang may surface in any module that its own module calls. Without a
    trace, only the exception that a bad value led to identifies it.
    """
    kinds = of_cuda(fault), of_cuda(other)
    if any(kinds):
        return kinds[0] == kinds[1] and (not placed or _path(fault) == _path(other))
    if not placed and VALUES.issuperset({fault.get("kind"), other.get("kind")}) and fault.get("exception"):
        return _exception(fault) == _exception(other)
    if fault.get("kind") != other.get("kind") or _type(fault) != _type(other):
        return False
    path, other_path = _path(fault), _path(other)
    if not placed or path == other_path:
        return True
    near = f"{path}.".startswith(f"{other_path}.") or f"{other_path}.".startswith(f"{path}.")
    return fault.get("kind") == "hang" and (near or not (path and other_path))


def wants_gpu(fault: Fault) -> bool:
    """Return whether a program fails only as it asks for a GPU by itself, where there is none."""
    return not of_cuda(fault) and bool(WANTS_GPU.search(str(fault.get("exception") or "")))


def is_race(fault: Fault) -> bool:
    """Return whether torch's sanitizer has seen two streams use the same memory without waiting."""
    return bool(RACE.search(str(fault.get("exception") or "")))


def names_value(fault: Fault) -> bool:
    """Return whether a fault names the value that an assert in a kernel had refused."""
    return fault.get("kind") in ("target", "index") or _type(fault) == "IndexError"


def _type(fault: Fault) -> str:
    """Return the type of an exception, or the signal of a crash; what a value that is not finite has led to later is
    not that value.
    """
    if fault.get("kind") == "crash":
        return str(fault.get("signal") or "")
    return _exception(fault) if fault.get("kind") in ("exception", "data") else ""


def _exception(fault: Fault) -> str:
    return str(fault.get("exception") or "").partition(":")[0]


def _path(fault: Fault) -> str:
    return str(fault.get("path") or "").replace("_orig_mod.", "")
