"""The memory of a training as Linux counts it, of each process, its control group and the whole machine.

Resident memory (RSS) counts a shared page once for each process; the proportional share (PSS) adds up to what is really
used. Source: proc_pid_smaps_rollup in proc(5), Documentation/filesystems/proc.rst, cgroup-v2.rst."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocrlab.hardware import cgroup
from ocrlab.hardware.processes import process_tree
from ocrlab.records import Reading

ROOT = Path("/")
FIELD = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
CACHE = ("total_cache", "file", "cache")  # of memory.stat: version 1 with its children, version 2, version 1
SHMEM = ("total_shmem", "shmem")


@dataclass(frozen=True)
class MemoryUse:
    """The memory of one process in bytes; None where the kernel or its rights do not tell.

    `rss` resident, `pss` its share of it, `private` what would be free if it ended, `anonymous` without files and
    shared memory, `shared` shared memory, `swap` what is swapped out, `peak` the most that was ever resident.
    """

    pid: int
    role: str
    name: str
    rss: int
    peak: int | None = None
    pss: int | None = None
    private: int | None = None
    anonymous: int | None = None
    shared: int | None = None
    swap: int | None = None


def of_process(pid: int, role: str = "", name: str = "", root: Path = ROOT) -> MemoryUse | None:
    """Return what one process uses, or None where it is gone; reading it takes some milliseconds."""
    place = root / f"proc/{pid}"
    status = _fields(place / "status")
    if "VmRSS" not in status:
        return None  # gone, or a zombie, which holds nothing
    rollup = _fields(place / "smaps_rollup")
    own = None
    if rollup:
        own = rollup.get("Private_Clean", 0) + rollup.get("Private_Dirty", 0) + rollup.get("Private_Hugetlb", 0)
    return MemoryUse(
        pid, role, name, status["VmRSS"], status.get("VmHWM"), rollup.get("Pss"), own,
        status.get("RssAnon"), status.get("RssShmem"), status.get("VmSwap"),
    )  # fmt: skip


def of_tree(pid: int) -> list[MemoryUse]:
    """Return what a process and all below it use, parents first; those that vanish meanwhile are left out."""
    processes = [of_process(p.pid, p.role, p.name) for p in process_tree.descendants(pid) if p.state not in "ZX"]
    return [use for use in processes if use is not None]


def shared_memory(folder: str = "/dev/shm") -> Reading:
    """Return the used and the total bytes of the shared memory through which loader workers hand over batches."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Reading("shared_memory", missing=str(error))
    return Reading("shared_memory", {"used": usage.used, "total": usage.total, "free": usage.free})


def page_cache(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return the page cache of a process's control group in bytes, else the machine's; it is given up when needed."""
    group = cgroup.memory_group(pid, root)
    stat = _stat(group / "memory.stat") if group else {}
    for name in CACHE:
        if name in stat:
            shmem = next((stat[key] for key in SHMEM if key in stat), 0)
            return Reading("page_cache", max(0, stat[name] - shmem))  # shared memory is counted as cache, and is none
    machine = _fields(root / "proc/meminfo")
    if "Cached" in machine:
        return Reading("page_cache", machine["Cached"] + machine.get("Buffers", 0) - machine.get("Shmem", 0))
    return Reading("page_cache", missing="neither memory.stat nor /proc/meminfo can be read")


def process(pid: int) -> dict[str, Any]:
    """Return the memory of a process tree as plain data: processes, their sum, shared memory, page cache, the limit.

    {"processes": [...], "rss", "pss" (None unless told of all), "workers" (their PSS), "shm", "cache", "limit"}
    """
    uses = of_tree(pid)
    shares = [use.pss for use in uses]
    readable = [share for share in shares if share is not None]
    return {
        "processes": [asdict(use) for use in uses],
        "rss": sum(use.rss for use in uses),
        "pss": sum(readable) if len(readable) == len(shares) and readable else None,
        "workers": sum(use.pss or use.rss for use in uses if use.role == "worker"),
        "shm": shared_memory().value,
        "cache": page_cache(pid).value,
        "limit": cgroup.memory_limit(pid).value,
    }


def _fields(path: Path) -> dict[str, int]:
    """Return the `Name: 12 kB` lines of a file of /proc, in bytes; empty where it cannot be read."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    return {name: int(count) * 1024 for name, count in FIELD.findall(text)}


def _stat(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


PAGE = os.sysconf("SC_PAGE_SIZE")


def machine_memory(root: Path = ROOT) -> Reading:
    """Return {"total", "available", "used"} in bytes; available is what can be had without swapping."""
    try:
        fields = dict(FIELD.findall((root / "proc/meminfo").read_text(encoding="ascii", errors="replace")))
        total, free = int(fields["MemTotal"]) * 1024, int(fields["MemAvailable"]) * 1024
    except (OSError, KeyError) as error:
        return Reading("machine_memory", missing=f"/proc/meminfo: {error}")
    return Reading("machine_memory", {"total": total, "available": free, "used": total - free})


def largest_processes(count: int) -> list[dict[str, Any]]:
    """Return the processes with most resident memory, largest first: pid, role, name, rss in bytes."""
    table = process_tree.snapshot()
    sizes = [(_resident(process.pid), process) for process in table.values()]
    order = sorted(sizes, key=lambda pair: -pair[0])[:count]
    return [{"pid": p.pid, "role": p.role, "name": p.name, "rss": size} for size, p in order if size]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0
