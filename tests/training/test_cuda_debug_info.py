"""The [CUDA Info] lines and what runtime.debug_cuda switches on."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from ocrlab.config.schema import Config
from ocrlab.training import cuda_debug_info


@pytest.mark.parametrize(
    ("flag", "setting", "wanted"), [("1", False, True), ("0", False, False), ("", True, True), ("off", False, False)]
)
def test_wanted_by_environment_or_config(flag, setting, wanted, monkeypatch):
    monkeypatch.setenv("DEBUG_CUDA", flag)
    assert cuda_debug_info.wanted(Config(runtime={"debug_cuda": setting})) is wanted


def test_block_launches_sets_the_flag_that_the_lines_show(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    cuda_debug_info.block_launches()
    assert os.environ["CUDA_LAUNCH_BLOCKING"] == "1"
    assert "[CUDA Info] CUDA_LAUNCH_BLOCKING=1" in cuda_debug_info.lines()


def test_without_a_device_the_lines_report_that(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines = cuda_debug_info.lines()
    assert all(line.startswith("[CUDA Info] ") for line in lines)
    assert f"[CUDA Info] PyTorch version: {torch.__version__}" in lines
    assert "[CUDA Info] no CUDA device" in lines


def test_devices_are_named_and_a_sick_device_does_not_hide_the_others(monkeypatch):
    def properties(index):
        if index == 0:
            raise RuntimeError("CUDA error: unknown error\nlong advice")
        return SimpleNamespace(name="RTX 3060", major=8, minor=6, total_memory=12 * 2**30)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    lines = cuda_debug_info.lines()
    assert "[CUDA Info] device 0: gives no answer: CUDA error: unknown error" in lines
    assert "[CUDA Info] device 1: RTX 3060, capability 8.6, 12.0 GiB" in lines
