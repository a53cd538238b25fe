"""The memory of a training as Linux counts it, of each process, its control group and the whole machine.

Resident memory (RSS) counts a shared page once for each process; the proportional share (PSS) adds up to what is really
used. Source: proc_pid_smaps_rollup in proc(5), Documentation/filesystems/proc.rst, cgroup-v2.rst."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ocrlab.hardware import cgroup
from ocrlab.hardware.processes import process_tree
from ocrlab.hardware.system_files import counts, memory_fields
from ocrlab.records import Reading

ROOT = Path("/")
PAGE = os.sysconf("SC_PAGE_SIZE")
CACHE = ("total_cache", "file", "cache")  # of memory.stat: version 1 with its children, version 2, version 1
SHMEM = ("total_shmem", "shmem")


def of_process(pid: int, role: str = "", name: str = "", root: Path = ROOT) -> dict[str, Any] | None:
    """Return what one process uses in bytes, or None where it is gone; reading it takes some milliseconds.

    `rss` resident, `peak` the most that was ever resident, `pss` its share of rss, `private` what would be free if it
    ended, `anonymous` without files and shared memory, `shared` shared memory, `swap` what is swapped out; None for
    what the kernel does not show.
    """
    status, rollup = (memory_fields(root / f"proc/{pid}/{file}") for file in ("status", "smaps_rollup"))
    if "VmRSS" not in status:
        return None  # gone, or a zombie, which holds nothing
    private = sum(rollup.get(f"Private_{kind}", 0) for kind in ("Clean", "Dirty", "Hugetlb")) if rollup else None
    return {
        "pid": pid, "role": role, "name": name, "rss": status["VmRSS"], "peak": status.get("VmHWM"),
        "pss": rollup.get("Pss"), "private": private, "anonymous": status.get("RssAnon"),
        "shared": status.get("RssShmem"), "swap": status.get("VmSwap"),
    }  # fmt: skip


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
    stat = counts(group / "memory.stat") if group else {}
    for name in CACHE:
        if name in stat:
            shmem = next((stat[key] for key in SHMEM if key in stat), 0)
            return Reading("page_cache", max(0, stat[name] - shmem))  # shared memory is counted as cache, and is none
    machine = memory_fields(root / "proc/meminfo")
    if "Cached" in machine:
        return Reading("page_cache", machine["Cached"] + machine.get("Buffers", 0) - machine.get("Shmem", 0))
    return Reading("page_cache", missing="neither memory.stat nor /proc/meminfo can be read")


def process(pid: int) -> dict[str, Any]:
    """Return the memory of a process tree as plain data: processes, their sum, shared memory, page cache, the limit.

    {"processes": [...], "rss", "pss" (None unless known for all), "workers" (their PSS), "shm", "cache", "limit"}
    """
    tree = [of_process(p.pid, p.role, p.name) for p in process_tree.descendants(pid) if p.state not in "ZX"]
    uses = [use for use in tree if use is not None]
    shares = [use["pss"] for use in uses]
    return {
        "processes": uses,
        "rss": sum(use["rss"] for use in uses),
        "pss": sum(shares) if shares and None not in shares else None,
        "workers": sum(use["pss"] or use["rss"] for use in uses if use["role"] == "worker"),
        "shm": shared_memory().value,
        "cache": page_cache(pid).value,
        "limit": cgroup.memory_limit(pid).value,
    }


def machine_memory(root: Path = ROOT) -> Reading:
    """Return {"total", "available", "used"} in bytes; available is what can be had without swapping."""
    fields = memory_fields(root / "proc/meminfo")
    if not {"MemTotal", "MemAvailable"} <= set(fields):
        return Reading("machine_memory", missing="/proc/meminfo cannot be read")
    total, free = fields["MemTotal"], fields["MemAvailable"]
    return Reading("machine_memory", {"total": total, "available": free, "used": total - free})


def largest_processes(count: int) -> list[dict[str, Any]]:
    """Return the processes with most resident memory, largest first: pid, role, name, rss in bytes."""
    table = process_tree.snapshot()
    statm = {pid: process_tree.read_file(f"/proc/{pid}/statm").split() for pid in table}
    sizes = {pid: int(pages[1]) * PAGE for pid, pages in statm.items() if pages}
    largest = sorted(filter(sizes.get, sizes), key=lambda pid: -sizes[pid])[:count]
    return [{"pid": p, "role": table[p].role, "name": table[p].name, "rss": sizes[p]} for p in largest]
