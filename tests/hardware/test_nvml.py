"""NVML and nvidia-smi by way of impostors: a library compiled here, and scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware import nvidia_smi
from ocrlab.hardware import nvml as nvml_module
from ocrlab.hardware.doctor import probe_runner

NVML = """
#include <string.h>
#include <stdlib.h>
typedef void *dev;
int nvmlInit_v2(void) { const char *t = getenv("FAKE_NVML"); return t ? atoi(t) : 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "Driver/library version mismatch"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.65.06", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) { *d = (dev)0x10; return 0; }
int nvmlDeviceGetName(dev d, char *s, unsigned n) { strncpy(s, "Fake", n); return 0; }
int nvmlDeviceGetMemoryInfo(dev d, unsigned long long *m) {
  m[0] = 8ull << 30; m[1] = 6ull << 30; m[2] = 2ull << 30; return 0; }
int nvmlDeviceGetTemperature(dev d, int which, unsigned *t) { *t = 55; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(dev d, unsigned long long *m) { *m = 0x1 | 0x40; return 0; }
int nvmlDeviceGetTotalEccErrors(dev d, int kind, int count, unsigned long long *n) {
  *n = kind == 1 ? 7 : 99; return 0; }
int nvmlDeviceGetRemappedRows(dev d, unsigned *a, unsigned *b, unsigned *c, unsigned *e) {
  *a = 1; *b = 2; *c = 1; *e = 0; return 0; }
struct process { unsigned pid; unsigned long long used; unsigned a, b; };
int nvmlDeviceGetComputeRunningProcesses_v3(dev d, unsigned *n, struct process *p) {
  *n = 2; p[0].pid = atoi(getenv("FAKE_PID")); p[0].used = 1ull << 30;
  p[1].pid = 999999999; p[1].used = ~0ull; return 0; }
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a libnvidia-ml.so.1 of one card; skips without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run(command, input=NVML, text=True, check=True, timeout=60)
    return folder


def asked(nvml: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> dict[str, Any]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
    monkeypatch.setenv("FAKE_NVML", str(code))
    monkeypatch.setenv("FAKE_PID", str(os.getpid()))
    ran = probe_runner.run(sys.executable, Path(nvml_module.__file__), "health", {}, deadline=20, own=True)
    assert ran.done, ran.errors
    [answer] = ran.answers
    return answer


def test_a_card(nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = asked(nvml, monkeypatch)
    assert answer["driver"] == "580.65.06"
    [card] = answer["cards"]
    assert (card["name"], card["used"], card["temperature"]) == ("Fake", 2 << 30, 55)
    assert card["throttled"] == ["hardware thermal slowdown"]  # idle is no complaint
    assert card["ecc"] == 7
    assert card["remap"] == {"pending": 1, "failed": 0}
    ours, foreign = card["processes"]
    assert (ours["pid"], ours["bytes"]) == (os.getpid(), 1 << 30)
    assert ours["name"]
    assert foreign == {"pid": 999999999, "bytes": None, "name": None}
    assert "clock" not in card  # what the library cannot tell is left out


def test_a_library_that_does_not_start(nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = asked(nvml, monkeypatch, code=18)
    assert (answer["code"], answer["error"]) == (18, "NVML 18: Driver/library version mismatch")


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("echo 'GPU 0: Fake'", {"status": 0, "said": "GPU 0: Fake\n"}),
        ("echo mismatch >&2; exit 18", {"status": 18, "said": "mismatch\n"}),
        ("sleep 60", {"hung": 0.2}),
    ],
)
def test_nvidia_smi(script: str, answer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{'exec ' if script.startswith('sleep') else ''}{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert nvidia_smi.run(["-L"], answer.get("hung", 20.0)) == answer


def test_who_holds_a_card_open(tmp_path: Path) -> None:
    for pid, target in (("12", "/dev/nvidia0"), ("12", "/dev/null"), ("13", "/dev/nvidiactl"), ("14", "/dev/nvidia1")):
        folder = tmp_path / "proc" / pid / "fd"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(len(list(folder.iterdir())))).symlink_to(target)
    assert [process["pid"] for process in nvml_module.holders(f"{tmp_path}/")] == [12, 14]


def test_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.run(["-L"], 1.0) == {"missing": True}
