"""Whether the faults of two cells are one."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.debug.replay import fault_match

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"


def raised(text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "exception", "exception": text, "path": "body.0", **more}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ILLEGAL, "illegal address"),
        ("RuntimeError: CUDA error: misaligned address", "misaligned address"),
        ("RuntimeError: CUDA error: an illegal instruction was encountered", "illegal instruction"),
        ("RuntimeError: CUDA error: device-side assert triggered", "device-side assert"),
        ("RuntimeError: CUDA error: unspecified launch failure", "launch failure"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "cuDNN status"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", "cuBLAS status"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ""),
        ("ValueError: Expected input batch_size (4) to match target batch_size (3).", ""),
    ],
)
def test_how_a_kernel_ended_is_read_off_the_message(text: str, kind: str) -> None:
    assert fault_match.of_cuda(raised(text)) == kind


def test_an_error_of_cuda_is_compared_by_how_the_kernel_ended_and_others_by_their_type() -> None:
    illegal = raised(ILLEGAL)
    assert fault_match.same(illegal, raised("RuntimeError: CUDA error: an illegal memory access was encountered"))
    assert not fault_match.same(illegal, raised("torch.AcceleratorError: CUDA error: misaligned address"))
    assert not fault_match.same(illegal, raised("torch.AcceleratorError: no kernel image"))
    assert fault_match.same(raised("ValueError: 3 of 4"), raised("ValueError: 4 of 4"))
    assert not fault_match.same(raised("ValueError: 3"), raised("KeyError: 3"))


def test_a_fault_in_another_module_differs_where_both_variants_name_it() -> None:
    fault, other = raised(ILLEGAL), raised(ILLEGAL, path="body")
    assert not fault_match.same(fault, other) and fault_match.same(fault, other, placed=False)
    bad = {"kind": "nonfinite", "path": "a", "exception": "AssertionError: nan"}
    assert fault_match.same(bad, {"kind": "nonfinite", "path": "_orig_mod.a"})
    assert not fault_match.same(bad, {**bad, "path": "b"}) and not fault_match.same(bad, {**bad, "kind": "crash"})
    assert fault_match.same({"kind": "hang", "path": "a.b"}, {"kind": "hang", "path": "a"})
    assert not fault_match.same({"kind": "hang", "path": "ab"}, {"kind": "hang", "path": "a"})


def test_a_crash_of_another_signal_is_another_crash() -> None:
    assert not fault_match.same({"kind": "crash", "signal": "SIGSEGV"}, {"kind": "crash", "signal": "SIGKILL"})


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "AssertionError: Torch not compiled with CUDA enabled",
        "NotImplementedError: Could not run 'mine::scan' with arguments from the 'CPU' backend.",
        "RuntimeError: x must be a CUDA tensor",
    ],
)
def test_a_program_that_asks_for_a_gpu_says_nothing_on_the_cpu(text: str) -> None:
    assert fault_match.wants_gpu(raised(text))
    assert not fault_match.wants_gpu(raised(ILLEGAL)) and not fault_match.wants_gpu(raised("IndexError: Target 9"))
