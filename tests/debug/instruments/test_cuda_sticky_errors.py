"""Which errors leave a dead CUDA context, and that what is kept is never freed."""

import sys
import weakref

import pytest
import torch

from ocrlab.debug.instruments import cuda_sticky_errors

DEAD = (
    "CUDA error: device-side assert triggered",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "Triton Error [CUDA]: an illegal memory access was encountered",
    "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
)
ALIVE = (
    "CUDA error: out of memory",
    "mat1 and mat2 shapes cannot be multiplied (4x3 and 2x2)",
    "Found no NVIDIA driver on your system.",
)


@pytest.mark.parametrize("text", DEAD)
def test_a_dead_context_is_recognised(text: str) -> None:
    assert cuda_sticky_errors.is_cuda_error(RuntimeError(text))
    around = ValueError("while logging")
    around.__cause__ = RuntimeError(text)
    assert cuda_sticky_errors.is_cuda_error(around)


@pytest.mark.parametrize("text", ALIVE)
def test_other_errors_leave_the_context_alive(text: str) -> None:
    assert not cuda_sticky_errors.is_cuda_error(RuntimeError(text))


def test_out_of_memory_and_nothing_are_no_dead_context() -> None:
    assert not cuda_sticky_errors.is_cuda_error(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    )
    assert not cuda_sticky_errors.is_cuda_error(None)
    assert cuda_sticky_errors.is_cuda_error(torch.AcceleratorError("CUDA error: unspecified launch failure"))


def test_objects_that_are_never_freed_outlive_their_owner() -> None:
    thing = torch.zeros(3)
    alive, before = weakref.ref(thing), sys.getrefcount(thing)
    cuda_sticky_errors.never_free([thing])
    assert sys.getrefcount(thing) == before + 1
    del thing
    assert alive() is not None
