"""Whether torch has kernels for a GPU, by its compute capability and torch's list of architectures."""

from __future__ import annotations

import pytest

from ocrlab.hardware.doctor import check_torch_gpus

MODERN = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120".split()


@pytest.mark.parametrize(
    ("capability", "arch_list", "judgement"),
    [
        ((9, 0), MODERN, "ok"),
        ((8, 9), MODERN, "ok"),  # runs code of sm_86
        ((12, 0), MODERN, "ok"),
        ((12, 1), MODERN, "ok"),
        ((13, 0), MODERN, "warn"),  # only PTX
        ((7, 0), MODERN, "fail"),  # too old a card
        ((6, 1), MODERN, "fail"),
        ((12, 0), ["sm_80", "sm_90"], "fail"),  # too new a card
        ((9, 0), ["sm_90a"], "ok"),
        ((9, 0), [], "skip"),
    ],
)
def test_architectures(capability: tuple[int, int], arch_list: list[str], judgement: str) -> None:
    check = check_torch_gpus.architecture("GPU 0", capability, arch_list, {"version": "2.9"})
    assert check.judgement == judgement
    assert check.cause == ("build.arch" if judgement in ("warn", "fail") else None)
    if judgement == "fail":
        assert "--torch-backend=" in check.do
        assert f"sm_{capability[0]}{capability[1]}" in check.need


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Found no NVIDIA driver on your system.", "driver.none"),
        ("The NVIDIA driver on your system is too old (found version 11040).", "driver.too_old"),
        ("No CUDA GPUs are available", "driver.no_visible_device"),
        ("CUDA driver initialization failed, you might not have a CUDA gpu.", "driver.state"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "driver.state"),
        ("AssertionError: Torch not compiled with CUDA enabled", "build.cpu_only"),
    ],
)
def test_torchs_own_words(message: str, cause: str) -> None:
    answer = {"torch": {"devices": [], "said": message, "warned": []}}
    [check] = check_torch_gpus.judge([answer], {})
    assert (check.judgement, check.cause) == ("fail", cause)


def test_torch_that_sees_a_gpu() -> None:
    device = {"name": "Some GPU", "capability": [8, 6]}
    answer = {"torch": {"devices": [device], "said": "", "warned": [], "arch_list": MODERN}}
    assert [check.judgement for check in check_torch_gpus.judge([answer], {})] == ["ok", "ok"]


def test_when_torch_need_not_be_asked() -> None:
    kernel = {"cards": [], "nodes": {}, "dxg": False}
    torch = [{"imported": True}, {"torch": {"cuda": "13.2"}}]
    alone = {"driver": [{"kernel": kernel}, {"cuda": {"loaded": False}}], "import torch": torch}
    assert check_torch_gpus.needless(alone) == "no NVIDIA GPU on this machine"
    assert "would not return" in (check_torch_gpus.needless({"import torch": torch}) or "")  # the driver hung
    amd = {**alone, "import torch": [{"imported": True}, {"torch": {"hip": "6.4"}}]}
    assert check_torch_gpus.needless(amd) is None
