"""Instruction sets against what is dispatched."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.hardware.doctor import check_cpu
from ocrlab.records import Check


def judged(flags: str, dispatched: str | None = "AVX2", machine: str = "x86_64", **variables: str) -> dict[str, Check]:
    answer = {"name": "CPU", "machine": machine, "flags": flags.split(), "cores": 2, "variables": variables}
    torch: Any = {"dispatched": dispatched} if dispatched else {}
    facts = {"import torch": [{"torch": torch}]}
    return {check.name: check for check in check_cpu.judge([answer], facts)}


@pytest.mark.parametrize(
    ("flags", "judgement"), [("sse4_2 avx avx2", "ok"), ("sse4_2 avx", "warn"), ("sse2", "fail"), ("", "skip")]
)
def test_instruction_sets(flags: str, judgement: str) -> None:
    check = judged(flags)["instruction sets"]
    assert check.judgement == judgement
    assert check.cause == ("build.cpu_isa" if judgement in ("warn", "fail") else None)


def test_another_architecture_is_no_fault() -> None:
    assert {check.judgement for check in judged("", "DEFAULT", "aarch64").values()} == {"ok"}


def test_dispatch() -> None:
    check = judged("sse4_2 avx avx2 avx512f", "AVX512")["dispatched kernels"]
    assert check.judgement == "ok"
    assert "nothing of how it was compiled" in check.observed
    check = judged("sse4_2 avx avx2", "AVX512")["dispatched kernels"]
    assert (check.judgement, check.cause) == ("fail", "build.cpu_isa")
    assert judged("sse4_2", None)["dispatched kernels"].judgement == "skip"


def test_numpy() -> None:
    answer = {"name": "CPU", "machine": "x86_64", "flags": ["avx2"], "cores": 2, "variables": {}}
    for has, judgement in ((["X86_V2", "AVX2"], "ok"), (["AVX2"], "fail")):
        facts = {"import torch": [{"torch": {}, "numpy": {"has": has, "baseline": ["X86_V2"], "disabled": ""}}]}
        checks = {check.name: check for check in check_cpu.judge([answer], facts)}
        assert checks["NumPy's kernels"].judgement == judgement


def test_what_switches_instruction_sets_off() -> None:
    check = judged("avx2", ATEN_CPU_CAPABILITY="default", CPU_OTHER="x")["instruction sets switched off"]
    assert (check.judgement, check.do) == ("warn", "unset ATEN_CPU_CAPABILITY")
