"""Every state of a driver and a card has its cause and its remedy; first with a fake libcuda, then with real torch."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware.doctor import check_gpus, doctor_job, failed_probe, probe_runner
from ocrlab.hardware.doctor.check_gpus import CUINIT_ERRORS, WHEELS
from ocrlab.hardware.doctor.check_spec import PROBES, Options
from ocrlab.records import Check

GIB = 1 << 30
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
from ocrlab.hardware import torch_probe as imports
for code in sys.argv[2:]:
    if os.fork() == 0:
        os.environ["FAKE_DRIVER" if len(code) > 3 else "FAKE_CUINIT"] = code
        print(json.dumps([code, list(imports.torch_cuda())]), flush=True)
        os._exit(0)
    os.wait()
"""


def facts(build: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"packages": {"torch": WHEEL if build is None else build}}


def asked(monkeypatch: pytest.MonkeyPatch, folder: Path, **fake: object) -> probe_runner.ProbeResult:
    """Ask the fake driver in a child, from another folder than the library's."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    for name, value in fake.items():
        monkeypatch.setenv(f"FAKE_{name.upper()}", str(value))
    return probe_runner.run(sys.executable, PROBES / "nvidia_driver.py", "driver", {}, deadline=20, idle=3, own=True)


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.parametrize("code", NAMED)
def test_every_state_of_the_driver_is_named(code: int, fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = by_name(check_gpus.judge_driver(asked(monkeypatch, fake_driver, cuinit=code).answer, facts()))["driver"]
    cause, word = NAMED[code]
    assert (check.judgement, check.cause) == ("fail", cause)
    assert f"cuInit returned {code}, {CUINIT_ERRORS[code].name}" in check.observed
    assert str(fake_driver / "libcuda.so.1") in check.observed
    assert word in check.do
    assert "toolkit" in check.need


def test_a_driver_that_never_returns(fake_driver: Path, monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    ran = asked(monkeypatch, fake_driver, hangs=1)
    ask = check_gpus.gpu_probes(options)[0]
    [check] = failed_probe.checks(ask, ran)
    assert (ran.ended, check.judgement, check.cause) == ("idle", "fail", "hang.cuda_init")
    assert "cuInit" in check.observed
    assert "reboot" in check.do


@pytest.mark.parametrize(
    ("number", "wheel", "judgement", "text"),
    [
        (12020, "13.2", "fail", "580.65.06"), (11040, "12.8", "fail", "525.60.13"),
        (10010, "11.8", "fail", "450.80.02"), (12020, "12.8", "ok", "minor-version compatibility"),
        (13000, "12.8", "ok", "13.0"), (13020, "13.2", "ok", "13.2"),
    ],
)  # fmt: skip
def test_the_driver_against_the_wheel(number: int, wheel: str, judgement: str, text: str) -> None:
    check = check_gpus.judge_cuda_version(number, {"cuda": wheel}, {"module": None})
    assert check.judgement == judgement
    assert text in check.observed + check.need
    if judgement == "fail":
        assert check.cause == "driver.too_old"
        assert f"--torch-backend={WHEELS.get(number // 1000, 'cpu')}" in check.do


def test_a_wheel_for_the_processor_only() -> None:
    check = check_gpus.judge_cuda_version(12080, {"version": "2.9.0+cpu"}, {"module": "570.1"})
    assert (check.judgement, check.cause) == ("fail", "build.cpu_only")
    assert check_gpus.judge_cuda_version(12080, {}, {"module": None}).judgement == "skip"  # no torch at all
    assert (
        check_gpus.judge_cuda_version(12080, {"version": "2.9.0", "hip": "6.4"}, {"module": None}).judgement == "skip"
    )


def test_a_device_of_the_fake_driver(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = asked(monkeypatch, fake_driver, devices=2, capability=89, mode=3)
    checks = by_name(check_gpus.judge_driver(ran.answer, facts()))
    assert checks["driver"].judgement == "ok"
    assert "Fake GPU, compute capability 8.9, 8 GiB" in checks["GPU 1"].observed
    assert checks["GPU 1"].cause == "driver.device_busy"  # exclusive process
    assert check_gpus.no_gpu({"driver": ran.answer}) is None


def kernel(**more: Any) -> dict[str, Any]:
    answer = {"cards": [], "module": None, "modules": [], "nodes": {}, "dxg": False, "visible": None}
    return {"kernel": answer | more}


def test_a_gpu_without_a_driver_fails_and_no_gpu_is_skipped() -> None:
    gone = {"cuda": {"loaded": False, "error": "libcuda.so.1: cannot open shared object file"}}
    [check] = check_gpus.judge_driver({**kernel(), **gone}, facts())
    assert check.judgement == "skip"
    assert check_gpus.no_gpu({"driver": {**kernel(), **gone}}) == "no NVIDIA GPU on this machine"
    for machine, word in (
        (kernel(cards=["0000:01:00.0"], modules=["nouveau"]), "install the driver"),
        (kernel(dxg=True), "/usr/lib/wsl/lib"),
    ):
        [check] = check_gpus.judge_driver({**machine, **gone}, facts())
        assert (check.judgement, check.cause) == ("fail", "driver.none")
        assert word in check.do


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
def test_real_torch_says_it_and_the_doctor_names_it(fake_driver: Path, tmp_path: Path) -> None:
    """One process imports torch and forks for each state, so that a real message of each is judged."""
    codes = [*map(str, NAMED), "11040"]
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver)}
    command = [sys.executable, "-c", SEVERAL, str(probe_runner.ROOT), *codes]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True)
    answers = dict(json.loads(line) for line in done.stdout.splitlines())
    assert sorted(answers) == sorted(codes)
    for code, parts in answers.items():
        gpus = next(part["torch"] for part in parts if "torch" in part)
        if gpus.get("available") is None or "not compiled with CUDA" in gpus["said"]:
            pytest.skip("this torch was built without CUDA")
        [check] = check_gpus.judge_torch_gpus({"torch": gpus}, {})
        want = "driver.too_old" if code == "11040" else NAMED[int(code)][0]
        assert (check.judgement, check.cause) == ("fail", want), check.observed


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
@pytest.mark.parametrize("code", [*NAMED, 12020, "hangs"])
def test_the_whole_ladder_on_every_state(code, fake_driver, monkeypatch, options):
    name, value = ("HANGS", 1) if code == "hangs" else ("DRIVER", code) if code > 1000 else ("CUINIT", code)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver))
    monkeypatch.setenv(f"FAKE_{name}", str(value))
    checks = doctor_job.run(options)
    assert {check.step for check in checks} == set(range(1, 11))
    want = {"hangs": "hang.cuda_init", 12020: "driver.too_old"}.get(code) or NAMED[code][0]
    [first, *_] = [check for check in checks if check.judgement == "fail"]
    assert (first.step, first.cause) == (4, want)


MODERN = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120".split()


@pytest.mark.parametrize(("capability", "arch_list", "judgement"), [
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
])  # fmt: skip
def test_architectures(capability: tuple[int, int], arch_list: list[str], judgement: str) -> None:
    check = check_gpus.judge_architecture("GPU 0", capability, arch_list, {"version": "2.9"})
    assert check.judgement == judgement
    assert check.cause == ("build.arch" if judgement in ("warn", "fail") else None)
    if judgement == "fail":
        assert "--torch-backend=" in check.do
        assert f"sm_{capability[0]}{capability[1]}" in check.need


def card(**more: Any) -> dict[str, Check]:
    answer = {
        "name": "GPU", "total": 12 * GIB, "free": 11 * GIB, "used": GIB // 2, "processes": [], "temperature": 45,
        "clock": 1800, "clock_most": 2100, "throttled": [], "ecc": 0, **more,
    }  # fmt: skip
    checks = check_gpus.judge_cards({"loaded": True, "code": 0, "driver": "580", "cards": [answer]}, {})
    return {check.name: check for check in checks}


def test_memory_that_others_hold() -> None:
    who = [{"pid": 4711, "bytes": 6 * GIB, "name": "python"}]
    check = card(used=6 * GIB, processes=who)["GPU 0 memory"]
    assert (check.judgement, check.cause, check.do) == ("warn", "gpumem.foreign", "kill 4711")
    assert "python (4711, 6 GiB)" in check.observed
    check = card(used=6 * GIB, processes=[{"pid": 9, "bytes": None, "name": None}])["GPU 0 memory"]
    assert "another container" in check.observed and "kill" not in check.do
    check = card(used=6 * GIB)["GPU 0 memory"]
    assert "no process that is visible" in check.observed


@pytest.mark.parametrize(("more", "judgement"), [
    ({"ecc": 3}, "fail"),
    ({"remap": {"pending": 0, "failed": 1}}, "fail"),
    ({"remap": {"pending": 1, "failed": 0}}, "warn"),
    ({"temperature": 91}, "warn"),
    ({"throttled": ["hardware thermal slowdown"]}, "warn"),
    ({"throttled": ["software power cap"]}, "ok"),
    ({}, "ok"),
])  # fmt: skip
def test_a_sick_card(more: dict[str, Any], judgement: str) -> None:
    check = card(**more)["GPU 0 health"]
    assert check.judgement == judgement
    assert check.cause == ("hw.gpu" if judgement != "ok" else None)


def test_nvml_that_does_not_start() -> None:
    [check] = check_gpus.judge_cards(
        {"loaded": True, "code": 18, "error": "NVML 18: Driver/library version mismatch"}, {}
    )
    assert (check.judgement, check.cause) == ("fail", "driver.state")
    [check] = check_gpus.judge_cards({"loaded": False, "error": "no such file"}, {})
    assert check.judgement == "warn"


def test_the_kernels_log() -> None:
    lines = [
        "[1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.",
        "[2.0] traps: python[77] trap invalid opcode ip:7f sp:7f error:0 in libtorch_cpu.so[7f0000+1000]",
        "[3.0] Out of memory: Killed process 99 (python) total-vm:8kB, anon-rss:2048kB, file-rss:0kB",
    ]
    checks = {check.name: check for check in check_gpus.judge_log({"lines": lines, "missing": None}, {})}
    assert [(check.judgement, check.cause) for check in checks.values()] == [
        ("fail", "hw.gpu"), ("warn", "build.cpu_isa"), ("warn", "host.oom_kill"),
    ]  # fmt: skip
    assert "libtorch_cpu.so" in checks["kernel log: SIGILL"].observed
    assert "python, which held 2 MiB" in checks["kernel log: memory"].observed
    application = ["[1.0] NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=python, MMU Fault"]
    [check] = check_gpus.judge_log({"lines": application, "missing": None}, {})
    assert (check.judgement, check.cause) == ("warn", "hw.xid_app")
    [check] = check_gpus.judge_log({"lines": [], "missing": None}, {})
    assert check.judgement == "ok"
    [check] = check_gpus.judge_log({"lines": [], "missing": "closed"}, {})
    assert (check.judgement, check.observed) == ("skip", "closed")
