"""What NVML, nvidia-smi and the kernel's log say of a card's health."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.hardware.doctor import check_gpu_health
from ocrlab.records import Check

GIB = 1 << 30


def card(**more: Any) -> dict[str, Check]:
    answer = {
        "name": "GPU", "total": 12 * GIB, "free": 11 * GIB, "used": GIB // 2, "processes": [], "temperature": 45,
        "clock": 1800, "clock_most": 2100, "throttled": [], "ecc": 0, **more,
    }  # fmt: skip
    checks = check_gpu_health.judge([{"loaded": True, "code": 0, "driver": "580", "cards": [answer]}], {})
    return {check.name: check for check in checks}


def test_a_healthy_card() -> None:
    checks = card()
    assert {check.judgement for check in checks.values()} == {"ok"}
    assert "45 °C" in checks["GPU 0 health"].observed


def test_memory_that_others_hold() -> None:
    who = [{"pid": 4711, "bytes": 6 * GIB, "name": "python"}]
    check = card(used=6 * GIB, processes=who)["GPU 0 memory"]
    assert (check.judgement, check.cause, check.do) == ("warn", "gpumem.foreign", "kill 4711")
    assert "python (4711, 6 GiB)" in check.observed
    check = card(used=6 * GIB, processes=[{"pid": 9, "bytes": None, "name": None}])["GPU 0 memory"]
    assert "another container" in check.observed and "kill" not in check.do
    check = card(used=6 * GIB)["GPU 0 memory"]
    assert "no process that is visible" in check.observed
    memory = {"total": 12 * GIB, "used": 6 * GIB, "processes": []}
    check = check_gpu_health.judge_memory(0, memory, [{"pid": 12, "name": "python"}])
    assert "held open by python (12)" in check.observed and check.do == "kill 12"


@pytest.mark.parametrize(
    ("more", "judgement"),
    [
        ({"ecc": 3}, "fail"),
        ({"remap": {"pending": 0, "failed": 1}}, "fail"),
        ({"remap": {"pending": 1, "failed": 0}}, "warn"),
        ({"temperature": 91}, "warn"),
        ({"throttled": ["hardware thermal slowdown"]}, "warn"),
        ({"throttled": ["software power cap"]}, "ok"),
    ],
)
def test_a_sick_card(more: dict[str, Any], judgement: str) -> None:
    check = card(**more)["GPU 0 health"]
    assert check.judgement == judgement
    assert check.cause == ("hw.gpu" if judgement != "ok" else None)


def test_nvml_that_does_not_start() -> None:
    [check] = check_gpu_health.judge(
        [{"loaded": True, "code": 18, "error": "NVML 18: Driver/library version mismatch"}], {}
    )
    assert (check.judgement, check.cause) == ("fail", "driver.state")
    [check] = check_gpu_health.judge([{"loaded": False, "error": "no such file"}], {})
    assert check.judgement == "warn"


@pytest.mark.parametrize(
    ("answer", "judgement", "cause"),
    [
        ({"missing": True}, "skip", None),
        ({"hung": 8.0}, "fail", "hang.cuda_init"),
        ({"status": 18, "said": "Failed to initialize NVML: Driver/library version mismatch"}, "fail", "driver.state"),
        ({"status": 0, "said": "GPU 0: A\nGPU 1: B\n"}, "ok", None),
    ],
)
def test_nvidia_smi(answer: dict[str, Any], judgement: str, cause: str | None) -> None:
    [check] = check_gpu_health.judge_smi([answer], {})
    assert (check.judgement, check.cause) == (judgement, cause)


def test_the_kernels_log() -> None:
    lines = [
        "[1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.",
        "[2.0] traps: python[77] trap invalid opcode ip:7f sp:7f error:0 in libtorch_cpu.so[7f0000+1000]",
        "[3.0] Out of memory: Killed process 99 (python) total-vm:8kB, anon-rss:2048kB, file-rss:0kB",
    ]
    checks = {check.name: check for check in check_gpu_health.judge_log([{"lines": lines, "missing": None}], {})}
    assert [(check.judgement, check.cause) for check in checks.values()] == [
        ("fail", "hw.gpu"), ("warn", "build.cpu_isa"), ("warn", "host.oom_kill"),
    ]  # fmt: skip
    assert "libtorch_cpu.so" in checks["kernel log: SIGILL"].observed
    assert "python, which held 2 MiB" in checks["kernel log: memory"].observed
    application = ["[1.0] NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=python, MMU Fault"]
    [check] = check_gpu_health.judge_log([{"lines": application, "missing": None}], {})
    assert (check.judgement, check.cause) == ("warn", "hw.xid_app")
    [check] = check_gpu_health.judge_log([{"lines": [], "missing": None}], {})
    assert check.judgement == "ok"
    [check] = check_gpu_health.judge_log([{"lines": [], "missing": "closed"}], {})
    assert (check.judgement, check.observed) == ("skip", "closed")


def test_without_a_card_nothing_is_asked() -> None:
    none = {"driver": [{"kernel": {"cards": [], "nodes": {}, "dxg": False}}, {"cuda": {"loaded": False}}]}
    assert check_gpu_health.no_card(none) == "no NVIDIA GPU on this machine"
    assert check_gpu_health.no_card({"driver": [{"kernel": {"cards": ["x"], "nodes": {}, "dxg": False}}]}) is None
    assert check_gpu_health.no_card({}) is None  # the driver hung: NVML may still answer
