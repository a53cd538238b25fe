"""What the compiler says of kernels: its own output, and a real run of it where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ocrlab.debug.diagnosis.cuda_kernels import launch_limits

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


def test_other_output_is_passed_over() -> None:
    assert launch_limits.parse("") == launch_limits.parse("ninja: build stopped\nptxas fatal : no input\n") == []
    noisy = PRINTED.replace("ptxas info    : Compile time = 45.526 ms\n", "[1/2] c++ -o x.o\nwarning: unused\n")
    assert launch_limits.parse(noisy) == launch_limits.parse(PRINTED)
    failed = "ptxas info    : Compiling entry function 'k' for 'sm_86'\nptxas error   : Entry function uses too much\n"
    assert launch_limits.parse(failed) == []


def test_the_compiler_still_prints_it_so(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    source = 'extern "C" __global__ void k(float* y) { __shared__ float s[64]; s[threadIdx.x] = y[threadIdx.x];'
    (tmp_path / "k.cu").write_text(source + " __syncthreads(); y[threadIdx.x] = s[63 - threadIdx.x]; }")
    command = [nvcc, "-arch=sm_80", "-Xptxas", "-v", "-cubin", "k.cu", "-o", "k.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    [kernel] = launch_limits.parse(done.stdout + done.stderr)
    assert (kernel.name, kernel.target, kernel.static_shared) == ("k", "sm_80", 256)
    assert 1 < kernel.registers < 64
