"""WSL2, judged from what the probe read of machines that are not here."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.hardware.doctor import check_wsl
from ocrlab.records import Check

GIB = 1 << 30


def judged(**more: Any) -> dict[str, Check]:
    answer = {
        "wsl": 2, "release": "5.15.153.1-microsoft-standard-WSL2", "dxg": True, "foreign": [], "swap": 4 * GIB,
        "libcuda": ["/usr/lib/wsl/lib/libcuda.so.1"], "memory": 16 * GIB, "config": {}, "windows_folder": False, **more,
    }  # fmt: skip
    return {check.name: check for check in check_wsl.judge([answer], {})}


def test_elsewhere_and_a_healthy_wsl2() -> None:
    assert judged(wsl=0)["WSL2"].judgement == "skip"
    checks = judged()
    assert {check.judgement for check in checks.values()} == {"ok"}
    assert "about 8 GiB" in checks["WSL2 pinned memory"].observed


@pytest.mark.parametrize(
    ("more", "name", "judgement", "cause"),
    [
        ({"wsl": 1}, "WSL2", "fail", None),
        ({"dxg": False}, "WSL2", "warn", "driver.none"),
        ({"release": "4.19.104-microsoft-standard"}, "WSL2", "warn", "wsl.limits"),
        ({"foreign": ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]}, "WSL2 libcuda", "fail", "driver.state"),
        ({"libcuda": []}, "WSL2 libcuda", "fail", "driver.none"),
        ({"memory": 4 * GIB}, "WSL2 memory", "warn", "wsl.limits"),
        ({"windows_folder": True}, "WSL2 disk", "warn", None),
    ],
)
def test_what_is_wrong(more: dict[str, Any], name: str, judgement: str, cause: str | None) -> None:
    check = judged(**more)[name]
    assert (check.judgement, check.cause) == (judgement, cause)
    assert check.do
