"""What became of a child, in words: its stage, its last output, its instruction, and what to do next."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.hardware.doctor import failed_probe
from ocrlab.hardware.doctor.probe_runner import ProbeResult

DUMP = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/site/packages/torch/nn/modules/conv.py", line 7 in forward
  File "/site/packages/torch/nn/modules/module.py", line 9 in _call
  File "<frozen importlib._bootstrap>", line 3 in _load
  File "/x/ocrlab/hardware/doctor/probe_child.py", line 4 in main
"""


def test_the_stack_is_that_of_the_program() -> None:
    assert failed_probe.stack(DUMP) == ["forward (nn/modules/conv.py:7)", "_call (nn/modules/module.py:9)"]
    assert failed_probe.stack("nothing") == []


def test_a_signal_with_its_stage_and_frame(ask: Any) -> None:
    ran = ProbeResult({"at": "a convolution"}, code=-11, errors=DUMP)
    [check] = failed_probe.checks(ask("answer", "smoke test"), ran)
    assert check.observed.startswith("died of SIGSEGV at a convolution")
    assert "forward (nn/modules/conv.py:7)" in check.observed


@pytest.mark.parametrize("cause", failed_probe.REMEDIES)
def test_a_hang_with_a_cause_has_its_remedy(cause: str, ask: Any) -> None:
    [check] = failed_probe.checks(ask("answer", hang=cause), ProbeResult(ended="deadline", seconds=9))
    assert (check.cause, check.do) == (cause, failed_probe.REMEDIES[cause])


@pytest.mark.parametrize(
    ("code", "kind", "flag"),
    [
        ("62f17c4858c1", "AVX-512 or AVX10", "avx512f"),  # vaddps zmm0, zmm0, zmm1
        ("c5fc58c1", "AVX", "avx"),  # vaddps ymm0, ymm0, ymm1
        ("c4e27518c0", "AVX2", "avx2"),  # vbroadcastss ymm0, xmm0
        ("c4e275b8c2", "FMA", "fma"),  # vfmadd231ps
        ("c4e2fbf7c0", "BMI", "bmi2"),  # shrx
        ("c4e27850c1", "AVX-VNNI", "avx_vnni"),  # vpdpbusd
        ("c4e27849c0", "AMX", "amx_tile"),  # tilerelease
        ("f30fb8c1", "POPCNT", "popcnt"),
        ("f3480fb8c1", "POPCNT", "popcnt"),
        ("f30fbdc1", "LZCNT or BMI1", "abm"),
        ("660f3817c0", "SSE4", "sse4_1"),  # ptest
        ("660f3800c1", "SSSE3", "ssse3"),  # pshufb
        ("f20f38f1c1", "SSE4.2", "sse4_2"),  # crc32
        ("0f38f007", "MOVBE", "movbe"),
        ("660f38dcc1", "AES", "aes"),  # aesenc
        ("660f3a0fc108", "SSE4.1", "sse4_1"),
        ("0f0b", "ud2", ""),
        ("", "unknown", ""),
        ("90", "unknown", ""),
    ],
)
def test_names(code: str, kind: str, flag: str) -> None:
    assert failed_probe.name(bytes.fromhex(code)) == (kind, flag)


def test_missing_present_and_on_purpose() -> None:
    instruction = {"library": "/x/libtorch_cpu.so", "offset": 0x1234, "code": "62f17c4858c1"}
    observed, need, do, cause = failed_probe.explain(instruction, ["f (a.py:1)"], {"avx2"})
    assert "62 f1 7c 48 58 c1 in libtorch_cpu.so+0x1234" in observed
    assert "lacks avx512f" in observed and "f (a.py:1)" in observed
    assert "libtorch_cpu.so" in need and "ATEN_CPU_CAPABILITY" in do
    assert cause == "build.cpu_isa"
    observed, *_ = failed_probe.explain(instruction, [], {"avx512f"})
    assert "has avx512f" in observed
    observed, _, _, cause = failed_probe.explain({**instruction, "code": "0f0b"}, [], set())
    assert "on purpose" in observed
    assert cause == "native.abort"
    observed, _, do, cause = failed_probe.explain({}, [], set())
    assert "dmesg" in do
    assert cause == "build.cpu_isa"
