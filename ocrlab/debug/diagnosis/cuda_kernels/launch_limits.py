"""A CUDA launch configuration against the limits of a device, with the registers and shared memory that ptxas reports.

The table is that of the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the register and
shared-memory arithmetic is that of NVIDIA's occupancy calculator, which a test runs for comparison.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ocrlab.errors import ConfigError
from ocrlab.records import Check

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


KIB = 1024
WARP = 32  # threads, on every device so far
REGISTERS_PER_WARP = 256  # a warp's registers are allocated in units of so many
PARTITIONS = 4  # of a multiprocessor; the hardware checks registers as if a block filled all of them


@dataclass(frozen=True)
class Limits:
    """What one device allows: threads, blocks, 32-bit registers, shared memory in bytes, SM = multiprocessor."""

    capability: str
    threads_per_sm: int
    blocks_per_sm: int
    shared_per_sm: int
    shared_per_block: int  # after the kernel has opted in
    shared_default: int = 48 * KIB  # without opting in
    shared_reserved: int = KIB  # taken by the driver in every block
    shared_unit: int = 128
    registers_per_block: int = 64 * KIB
    registers_per_sm: int = 64 * KIB
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    block: tuple[int, int, int] = (1024, 1024, 64)
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    sm_count: int | None = None  # only a real device has it


LIMITS = {  # capability: threads and blocks of a multiprocessor, KiB of shared memory of it and of a block
    "5.0": (2048, 32, 64, 48),
    "5.2": (2048, 32, 96, 48),
    "6.1": (2048, 32, 96, 48),
    "7.0": (2048, 32, 96, 96),
    "7.5": (1024, 16, 64, 64),
    "8.0": (2048, 32, 164, 163),
    "8.6": (1536, 16, 100, 99),
    "8.7": (1536, 16, 164, 163),
    "8.9": (1536, 24, 100, 99),
    "9.0": (2048, 32, 228, 227),
    "10.0": (2048, 32, 228, 227),
    "10.3": (2048, 32, 228, 227),
    "12.0": (1536, 24, 100, 99),
    "12.1": (1536, 24, 100, 99),
}


@dataclass(frozen=True)
class Launch:
    """One launch: grid and block as (x, y, z), registers of a thread, shared memory of a block in bytes."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    registers: int = 0
    static_shared: int = 0
    dynamic_shared: int = 0
    cooperative: bool = False

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return math.prod(self.block)

    @property
    def shared(self) -> int:
        """Shared memory of one block in bytes, without what the driver reserves."""
        return self.static_shared + self.dynamic_shared


def of_device(driver_limits: Mapping[str, Any]) -> Limits:
    """Return the limits that the driver of a real device reported, see `ocrlab.cli.kernel`."""
    capability = str(driver_limits["capability"])
    base = of_capability(capability) if capability in LIMITS else Limits(capability, 0, 0, 0, 0)
    return replace(base, **{name: value for name, value in driver_limits.items() if name != "capability"})


def of_capability(capability: str) -> Limits:
    """Return the limits of a compute capability (8.6, sm_86); raises ConfigError for one that is not in the table."""
    words = capability.lower().removeprefix("sm_").removeprefix("compute_").rstrip("af")
    dotted = words if "." in words else f"{words[:-1]}.{words[-1:]}"
    if dotted not in LIMITS:
        raise ConfigError(f"Compute capability {capability!r} is not in the table", need=f"one of {', '.join(LIMITS)}")
    threads, blocks, shared_sm, shared_block = LIMITS[dotted]
    limits = Limits(dotted, threads, blocks, shared_sm * KIB, shared_block * KIB)
    return limits if float(dotted) >= 8 else replace(limits, shared_reserved=0, shared_unit=256)


INVALID = "cudaErrorInvalidConfiguration (9)"
TOO_LARGE = f"{INVALID}, or cudaErrorInvalidValue (1)"  # the second one measured on H200 with CUDA 13, 2026-11-27
RESOURCES = "cudaErrorLaunchOutOfResources (701), too many resources requested for launch"
COOPERATIVE = "cudaErrorCooperativeLaunchTooLarge (720)"
CAUSE = "kernel.launch_resources"


def check(launch: Launch, limits: Limits) -> list[Check]:
    """Return one check a limit; a fail names the limit, by how much it is broken, and the error that CUDA raises."""
    checks = [*_dimensions("grid", launch.grid, limits.grid), *_dimensions("block", launch.block, limits.block)]
    do = "Make the block smaller"
    checks.append(_at_most("threads per block", launch.threads, limits.threads_per_block, TOO_LARGE, do))
    checks += _registers(launch, limits) + _shared(launch, limits)
    if not any(check_.judgement == "fail" for check_ in checks):
        checks += _resident(launch, limits)
    return checks


def resident_blocks(launch: Launch, limits: Limits) -> dict[str, int]:
    """Return how many blocks fit on one multiprocessor by each limit; the smallest is what will run at once."""
    warps = -(-launch.threads // WARP)
    fits = {"threads": limits.threads_per_sm // (warps * WARP), "blocks": limits.blocks_per_sm}
    if launch.registers:
        of_warp = _up(launch.registers * WARP, REGISTERS_PER_WARP)
        fits["registers"] = limits.registers_per_sm // PARTITIONS // of_warp * PARTITIONS // warps
    taken = _up(launch.shared + limits.shared_reserved, limits.shared_unit)
    if taken:
        fits["shared memory"] = limits.shared_per_sm // taken
    return fits


def _dimensions(name: str, size: tuple[int, int, int], limits: tuple[int, int, int]) -> list[Check]:
    checks = []
    error = TOO_LARGE if name == "block" else INVALID
    for axis, value, limit in zip("xyz", size, limits, strict=True):
        if value < 1:
            do = "Return early where there is nothing to do: an empty tensor makes an empty grid"
            checks.append(Check(f"{name}.{axis}", "fail", f"{value}: {INVALID}", "at least 1", do, cause=CAUSE))
        else:
            do = "Use x for the long axis, or let each thread loop (grid-stride loop)"
            checks.append(_at_most(f"{name}.{axis}", value, limit, error, do))
    return checks


def _registers(launch: Launch, limits: Limits) -> list[Check]:
    if not launch.registers:
        do = "Compile with -Xptxas -v and give its output as --ptxas FILE"
        return [Check("registers", "skip", "not given", do=do)]
    warps = _up(-(-launch.threads // WARP), PARTITIONS)
    used = _up(launch.registers * WARP, REGISTERS_PER_WARP) * warps
    do = f"Compile with __launch_bounds__({launch.threads}) or -maxrregcount, or make the block smaller"
    return [
        _at_most("registers per thread", launch.registers, limits.registers_per_thread, RESOURCES, do),
        _at_most("registers per block", used, limits.registers_per_block, RESOURCES, do),
    ]


def _shared(launch: Launch, limits: Limits) -> list[Check]:
    most = limits.shared_per_block
    do = "Use smaller tiles or fewer stages"
    checks = [_at_most("shared memory per block", launch.shared, most, "cudaErrorInvalidValue (1)", do, " bytes")]
    if limits.shared_default < launch.shared <= most:
        need = f"{limits.shared_default} bytes, or a kernel that has opted in to more"
        do = f"cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, {launch.dynamic_shared})"
        usage = f"{launch.shared} bytes: cudaErrorInvalidValue (1) without opting in"
        checks.append(Check("opt-in shared memory", "warn", usage, need, f"Call {do} before the launch", cause=CAUSE))
    return checks


def _resident(launch: Launch, limits: Limits) -> list[Check]:
    fits = resident_blocks(launch, limits)
    name, blocks = min(fits.items(), key=lambda pair: pair[1])
    if not limits.threads_per_sm:
        return [Check("occupancy", "skip", f"nothing is known about capability {limits.capability}")]
    share = min(1.0, blocks * _up(launch.threads, WARP) / limits.threads_per_sm)
    usage = f"{share:.0%}: {blocks} blocks on a multiprocessor, limited by {name}"
    checks = [Check("occupancy", "ok", usage)]
    if launch.threads % WARP:
        idle = WARP - launch.threads % WARP
        checks.append(Check("warps", "warn", f"{idle} lanes of the last warp idle", f"a multiple of {WARP} threads"))
    if launch.cooperative and limits.sm_count:
        do = "Launch at most as many blocks as are resident at once"
        most = blocks * limits.sm_count
        checks.append(_at_most("blocks of a cooperative launch", math.prod(launch.grid), most, COOPERATIVE, do))
    return checks


def _at_most(name: str, value: int, limit: int, error: str, do: str, unit: str = "") -> Check:
    if value <= limit:
        return Check(name, "ok", f"{value}{unit}", f"at most {limit}{unit}")
    return Check(name, "fail", f"{value}{unit}: {error}", f"at most {limit}{unit}", do, cause=CAUSE)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
