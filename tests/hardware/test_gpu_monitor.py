"""The child that asks the driver, with impostors: a library, scripts that answer, fail and hang."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ocrlab.hardware import gpu_monitor, nvidia_smi
from ocrlab.hardware import nvml as nvml_module
from ocrlab.records import Reading

MIB = 1 << 20
NVML = """
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
typedef void *dev;
int nvmlInit_v2(void) { if (getenv("FAKE_HANGS")) for (;;) sleep(1000); return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.65.06", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) { *d = (dev)0x10; return 0; }
int nvmlDeviceGetName(dev d, char *s, unsigned n) { strncpy(s, "Fake", n); return 0; }
int nvmlDeviceGetMemoryInfo(dev d, unsigned long long *m) {
  m[0] = 8ull << 30; m[1] = 6ull << 30; m[2] = 2ull << 30; return 0; }
int nvmlDeviceGetUtilizationRates(dev d, unsigned *r) {
  static int calls; if (getenv("FAKE_STOPS") && ++calls > 1) for (;;) sleep(1000);
  r[0] = 73; r[1] = 12; return 0; }
"""
SMI = """#!/bin/sh
case "$*" in
*query-gpu*) echo "Fake RTX, GPU-1, 8192, 2048, 6144, 42, 61, 120.50, [N/A]" ;;
*) echo "GPU-1, {pid}, 2000"; echo "GPU-1, 77, [N/A]" ;;
esac
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run(command, input=NVML, text=True, check=True, timeout=60)
    return folder


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder that is all of PATH, on a machine without the library."""
    if any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg")):
        pytest.skip("there is a driver here")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def script(folder: Path, text: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)


def asked(seconds: float = 20) -> Reading:
    stream = gpu_monitor.Stream(3600.0)
    try:
        stream.came.wait(seconds)
        return stream.latest()
    finally:
        stream.close()


def test_a_card_by_the_library(nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
    reading = asked()
    assert reading.missing is None
    [card] = reading.value["cards"]
    assert (card["name"], card["used"], card["utilisation"], card["memory_utilisation"]) == ("Fake", 2 << 30, 73, 12)
    assert reading.value["driver"] == "580.65.06"


def test_a_library_that_hangs_costs_no_more_than_the_deadline(nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
    monkeypatch.setenv("FAKE_HANGS", "1")
    monkeypatch.setattr(gpu_monitor, "FIRST", 0.5)
    began = time.monotonic()
    reading = asked(1.0)
    assert time.monotonic() - began < 15
    assert reading.value is None
    assert "it hangs" in str(reading.missing)


def test_a_driver_that_stops_answering_keeps_its_last_word(nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
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


def test_nvidia_smi_stands_in_for_the_library(no_nvml: Path) -> None:
    script(no_nvml, SMI.format(pid=os.getpid()))
    answer = nvidia_smi.cards(20)
    [card] = answer["cards"]
    assert (card["name"], card["total"], card["used"], card["power"]) == ("Fake RTX", 8192 * MIB, 2048 * MIB, 120500)
    assert "power_limit" not in card
    ours, hidden = card["processes"]
    assert (ours["pid"], ours["bytes"], ours["name"]) == (
        os.getpid(),
        2000 * MIB,
        nvml_module.process_name(os.getpid()),
    )
    assert hidden == {"pid": 77, "bytes": None, "name": nvml_module.process_name(77)}


def test_an_nvidia_smi_that_hangs_is_left_behind(no_nvml: Path) -> None:
    script(no_nvml, "#!/bin/sh\nexec /bin/sleep 30\n")
    began = time.monotonic()
    assert "the driver hangs" in nvidia_smi.cards(0.3)["error"]
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("text", "message"), [("#!/bin/sh\necho no devices; exit 6\n", "no devices"), ("", "neither libnvidia-ml")]
)
def test_an_nvidia_smi_that_fails_and_none_at_all(no_nvml: Path, text: str, message: str) -> None:
    if text:
        script(no_nvml, text)
    assert message in nvidia_smi.cards(20)["error"]


@pytest.mark.parametrize(
    "text",
    [
        "echo Hello; echo 'nothing,to,see'",
        r"printf '\377\376\000junk\n'",
        "while :; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; done",  # without end
    ],
)
def test_an_nvidia_smi_that_says_something_else_is_no_card(no_nvml: Path, text: str) -> None:
    script(no_nvml, f"#!/bin/sh\n{text}\n")
    assert "what it was not asked" in nvidia_smi.cards(20)["error"]


def test_figures_that_are_not_there_and_slices_of_a_card(no_nvml: Path) -> None:
    lost = "echo 'Thing, [Unknown Error], [GPU is lost], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]'"
    whole = "echo 'A100, GPU-9, 40960, 12000, 28960, [N/A], 40, 90.1, 400.00'"
    head = "#!/bin/sh\ncase $1 in *apps*) echo 'MIG-7, 42, 900'; echo '[N/A], [N/A], [N/A]';; *) "
    script(no_nvml, f"{head}{whole};; esac\n")
    [card] = nvidia_smi.cards(20)["cards"]
    assert [(process["pid"], process["bytes"]) for process in card["processes"]] == [(42, 900 * MIB)]
    assert "utilisation" not in card
    script(no_nvml, f"{head}{lost}; {lost}; {whole};; esac\n")
    cards = nvidia_smi.cards(20)["cards"]
    assert [card.get("used") for card in cards] == [None, None, 12000 * MIB]
    assert not any(card["processes"] for card in cards)  # of three cards nobody knows whose slice it is


def test_without_a_card_the_child_ends_and_says_why(no_nvml: Path) -> None:
    reading = asked()
    assert reading.value is None
    assert "nvidia-smi" in str(reading.missing)
