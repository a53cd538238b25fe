"""Limits asked of a driver: a driver made here, one that hangs, and none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ocrlab.debug.diagnosis.cuda_kernels import launch_limits
from ocrlab.hardware.cuda_device_limits import device_limits

DRIVER = """
#include <unistd.h>
int cuInit(unsigned flags) { HANG return CODE; }
int cuDeviceGet(int* device, int number) { *device = number; return number ? 101 : 0; }
int cuDeviceGetAttribute(int* value, int number, int device) { if (number == 111) return 1; *value = number; return 0; }
"""


def driver(folder: Path, code: int = 0, hang: str = "") -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    (folder / "fake.c").write_text(DRIVER.replace("CODE", str(code)).replace("HANG", hang))
    command = [compiler, "-shared", "-fPIC", "fake.c", "-o", "libcuda.so.1"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)


def test_what_a_driver_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    limits = launch_limits.of_device(device_limits().value)
    assert (limits.capability, limits.grid, limits.threads_per_sm, limits.sm_count) == ("75.76", (5, 6, 7), 39, 16)
    assert "CUresult 101" in str(device_limits(1).missing)


def test_a_driver_that_fails_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    driver(tmp_path, code=999)
    assert device_limits().missing == "cuInit failed with CUresult 999"
    driver(tmp_path, hang="for (;;) pause();")
    assert "no answer within 0.5 s" in str(device_limits(seconds=0.5).missing)
