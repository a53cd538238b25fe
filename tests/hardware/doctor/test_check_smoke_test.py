"""How far the smoke ladder was climbed, in words and with a cause."""

from __future__ import annotations

import pytest

from ocrlab.hardware.doctor import check_smoke_test


def rungs(error: str | None) -> list[dict[str, object]]:
    first = {"rung": "allocate", "ok": True, "error": None, "seconds": 0.1}
    second = {"rung": "add", "ok": error is None, "error": error, "seconds": 0.1}
    return [{"at": "allocate"}, first, {"at": "add"}, second]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "build.arch"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 16 MiB", "gpumem.foreign"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "build.cuda_libraries"),
        ("RuntimeError: CUDA error: an illegal instruction was encountered", "kernel.illegal_instruction"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "kernel.illegal_address"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "hw.gpu"),
        ("backward differs from the CPU's float64 by 3, the limit is 0.001", "hw.gpu"),
        ("RuntimeError: something that nobody has seen", None),
    ],
)
def test_a_rung_that_fails(error: str, cause: str | None) -> None:
    [check] = check_smoke_test.judge("smoke test: GPU", rungs(error))
    assert (check.judgement, check.cause) == ("fail", cause)
    assert "fails at add" in check.observed
    assert ("cannot avoid" in check.observed) == ("CUDA error" in error)


def test_all_rungs_and_none() -> None:
    [check] = check_smoke_test.judge("smoke test: CPU", rungs(None))
    assert check.judgement == "ok"
    assert "2 of 2" in check.observed
    [check] = check_smoke_test.judge("smoke test: CPU", [])
    assert check.judgement == "fail"


def test_a_wrong_result_of_the_processor_is_not_blamed_on_a_gpu() -> None:
    [check] = check_smoke_test.judge(
        "smoke test: CPU", rungs("forward differs from the CPU's float64 by 3, the limit is 0.001")
    )
    assert (check.judgement, check.cause) == ("fail", None)


def test_a_driver_that_hangs_silences_the_processor_too() -> None:
    torch = {"import torch": [{"imported": True}]}
    assert "would not return" in (check_smoke_test.mute(torch) or "")
    assert check_smoke_test.mute({**torch, "driver": [{}]}) is None
    assert check_smoke_test.mute({"driver": [{}]}) == "torch cannot be imported, see step 2"
