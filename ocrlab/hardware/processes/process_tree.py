"""Processes and who started whom, from /proc, with the part that each plays in a training."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

PROC = Path("/proc")
CHUNK = 1 << 14  # bytes read at once
TICKS = os.sysconf("SC_CLK_TCK")
COMMAND_BYTES = 4096
COMPILERS = frozenset(
    "nvcc cicc ptxas cudafe++ fatbinary nvlink hipcc gcc g++ cc c++ cc1 cc1plus clang clang++ as collect2 ld ld.lld "
    "lld ninja cmake make".split()
)
COMPILES = re.compile(r"_inductor[/.]compile_worker|triton[/.](compiler|runtime)")
TRACKERS = re.compile(r"wandb-(core|service|xpu)|wandb[/.]sdk|\btensorboard\b|\bmlflow (server|ui)\b")
HELPERS = re.compile(r"multiprocessing\.(resource_tracker|semaphore_tracker|forkserver) import|torch_shm_manager")
SPAWNED = re.compile(r"multiprocessing\.spawn import spawn_main")
RANKS = re.compile(rb"(?:^|\0)LOCAL_RANK=(\d+)")
PYTHON = re.compile(r"python[\d.]*\w?$|pypy[\d.]*$")


@dataclass(frozen=True)
class Process:
    """One process; `started`, in clock ticks since boot, distinguishes it from others with the same number.

    `state` is the letter of proc(5): R runs, S sleeps, D waits and cannot be killed, T stopped, t held by a debugger,
    Z has ended. `command` is the name in brackets where there is no command line, or where to read it could block for
    ever. `role` is main (a Python program), worker, rank, compiler, tracker, helper or other. `io_bytes` is all
    that it read and wrote, None where it may not be asked.
    """

    pid: int
    parent: int = 0
    session: int = 0
    started: int = 0
    state: str = "?"
    name: str = ""
    command: str = ""
    role: str = "other"
    cpu_seconds: float = 0.0
    threads: int = 0
    io_bytes: int | None = None


def snapshot() -> dict[int, Process]:
    """Return every process that /proc shows, by pid; those that vanish meanwhile are left out."""
    return _with_roles({process.pid: process for process in map(read_process, pids()) if process})


def descendants(root: int) -> list[Process]:
    """Return `root` and all below it, parents before children; empty when it is gone.

    Only these are read in full, which takes a fraction of the time of `snapshot`.
    """
    order = _below(root) or _order(root, {pid: int(fields[1]) for pid in pids() if (fields := stat_fields(pid))})
    above = [int(fields[1]) for fields in [stat_fields(root)] if fields]
    full = _with_roles({process.pid: process for process in map(read_process, [*above, *order]) if process})
    return [full[pid] for pid in order if pid in full]


def read_process(pid: int) -> Process | None:
    """Return a process without command, role and input/output, or None when it is gone."""
    head, _, rest = read_file(f"{PROC}/{pid}/stat").rpartition(b")")  # a name may hold spaces and parentheses
    fields = rest.split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        state=fields[0].decode(),
        name=head.partition(b"(")[2].decode(errors="replace"),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS,
        threads=int(fields[17]),
    )


def environment(process: Process) -> dict[str, str]:
    """Return what a process was started with; empty where that may not be read, or could block for ever."""
    entries = _read_memory(process, "environ").decode(errors="replace").split("\0")
    return {name: value for name, mark, value in (entry.partition("=") for entry in entries) if mark}


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on, which is field 3 of proc(5); empty when it is gone."""
    return read_file(f"{PROC}/{pid}/stat").rpartition(b")")[2].split()


def pids() -> list[int]:
    """Return the number of every process that /proc shows."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _below(root: int) -> list[int]:
    """Return a process and all below it, as the kernel lists the children of each thread; [] where that does not help.

    Where a family has more threads than the machine has processes, to look at every process is faster. Source: proc(5),
    /proc/PID/task/TID/children, which some kernels have not.
    """
    order, left = [root], len(pids())
    for pid in order:  # it grows as the tree is walked
        try:
            threads = os.listdir(f"{PROC}/{pid}/task")
        except OSError:
            continue
        left -= len(threads)
        if left < 0 or not os.path.exists(f"{PROC}/{pid}/task/{pid}/children"):
            return []
        children = b" ".join(read_file(f"{PROC}/{pid}/task/{thread}/children") for thread in threads)
        order += sorted({*map(int, children.split())}.difference(order))  # one may have moved up meanwhile
    return order


def _order(root: int, parents: dict[int, int]) -> list[int]:
    """Return a process and all below it, parents first, from the parent of every process."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    order = [root] if root in parents else []
    for pid in order:  # it grows as the tree is walked
        order += sorted(children.get(pid, ()))
    return order


def _with_roles(table: dict[int, Process]) -> dict[int, Process]:
    full: dict[int, Process] = {}
    for process in sorted(table.values(), key=lambda process: process.started):
        text = _read_memory(process, "cmdline")[:COMMAND_BYTES].rstrip(b"\0")
        command = text.replace(b"\0", b" ").decode(errors="replace") or f"[{process.name}]"
        counters = dict(line.split(b": ") for line in read_file(f"{PROC}/{process.pid}/io").splitlines())
        io_bytes = int(counters[b"rchar"]) + int(counters[b"wchar"]) if b"wchar" in counters else None
        role = _role(process, command, full.get(process.parent))
        full[process.pid] = replace(process, command=command, role=role, io_bytes=io_bytes)
    return full


def _role(process: Process, command: str, parent: Process | None) -> str:
    program = os.path.basename(command.split(" ", 1)[0])
    if process.name in COMPILERS or program in COMPILERS or COMPILES.search(command):
        return "compiler"
    if TRACKERS.search(command) or TRACKERS.search(process.name):
        return "tracker"
    # A child with its parent's command line is a copy of it where that is a Python program, which called fork.
    copied = parent is not None and parent.command == command and PYTHON.search(program)
    if process.name == "pt_data_worker" or SPAWNED.search(command) or copied:
        return "worker"
    if HELPERS.search(command):
        return "helper"
    rank, above = (RANKS.findall(_read_memory(each, "environ")) if each else [] for each in (process, parent))
    if rank and rank[:1] != above[:1]:
        return "rank"
    return "main" if PYTHON.search(program) or process.name.startswith("python") else "other"


def _read_memory(process: Process, name: str) -> bytes:
    """Return a file that the kernel reads from the memory of a process; b"" in state D, where that may block for ever.

    The memory map may be locked then.
    """
    return b"" if process.state in "DZX" else read_file(f"{PROC}/{process.pid}/{name}")


def read_file(path: str) -> bytes:
    """Return a file of /proc, b"" where there is none; by the kernel's calls, for a watcher reads hundreds a second."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        whole = part = os.read(descriptor, CHUNK)
        while part:  # seq_file(9) gives a page at a time
            part = os.read(descriptor, CHUNK)
            whole += part
        return whole
    except OSError:  # its process has ended between the two
        return b""
    finally:
        os.close(descriptor)
