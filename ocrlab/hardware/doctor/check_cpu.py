"""Step 3: the processor's instruction sets against what the libraries dispatch, and illegal instructions of late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_imports import torch_facts
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, skip, warn
from ocrlab.records import Check

# What torch calls its kernels (aten/src/ATen/native/DispatchStub) -> the flag of /proc/cpuinfo that they need.
DISPATCHES = {"AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AVX10": "avx512f", "AMX": "amx_tile"}
CAPS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES",
        "MKL_ENABLE_INSTRUCTIONS", "OPENCV_CPU_DISABLE", "OPENBLAS_CORETYPE")  # fmt: skip


def asks(options: Options) -> list[Probe]:
    """Return the ask of the processor, which reads two files."""
    return [
        Probe(3, "processor", PROBES / "resource_limits.py", "processor", judge, 10, own=True, after=("import torch",))
    ]


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on instruction sets, on what is dispatched, and on what switches it off."""
    [answer] = answers
    flags = set(answer["flags"])
    yield instructions(answer, flags)
    yield dispatched(torch_facts(facts).get("dispatched"), flags, answer)
    yield from numpy(facts)
    caps = {name: answer["variables"][name] for name in CAPS if answer["variables"].get(name)}
    if caps:
        observed = ", ".join(f"{name}={value}" for name, value in caps.items())
        yield warn("instruction sets switched off", observed, "unset, unless on purpose", f"unset {' '.join(caps)}")


def numpy(facts: Facts) -> Iterator[Check]:
    """Yield what NumPy dispatches, from the same process as torch."""
    for features in (answer["numpy"] for answer in facts.get("import torch", ()) if answer.get("numpy")):
        newest = [
            name for name in features["has"] if name.startswith(("AVX2", "AVX512_", "X86_V", "NEON", "SVE", "ASIMD"))
        ]
        observed = f"NumPy finds {', '.join(newest) or 'nothing beyond its baseline'}"
        lacks = sorted(set(features["baseline"]) - set(features["has"]))
        if lacks:
            need = f"its baseline {', '.join(lacks)}"
            yield fail("NumPy's kernels", observed, need, "pip install --no-binary numpy numpy", "build.cpu_isa")
        else:
            yield ok("NumPy's kernels", observed)


def instructions(answer: dict[str, Any], flags: set[str]) -> Check:
    """Judge whether the processor has what today's wheels take for granted."""
    name = answer["name"] or answer["machine"]
    if answer["machine"] not in ("x86_64", "AMD64"):
        return ok("instruction sets", f"{name}, {answer['machine']}: its wheels ask for nothing special")
    have = [flag for flag in ("sse4_2", "avx", "avx2", "fma", "avx512f", "amx_tile") if flag in flags]
    observed = f"{name}: {', '.join(have) or 'none of sse4_2, avx, avx2'}"
    hidden = "; a virtual machine hides it" if "hypervisor" in flags else ""
    do = "in a virtual machine pass the host's processor through (qemu -cpu host)"
    if not flags:
        return skip("instruction sets", "/proc/cpuinfo lists no flags")
    if "sse4_2" not in flags:
        return fail("instruction sets", observed + hidden, "sse4_2: NumPy and torch die of SIGILL", do, "build.cpu_isa")
    if "avx2" not in flags:
        return warn("instruction sets", observed + hidden, "avx2: torch is several times slower", do, "build.cpu_isa")
    return ok("instruction sets", observed)


def dispatched(capability: str | None, flags: set[str], answer: dict[str, Any]) -> Check:
    """Judge what torch dispatches at run time against what the processor has."""
    if not capability:
        return skip("dispatched kernels", "torch did not say, see step 2")
    flag = DISPATCHES.get(capability)
    observed = f"torch uses its {capability} kernels (chosen at run time: this says nothing of how it was compiled)"
    if flag and flags and flag not in flags and answer["machine"] == "x86_64":
        need, do = f"a processor with {flag}", "unset ATEN_CPU_CAPABILITY"
        return fail("dispatched kernels", f"{observed}, but this processor lacks {flag}", need, do, "build.cpu_isa")
    return ok("dispatched kernels", observed)
