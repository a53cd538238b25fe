"""NVML, the monitor and the driver by way of impostors: compiled libraries, scripts, made-up machines."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.cli.kernel import device_limits
from ocrlab.debug.diagnosis.cuda_kernels import launch_limits
from ocrlab.hardware import gpu_monitor, nvml
from ocrlab.hardware.doctor import probe_runner
from ocrlab.records import Reading

NVML = """
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
typedef void *dev;
int nvmlInit_v2(void) {
  if (getenv("FAKE_HANGS")) for (;;) sleep(1000);
  const char *t = getenv("FAKE_NVML"); return t ? atoi(t) : 0; }
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
  const char *pid = getenv("FAKE_PID"); if (!pid) return 1;
  *n = 2; p[0].pid = atoi(pid); p[0].used = 1ull << 30;
  p[1].pid = 999999999; p[1].used = ~0ull; return 0; }
int nvmlDeviceGetUtilizationRates(dev d, unsigned *r) {
  static int calls; if (getenv("FAKE_STOPS") && ++calls > 1) for (;;) sleep(1000);
  r[0] = 73; r[1] = 12; return 0; }
"""


@pytest.fixture(scope="module")
def library(compile_library: Callable[[str, str], Path]) -> Path:
    """Return a folder with a libnvidia-ml.so.1 of one card."""
    return compile_library("libnvidia-ml.so.1", NVML)


def health(library: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> dict[str, Any]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(code))
    monkeypatch.setenv("FAKE_PID", str(os.getpid()))
    ran = probe_runner.run(sys.executable, Path(nvml.__file__), "health", {}, deadline=20, own=True)
    assert ran.done, ran.errors
    return ran.answer


def test_the_health_of_a_card(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = health(library, monkeypatch)
    assert answer["driver"] == "580.65.06"
    [card] = answer["cards"]
    assert (card["name"], card["used"], card["temperature"]) == ("Fake", 2 << 30, 55)
    assert card["throttled"] == ["hardware thermal slowdown"]  # idle is not a fault
    assert (card["ecc"], card["remap"]) == (7, {"pending": 1, "failed": 0})
    ours, foreign = card["processes"]
    assert (ours["pid"], ours["bytes"]) == (os.getpid(), 1 << 30)
    assert ours["name"]
    assert foreign == {"pid": 999999999, "bytes": None, "name": None}
    assert "clock" not in card  # what the library cannot tell is left out


def test_a_library_that_does_not_start(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = health(library, monkeypatch, code=18)
    assert (answer["code"], answer["error"]) == (18, "NVML 18: Driver/library version mismatch")


def monitor(seconds: float = 20) -> Reading:
    stream = gpu_monitor.Stream(3600.0)
    try:
        stream.came.wait(seconds)
        return stream.latest()
    finally:
        stream.close()


def test_a_library_that_hangs_costs_no_more_than_the_deadline(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_HANGS", "1")
    monkeypatch.setattr(gpu_monitor, "FIRST", 0.5)
    began = time.monotonic()
    reading = monitor(1.0)
    assert time.monotonic() - began < 15
    assert reading.value is None
    assert "it hangs" in str(reading.missing)


def test_a_driver_that_stops_answering_keeps_its_last_word(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_STOPS", "1")
    monkeypatch.setattr(gpu_monitor, "LATE", 0.2)
    stream = gpu_monitor.Stream(0.05)
    try:
        assert stream.came.wait(20)
        for _ in range(200):
            reading = stream.latest()
            if reading.missing:
                break
            time.sleep(0.05)
        assert reading.value["cards"][0]["used"] == 2 << 30
        assert "it hangs" in str(reading.missing)
    finally:
        stream.close()
    assert stream.child is not None
    assert stream.child.poll() is not None


@pytest.mark.skipif(any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))), reason="there is a driver here")
def test_without_a_card_the_child_ends_and_says_why() -> None:
    reading = monitor()
    assert reading.value is None
    assert "libnvidia-ml" in str(reading.missing)


DRIVER = """
#include <unistd.h>
int cuInit(unsigned flags) { HANG return CODE; }
int cuDeviceGet(int* device, int number) { *device = number; return number ? 101 : 0; }
int cuDeviceGetAttribute(int* value, int number, int device) { if (number == 111) return 1; *value = number; return 0; }
"""


def test_the_limits_of_a_device(compile_library: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(code: int = 0, hang: str = "") -> None:
        source = DRIVER.replace("CODE", str(code)).replace("HANG", hang)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(compile_library("libcuda.so.1", source)))

    load()
    limits = launch_limits.of_device(device_limits().value)
    assert (limits.capability, limits.grid, limits.threads_per_sm, limits.sm_count) == ("75.76", (5, 6, 7), 39, 16)
    assert "CUresult 101" in str(device_limits(1).missing)
    load(code=999)
    assert device_limits().missing == "cuInit failed with CUresult 999"
    load(hang="for (;;) pause();")
    assert "no answer within 0.5 s" in str(device_limits(seconds=0.5).missing)
