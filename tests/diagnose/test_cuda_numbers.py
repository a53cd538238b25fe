"""Bare numbers of CUDA's errors, as programs that print no names leave them."""

from __future__ import annotations

import pytest

from ocrlab.diagnose.classify import classify
from ocrlab.records import Cause, Incident

NUMBERS = {
    "driver.state": (3, 30, 34, 304, 802, 803, 804, 999),
    "driver.too_old": (35, 222),
    "driver.no_visible_device": (100, 101),
    "driver.device_busy": (46,),
    "build.arch": (98, 209, 218),
    "hw.gpu": (214,),
    "gpumem.capacity": (2,),
    "kernel.launch_resources": (701,),
    "kernel.launch_timeout": (702,),
}


@pytest.mark.parametrize(("cause", "number"), [(cause, n) for cause, numbers in NUMBERS.items() for n in numbers])
def test_a_bare_number_of_cuda_is_named_but_not_sure(cause: str, number: int) -> None:
    for text in (f"RuntimeError: CUDA error {number}", f"CUDA error code={number}", f"cuResult: {number}"):
        first = causes(text)[0]
        assert (first.id, first.confidence < 0.8) == (cause, True), text


@pytest.mark.parametrize("text", ["CUDA error 2 of 5 checks passed", "cuda error 30%", "CUDA error 3.5e-4"])
def test_other_numbers_beside_cuda_are_no_codes(text: str) -> None:
    assert not causes(text)


def causes(text: str) -> list[Cause]:
    return list(classify(Incident(texts={"log_tail.txt": text})).causes)
