"""Every state of a driver is named, with its remedy: first by a fake libcuda, then as real torch tells of it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware.doctor import check_driver, check_torch_gpus, doctor_job, failed_probe, probe_runner
from ocrlab.hardware.doctor.check_spec import PROBES, Options, version
from ocrlab.hardware.doctor.cuinit_errors import OLDEST, STATES, WHEELS, cuda, state
from ocrlab.records import Check

WHEEL = {"version": "2.15.0+cu132", "cuda": "13.2", "place": "x"}
NAMED = {  # what cuInit returns -> cause, a word of the remedy
    2: ("driver.state", "nvidia-smi"),
    3: ("driver.state", "nvidia_uvm"),
    34: ("driver.state", "stubs"),
    36: ("driver.state", "reboot"),
    46: ("driver.device_busy", "nvidia-smi -c 0"),
    100: ("driver.no_visible_device", "CUDA_VISIBLE_DEVICES"),
    101: ("driver.no_visible_device", "CUDA_VISIBLE_DEVICES"),
    214: ("hw.gpu", "ECC"),
    304: ("driver.state", "/dev/nvidia"),
    802: ("driver.state", "nvidia-fabricmanager"),
    803: ("driver.state", "reboot"),
    804: ("driver.state", "compat"),
    999: ("driver.state", "nvidia_uvm"),
}
SEVERAL = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
from ocrlab.hardware import import_probe as imports
for code in sys.argv[2:]:
    if os.fork() == 0:
        os.environ["FAKE_DRIVER" if len(code) > 3 else "FAKE_CUINIT"] = code
        print(json.dumps([code, list(imports.torch_cuda())]), flush=True)
        os._exit(0)
    os.wait()
"""


def facts(build: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"packages": [{"torch": WHEEL if build is None else build}]}


def asked(monkeypatch: pytest.MonkeyPatch, folder: Path, **fake: object) -> probe_runner.ProbeResult:
    """Ask the fake driver in a child, from another folder than the library's."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    for name, value in fake.items():
        monkeypatch.setenv(f"FAKE_{name.upper()}", str(value))
    return probe_runner.run(sys.executable, PROBES / "nvidia_driver.py", "driver", {}, deadline=20, idle=3)


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.parametrize("code", NAMED)
def test_every_state_of_the_driver_is_named(code: int, fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = by_name(check_driver.judge(asked(monkeypatch, fake_driver, cuinit=code).answers, facts()))["driver"]
    cause, word = NAMED[code]
    assert (check.judgement, check.cause) == ("fail", cause)
    assert f"cuInit returned {code}, {STATES[code].name}" in check.observed
    assert str(fake_driver / "libcuda.so.1") in check.observed
    assert word in check.do
    assert "toolkit" in check.need


def test_a_code_that_nobody_knows_is_reported_too(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = by_name(check_driver.judge(asked(monkeypatch, fake_driver, cuinit=777).answers, facts()))["driver"]
    assert check.judgement == "fail"
    assert "777" in check.observed


def test_a_driver_that_never_returns(fake_driver: Path, monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    ran = asked(monkeypatch, fake_driver, hangs=1)
    [ask] = check_driver.asks(options)
    [check] = failed_probe.checks(ask, ran)
    assert (ran.ended, check.judgement, check.cause) == ("idle", "fail", "hang.cuda_init")
    assert "cuInit" in check.observed
    assert "reboot" in check.do


@pytest.mark.parametrize(
    ("number", "wheel", "judgement", "text"),
    [
        (12020, "13.2", "fail", "580.65.06"),
        (11040, "12.8", "fail", "525.60.13"),
        (10010, "11.8", "fail", "450.80.02"),
        (12020, "12.8", "ok", "minor-version compatibility"),
        (13000, "12.8", "ok", "13.0"),
        (13020, "13.2", "ok", "13.2"),
    ],
)
def test_the_driver_against_the_wheel(number: int, wheel: str, judgement: str, text: str) -> None:
    check = check_driver.new_enough(number, {"cuda": wheel}, {"module": None})
    assert check.judgement == judgement
    assert text in check.observed + check.need
    if judgement == "fail":
        assert check.cause == "driver.too_old"
        assert f"--torch-backend={WHEELS.get(number // 1000, 'cpu')}" in check.do


def test_a_wheel_for_the_processor_only() -> None:
    check = check_driver.new_enough(12080, {"version": "2.9.0+cpu"}, {"module": "570.1"})
    assert (check.judgement, check.cause) == ("fail", "build.cpu_only")
    assert check_driver.new_enough(12080, {}, {"module": None}).judgement == "skip"  # no torch at all
    assert check_driver.new_enough(12080, {"version": "2.9.0", "hip": "6.4"}, {"module": None}).judgement == "skip"


def test_a_device_of_the_fake_driver(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = asked(monkeypatch, fake_driver, devices=2, capability=89, mode=3)
    checks = by_name(check_driver.judge(ran.answers, facts()))
    assert checks["driver"].judgement == "ok"
    assert "Fake GPU, compute capability 8.9, 8 GiB" in checks["GPU 1"].observed
    assert checks["GPU 1"].cause == "driver.device_busy"  # exclusive process
    assert check_driver.no_gpu({"driver": ran.answers}) is None


def kernel(**more: Any) -> dict[str, Any]:
    answer = {"cards": [], "module": None, "open": False, "modules": [], "nodes": {}, "dxg": False, "variables": {}}
    return {"kernel": answer | more}


def test_a_gpu_without_a_driver_fails_and_no_gpu_is_skipped() -> None:
    gone = {"cuda": {"loaded": False, "error": "libcuda.so.1: cannot open shared object file"}}
    [check] = check_driver.judge([kernel(), gone], facts())
    assert check.judgement == "skip"
    assert check_driver.no_gpu({"driver": [kernel(), gone]}) == "no NVIDIA GPU on this machine"
    for machine, word in (
        (kernel(cards=["0000:01:00.0"], modules=["nouveau"]), "install the driver"),
        (kernel(dxg=True), "/usr/lib/wsl/lib"),
    ):
        [check] = check_driver.judge([machine, gone], facts())
        assert (check.judgement, check.cause) == ("fail", "driver.none")
        assert word in check.do


def test_nodes_and_versions() -> None:
    library = {"cuda": {"loaded": True, "init": 304, "path": "/x/libcuda.so.1", "real": "/x/libcuda.so.570.86.15"}}
    closed = kernel(nodes={"nvidia0": "Permission denied (13)", "nvidiactl": "ok"}, module="580.95.05")
    checks = by_name(check_driver.judge([closed, library], facts()))
    assert checks["device nodes"].cause == "driver.no_visible_device"
    assert checks["driver versions"].cause == "driver.state"
    assert "580.95.05" in checks["driver versions"].observed
    same = kernel(nodes={"nvidia0": "ok", "nvidia-uvm": "ok"}, module="570.86.15")
    checks = by_name(check_driver.judge([same, library], facts()))
    assert checks["driver versions"].judgement == checks["device nodes"].judgement == "ok"


def test_the_tables() -> None:
    assert cuda(12020) == "12.2" and cuda(13000) == "13.0"
    assert [version(OLDEST[major]) for major in sorted(OLDEST)] == sorted(version(text) for text in OLDEST.values())
    assert set(NAMED) == set(STATES)
    assert state(12345).do


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
def test_real_torch_says_it_and_the_doctor_names_it(fake_driver: Path, tmp_path: Path) -> None:
    """One process imports torch and forks for each state, so that a real message of each is judged."""
    codes = [*map(str, NAMED), "11040"]
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver)}
    command = [sys.executable, "-c", SEVERAL, str(probe_runner.ROOT), *codes]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True)
    answers_by_code = dict(json.loads(line) for line in done.stdout.splitlines())
    assert sorted(answers_by_code) == sorted(codes)
    for code, answers in answers_by_code.items():
        gpus = next(answer["torch"] for answer in answers if "torch" in answer)
        if gpus.get("available") is None or "not compiled with CUDA" in gpus["said"]:
            pytest.skip("this torch was built without CUDA")
        [check] = check_torch_gpus.judge(answers, {})
        want = "driver.too_old" if code == "11040" else NAMED[int(code)][0]
        assert (check.judgement, check.cause) == ("fail", want), check.observed


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
@pytest.mark.parametrize("code", [*NAMED, 12020, "hangs"])
def test_the_whole_ladder_on_every_state(
    code: Any, fake_driver: Path, monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    name, value = ("HANGS", 1) if code == "hangs" else ("DRIVER", code) if code > 1000 else ("CUINIT", code)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver))
    monkeypatch.setenv(f"FAKE_{name}", str(value))
    checks = doctor_job.run(options)
    assert {check.step for check in checks} == set(range(1, 11))
    want = {"hangs": "hang.cuda_init", 12020: "driver.too_old"}.get(code) or NAMED[code][0]
    [first, *_] = [check for check in checks if check.judgement == "fail"]
    assert (first.step, first.cause) == (4, want)
