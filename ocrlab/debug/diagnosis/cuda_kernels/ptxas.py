"""What `nvcc -Xptxas -v` (or `ptxas -v`) says of each kernel: registers, shared memory, stack, spills."""

from __future__ import annotations

import re
from dataclasses import dataclass

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")  # up to CUDA 5 as 384+16: the second number was the arguments
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel: its mangled name and target, registers of a thread, bytes of shared memory of a block."""

    name: str
    target: str
    registers: int
    static_shared: int = 0
    stack: int = 0  # bytes of local memory of a thread
    spill_stores: int = 0  # bytes
    spill_loads: int = 0  # bytes


def parse(text: str) -> list[Kernel]:
    """Return every kernel of a compiler's output, in its order; what is not ptxas's is passed over."""
    kernels = []
    parts = ENTRY.split(text)
    for name, target, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        used = USED.search(rest)
        if used is None:  # the compilation failed
            continue
        # Functions that the kernel calls have a stack line as well; the kernel's own comes last before `Used`.
        stacks = STACK.findall(rest[: used.start()])
        stack, stores, loads = (int(number) for number in (stacks[-1] if stacks else (0, 0, 0)))
        line = rest[used.start() :].partition("\n")[0]
        shared = SHARED.search(line)
        kernels.append(Kernel(name, target, int(used[1]), int(shared[1]) if shared else 0, stack, stores, loads))
    return kernels
