"""Limits of kernel launches, what the compiler says of kernels, and Nsight Compute's tables."""

import importlib.util
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ocrlab.debug.diagnosis.cuda_kernels import launch_limits, nsight
from ocrlab.debug.diagnosis.cuda_kernels.launch_limits import Launch

AMPERE = launch_limits.of_capability("8.6")


def broken(launch: Launch, limits: launch_limits.Limits = AMPERE) -> dict[str, str]:
    return {check.name: check.observed for check in launch_limits.check(launch, limits) if check.judgement == "fail"}


@pytest.mark.parametrize(("launch", "name", "error"), [
    (Launch(block=(32, 64, 1)), "threads per block", "(9)"),
    (Launch(block=(1, 1, 65)), "block.z", "(9)"),
    (Launch(grid=(1, 65536, 1)), "grid.y", "(9)"),
    (Launch(grid=(0, 1, 1)), "grid.x", "(9)"),
    (Launch(block=(1024, 1, 1), registers=72), "registers per block", "(701)"),
    (Launch(block=(32, 1, 1), registers=256), "registers per thread", "(701)"),
    (Launch(dynamic_shared=101 * 1024), "shared memory per block", "(1)"),
])  # fmt: skip
def test_the_broken_limit_is_named(launch: Launch, name: str, error: str) -> None:
    errors = broken(launch)
    assert list(errors) == [name]
    assert error in errors[name]


def test_shared_memory_above_the_default_needs_an_opt_in() -> None:
    checks = {check.name: check for check in launch_limits.check(Launch(dynamic_shared=64 * 1024), AMPERE)}
    assert checks["opt-in shared memory"].judgement == "warn"
    assert "cudaFuncSetAttribute" in checks["opt-in shared memory"].do
    assert "opt-in shared memory" not in {check.name for check in launch_limits.check(Launch(), AMPERE)}


def test_a_cooperative_launch_must_be_resident() -> None:
    small = replace(AMPERE, sm_count=28)
    fits = 28 * min(launch_limits.resident_blocks(Launch(block=(256, 1, 1)), small).values())
    assert broken(Launch((fits, 1, 1), (256, 1, 1), cooperative=True), small) == {}
    [error] = broken(Launch((fits + 1, 1, 1), (256, 1, 1), cooperative=True), small).values()
    assert "(720)" in error


def test_limits_of_a_real_device_win_over_the_table() -> None:
    limits = launch_limits.of_device({"capability": "8.6", "sm_count": 28, "threads_per_block": 512})
    assert (limits.sm_count, limits.threads_per_block, limits.blocks_per_sm) == (28, 512, 16)


HARNESS = """
#include <cstdio>
#include <cstring>
#include <climits>
#include "cuda_occupancy.h"
int main() {
    int major, minor, threads, regs_block, regs_sm, block, regs; long shared_block, shared_sm, optin, reserved, st, dy;
    while (scanf("%d %d %d %ld %ld %ld %ld %d %d %ld %ld", &major, &minor, &threads, &shared_block, &shared_sm, &optin,
                 &reserved, &block, &regs, &st, &dy) == 11) {
        cudaOccDeviceProp p; p.computeMajor = major; p.computeMinor = minor; p.maxThreadsPerBlock = 1024;
        p.maxThreadsPerMultiprocessor = threads; p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536;
        p.warpSize = 32; p.sharedMemPerBlock = shared_block; p.sharedMemPerMultiprocessor = shared_sm; p.numSms = 1;
        p.sharedMemPerBlockOptin = optin; p.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes a; memset(&a, 0, sizeof a); a.maxThreadsPerBlock = 1024; a.numRegs = regs;
        a.sharedSizeBytes = st; a.partitionedGCConfig = PARTITIONED_GC_OFF;
        a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; a.maxDynamicSharedSizeBytes = optin - st; a.numBlockBarriers = 0;
        cudaOccDeviceState s; cudaOccResult r; memset(&r, 0, sizeof r);
        int code = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, block, dy);
        printf("%d %d\\n", code, r.activeBlocksPerMultiprocessor);
    }
}
"""


def calculator() -> Path | None:
    """Return NVIDIA's occupancy calculator, a header without dependencies that comes with triton."""
    spec = importlib.util.find_spec("triton")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return next((header for place in places for header in place.glob("backends/nvidia/include/cuda_occupancy.h")), None)


def test_occupancy_is_that_of_nvidias_calculator(tmp_path: Path) -> None:
    header, compiler = calculator(), shutil.which("g++")
    if header is None or compiler is None:
        pytest.skip("needs g++ and cuda_occupancy.h, which triton brings")
    (tmp_path / "harness.cpp").write_text(HARNESS)
    subprocess.run(
        [compiler, "-w", f"-I{header.parent}", "harness.cpp", "-o", "harness"], cwd=tmp_path, check=True, timeout=120
    )
    draw, cases = random.Random(7), []
    names = [name for name in launch_limits.LIMITS if name not in ("5.0", "5.2", "6.1")]
    for _ in range(3000):
        limits = launch_limits.of_capability(draw.choice(names))
        static = draw.choice([0, draw.randrange(0, 48 * 1024)])
        dynamic = draw.choice([0, draw.randrange(0, limits.shared_per_block - static)])
        block = (draw.randrange(1, 1025), 1, 1)
        cases.append((limits, Launch((1, 1, 1), block, draw.randrange(16, 256), static, dynamic)))
    lines = "".join(
        f"{at.capability.replace('.', ' ')} {at.threads_per_sm} {at.shared_default} {at.shared_per_sm} "
        f"{at.shared_per_block} {at.shared_reserved} {launch.threads} {launch.registers} {launch.static_shared} "
        f"{launch.dynamic_shared}\n"
        for at, launch in cases
    )
    done = subprocess.run(["./harness"], cwd=tmp_path, input=lines, capture_output=True, text=True, check=True)
    expected = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(expected) == len(cases)
    unknown = {limits.capability for (limits, _), (code, _) in zip(cases, expected, strict=True) if code == 2}
    assert len(unknown) <= 3, "GPUs that came after this triton's header"
    for (limits, launch), (code, blocks) in zip(cases, expected, strict=True):
        if limits.capability in unknown:
            continue
        assert code == 0
        ours = 0 if broken(launch, limits) else min(launch_limits.resident_blocks(launch, limits).values())
        assert ours == blocks, (limits, launch)


# Printed by nvcc 13.0 -arch=sm_86 -Xptxas -v for two own kernels.
PRINTED = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3bigILi100EEvPd' for 'sm_86'
ptxas info    : Function properties for _Z3bigILi100EEvPd
    864 bytes stack frame, 56 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 864 bytes cumulative stack size, 360 bytes cmem[0]
ptxas info    : Compile time = 45.526 ms
ptxas info    : Compiling entry function 'saxpy' for 'sm_86'
ptxas info    : Function properties for saxpy
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 384 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 2.476 ms
"""


def test_every_kernel_is_listed() -> None:
    big, saxpy = launch_limits.parse(PRINTED)
    assert big == launch_limits.Kernel("_Z3bigILi100EEvPd", "sm_86", 255, 0, 864, 56, 52)
    assert saxpy == launch_limits.Kernel("saxpy", "sm_86", 12, 384)


LOADS = nsight.RATIO.format("global_op_ld")
RAW = f'''==PROF== Connected to process 4711
==PROF== Profiling "copy" - 0: 0%....100% - 8 passes
"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size","{LOADS}","gpu__time_duration.sum"
"","","","","","","","nsecond"
"0","4711","python","copy(float *)","(256, 1, 1)","(64, 1, 1)","4","1,234"
"1","4711","python","transpose(float *)","(32, 32, 1)","(8, 8, 1)","32","9,876.5"
'''
SECTORS, REQUESTS = nsight.SECTORS.format("global_op_st"), nsight.REQUESTS.format("global_op_st")
DETAILS = f'''"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","rows(float *)","Command line profiler metrics","{SECTORS}","sector","131.072"
"0","rows(float *)","Command line profiler metrics","{REQUESTS}","request","16,384"
"0","rows(float *)","Command line profiler metrics","{nsight.CONFLICTS.format("ld")}","","31744"
"0","rows(float *)","Command line profiler metrics","{nsight.INSTRUCTIONS.format("ld")}","inst","1024"
'''


def test_the_raw_page() -> None:
    copy, transpose = nsight.read(RAW)
    assert (copy.kernel, copy.metrics[LOADS]) == ("copy(float *)", 4.0)
    assert transpose.metrics["gpu__time_duration.sum"] == 9876.5
    assert "4.0 sectors per request, coalesced" in nsight.describe(copy)[0]
    assert "32.0 sectors per request, scattered" in nsight.describe(transpose)[0]


def test_the_details_page_and_totals() -> None:
    text = DETAILS.replace('"131.072"', '"131,072"')
    stores, banks = nsight.describe(nsight.read(text)[0])
    assert "global stores: 8.0 sectors per request, strided or misaligned" in stores
    assert "31.00 extra wavefronts" in banks
    assert "pad the rows" in banks
