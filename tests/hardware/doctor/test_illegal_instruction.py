"""The bytes of an illegal instruction, named."""

from __future__ import annotations

import pytest

from ocrlab.hardware.doctor import illegal_instruction


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
    assert illegal_instruction.name(bytes.fromhex(code)) == (kind, flag)


def test_missing_present_and_on_purpose() -> None:
    instruction = {"library": "/x/libtorch_cpu.so", "offset": 0x1234, "code": "62f17c4858c1"}
    observed, need, do, cause = illegal_instruction.explain(instruction, ["f (a.py:1)"], {"avx2"})
    assert "62 f1 7c 48 58 c1 in libtorch_cpu.so+0x1234" in observed
    assert "lacks avx512f" in observed and "f (a.py:1)" in observed
    assert "libtorch_cpu.so" in need and "ATEN_CPU_CAPABILITY" in do
    assert cause == "build.cpu_isa"
    observed, *_ = illegal_instruction.explain(instruction, [], {"avx512f"})
    assert "has avx512f" in observed
    observed, _, _, cause = illegal_instruction.explain({**instruction, "code": "0f0b"}, [], set())
    assert "on purpose" in observed
    assert cause == "native.abort"
    observed, _, do, cause = illegal_instruction.explain({}, [], set())
    assert "dmesg" in do
    assert cause == "build.cpu_isa"
