"""Step 3: the processor's instruction sets against what the libraries dispatch, and illegal instructions of late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_imports import torch_facts
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Ask, Facts, Options, fail, ok, skip, warn
from ocrlab.records import Check

# What torch calls its kernels (aten/src/ATen/native/DispatchStub) -> the flag of /proc/cpuinfo that they need.
DISPATCHES = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AVX10": "avx512f", "AMX": "amx_tile"}
CAPS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES",
        "MKL_ENABLE_INSTRUCTIONS", "OPENCV_CPU_DISABLE", "OPENBLAS_CORETYPE")  # fmt: skip


def asks(options: Options) -> list[Ask]:
    """Return the ask of the processor, which reads two files."""
    return [
        Ask(3, "processor", PROBES / "resource_limits.py", "processor", judge, 10, own=True, after=("import torch",))
    ]


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on instruction sets, on what is dispatched, and on what switches it off."""
    [told] = answers
    flags = set(told["flags"])
    yield instructions(told, flags)
    yield dispatched(torch_facts(facts).get("dispatched"), flags, told)
    yield from numpy(facts)
    caps = {name: told["variables"][name] for name in CAPS if told["variables"].get(name)}
    if caps:
        seen = ", ".join(f"{name}={value}" for name, value in caps.items())
        yield warn("instruction sets switched off", seen, "unset, unless on purpose", f"unset {' '.join(caps)}")


def numpy(facts: Facts) -> Iterator[Check]:
    """Yield what NumPy dispatches, from the same process as torch."""
    for told in (answer["numpy"] for answer in facts.get("import torch", ()) if answer.get("numpy")):
        newest = [name for name in told["has"] if name.startswith(("AVX2", "AVX512_", "X86_V", "NEON", "SVE", "ASIMD"))]
        seen = f"NumPy finds {', '.join(newest) or 'nothing beyond its baseline'}"
        lacks = sorted(set(told["baseline"]) - set(told["has"]))
        if lacks:
            need = f"its baseline {', '.join(lacks)}"
            yield fail("NumPy's kernels", seen, need, "pip install --no-binary numpy numpy", "build.cpu_isa")
        else:
            yield ok("NumPy's kernels", seen)


def instructions(told: dict[str, Any], flags: set[str]) -> Check:
    """Judge whether the processor has what today's wheels take for granted."""
    name = told["name"] or told["machine"]
    if told["machine"] not in ("x86_64", "AMD64"):
        return ok("instruction sets", f"{name}, {told['machine']}: its wheels ask for nothing special")
    have = [flag for flag in ("sse4_2", "avx", "avx2", "fma", "avx512f", "amx_tile") if flag in flags]
    seen = f"{name}: {', '.join(have) or 'none of sse4_2, avx, avx2'}"
    hidden = "; a virtual machine hides it" if "hypervisor" in flags else ""
    do = "in a virtual machine pass the host's processor through (qemu -cpu host)"
    if not flags:
        return skip("instruction sets", "/proc/cpuinfo lists no flags")
    if "sse4_2" not in flags:
        return fail("instruction sets", seen + hidden, "sse4_2: NumPy and torch die of SIGILL", do, "build.cpu_isa")
    if "avx2" not in flags:
        return warn("instruction sets", seen + hidden, "avx2: torch is several times slower", do, "build.cpu_isa")
    return ok("instruction sets", seen)


def dispatched(capability: str | None, flags: set[str], told: dict[str, Any]) -> Check:
    """Judge what torch dispatches at run time against what the processor has."""
    if not capability:
        return skip("dispatched kernels", "torch did not say, see step 2")
    flag = DISPATCHES.get(capability)
    seen = f"torch uses its {capability} kernels (chosen at run time: this says nothing of how it was compiled)"
    if flag and flags and flag not in flags and told["machine"] == "x86_64":
        need, do = f"a processor with {flag}", "unset ATEN_CPU_CAPABILITY"
        return fail("dispatched kernels", f"{seen}, but this processor lacks {flag}", need, do, "build.cpu_isa")
    return ok("dispatched kernels", seen)
