"""From the bytes of an illegal instruction to what is missing: which instruction set, and does this processor have it.

The bytes are read as in volume 2 of the Intel manual: prefixes, then VEX (C4, C5), EVEX (62) or legacy opcodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ocrlab.hardware import host

VEX_AMX = {0x49, 0x4B, 0x5C, 0x5E, 0x6C}  # in map 0F38: tile configuration, loads, and tile products
VEX_FMA = {*range(0x96, 0xA0), *range(0xA6, 0xB0), *range(0xB6, 0xC0)}  # in map 0F38
VEX_BMI = {0xF2, 0xF3, 0xF5, 0xF6, 0xF7}  # in map 0F38
VEX_VNNI = {0x50, 0x51, 0x52, 0x53}  # in map 0F38, without EVEX: AVX-VNNI
PREFIXES = {0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0xF0}
CAPS = (  # part of a library's name -> what keeps it from dispatching newer instructions, where it dispatches at all
    ("torch", "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41"),
    ("dnnl", "ONEDNN_MAX_CPU_ISA=SSE41"),
    ("openblas", "OPENBLAS_CORETYPE=Nehalem"),
    ("mkl", "MKL_ENABLE_INSTRUCTIONS=SSE4_2"),
    ("umath", "NPY_DISABLE_CPU_FEATURES='AVX2 FMA3 AVX512F AVX512_SKX'"),
    ("cv2", "OPENCV_CPU_DISABLE=AVX,AVX2,AVX512F"),
)


def name(code: bytes) -> tuple[str, str]:
    """Return the instruction set that an instruction of x86-64 belongs to, and the flag Linux has for it."""
    if code[:2] in (b"\x0f\x0b", b"\x0f\xb9", b"\x0f\xff"):
        return "ud2", ""
    if code[:1] == b"\x62":
        return "AVX-512 or AVX10", "avx512f"
    if code[:1] == b"\xc5":
        return "AVX", "avx"
    if code[:1] == b"\xc4" and len(code) > 3:
        return _vex(code[1] & 0x1F, code[3])
    rest, prefixes = _without_prefixes(code)
    if rest[:2] == b"\x0f\xb8" and 0xF3 in prefixes:
        return "POPCNT", "popcnt"
    if rest[:2] in (b"\x0f\xbd", b"\x0f\xbc") and 0xF3 in prefixes:
        return "LZCNT or BMI1", "abm" if rest[1] == 0xBD else "bmi1"
    if rest[:2] == b"\x0f\x38" and len(rest) > 2:
        return _three_byte(rest[2], prefixes)
    if rest[:2] == b"\x0f\x3a":
        return "SSE4.1", "sse4_1"
    return "unknown", ""


def _vex(opcode_map: int, opcode: int) -> tuple[str, str]:
    if opcode_map == 2:
        if opcode in VEX_AMX:
            return "AMX", "amx_tile"
        if opcode in VEX_FMA:
            return "FMA", "fma"
        if opcode in VEX_BMI:
            return "BMI", "bmi2"
        if opcode in VEX_VNNI:
            return "AVX-VNNI", "avx_vnni"
    return ("AVX", "avx") if opcode_map == 1 else ("AVX2", "avx2")


def _three_byte(opcode: int, prefixes: set[int]) -> tuple[str, str]:
    if opcode in (0xF0, 0xF1):
        return ("SSE4.2", "sse4_2") if 0xF2 in prefixes else ("MOVBE", "movbe")
    if 0xDB <= opcode <= 0xDF:
        return "AES", "aes"
    if 0xC8 <= opcode <= 0xCD:
        return "SHA", "sha_ni"
    return ("SSSE3", "ssse3") if opcode <= 0x0B or 0x1C <= opcode <= 0x1E else ("SSE4", "sse4_1")


def _without_prefixes(code: bytes) -> tuple[bytes, set[int]]:
    """Return an instruction after its legacy and REX prefixes, and the prefixes."""
    at = 0
    while at < len(code) and (code[at] in PREFIXES or 0x40 <= code[at] <= 0x4F):
        at += 1
    return code[at:], set(code[:at])


def explain(instruction: dict[str, Any], frames: list[str], flags: set[str] | None = None) -> tuple[str, str, str, str]:
    """Return for an illegal instruction what was seen, what is needed, what to do, and the cause.

    `told` is {"library", "offset", "code"} of `boot.py`, or empty where the process could not tell.
    """
    flags = host.cpu_flags() if flags is None else flags
    place = f"; Python was in {frames[0]}" if frames else ""
    if not instruction:
        observed = f"an illegal instruction{place}; the kernel log names the library: dmesg | grep 'invalid opcode'"
        return observed, "a build for this processor", "dmesg | grep 'invalid opcode'", "build.cpu_isa"
    library, raw = Path(str(instruction.get("library"))).name, str(instruction.get("code", ""))
    at = f"{library}+{int(instruction.get('offset', 0)):#x}"
    kind, flag = name(bytes.fromhex(raw))
    observed = f"illegal instruction {' '.join(raw[i : i + 2] for i in range(0, min(len(raw), 16), 2))} in {at}"
    if kind == "ud2":
        observed += f": ud2, a trap that the library sets on purpose where it must never come{place}"
        return observed, "a library that does not trap", f"reinstall what {library} belongs to", "native.abort"
    has = bool(flag) and flag in flags
    if kind != "unknown":
        observed += f", an {kind} instruction; this processor {'has' if has else 'lacks'} {flag}"
    need = f"a build of {library} for this processor" + (f", or a processor with {flag}" if flag else "")
    caps = next((cap for part, cap in CAPS if part in library), "")
    do = "in a virtual machine pass the host's processor through (qemu -cpu host); else build the library from source"
    if caps and not has:
        do = f"try: env {caps} python ...; {do}"
    return observed + place, need, do, "build.cpu_isa"
