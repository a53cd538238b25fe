"""The control group of a process, versions 1 and 2: its limits, its peak, and how often the kernel killed in it.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ocrlab.hardware.system_files import counts, read_text
from ocrlab.records import Reading

ROOT = Path("/")
NO_LIMIT = "no control group sets a limit"
UNLIMITED = 2**60  # bytes; version 1 writes "no limit" as a number near 2**63
LIMITS = {  # of memory, and what is used of each; above memory.high nobody is killed, but all in the group crawl
    "memory.max": "memory.current",
    "memory.high": "memory.current",
    "memory.limit_in_bytes": "memory.usage_in_bytes",
}


def memory_group(pid: int | str = "self", root: Path = ROOT) -> Path | None:
    """Return the folder of the memory control group of a process, or None where there is none or it is gone."""
    return next((place for place in group_folders(root, "memory", pid) if place.is_dir()), None)


def oom_kills(group: Path | None = None, root: Path = ROOT) -> Reading:
    """Return how many processes the kernel has killed in a memory group for want of memory, since it was made.

    The group is this process's own, or one that `memory_group` gave while the process in it still lived. Version 2
    counts the groups below it too, version 1 does not.
    """
    place = group or memory_group(root=root)
    for name in ("memory.events", "memory.oom_control"):
        kills = counts(place / name).get("oom_kill") if place else None
        if kills is not None:
            return Reading("oom_kills", kills)
    return Reading("oom_kills", missing=f"{place or 'no memory control group'} keeps no count of kills")


def is_root(group: Path) -> bool:
    """Return whether a group is the root of its hierarchy, whose counters are the whole machine's.

    Source: kernel/cgroup/cgroup-v1.c: cgroup.sane_behavior is a file of the root alone. Version 2 does not count in its
    root. A container that sees its own group at the top sees no root.
    """
    return (group / "cgroup.sane_behavior").exists()


def machine_oom_kills(root: Path = ROOT) -> Reading:
    """Return how many processes the kernel has killed for want of memory on the whole machine since it booted."""
    kills = counts(root / "proc/vmstat").get("oom_kill")
    missing = "/proc/vmstat has no oom_kill (Linux before 4.13, or a sandbox)" if kills is None else None
    return Reading("machine_oom_kills", kills, missing)


def memory_limit(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return the smallest memory limit above a process, in bytes."""
    return _smallest("memory_limit", "memory", ("memory.max", "memory.limit_in_bytes"), pid, root)


def memory_use(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return {"used", "limit", "reclaimable"} in bytes of the group above a process that has the smallest limit.

    Reclaimable is file cache that nobody has used lately: it counts as used, and is given up before anybody is killed.
    """
    groups = [
        (limit, used, _file_cache(stat, "inactive_file"))
        for limit, used, stat, file in _memory_limits(pid, root)
        if file != "memory.high"
    ]
    if not groups:
        return Reading("memory_use", missing=NO_LIMIT)
    return Reading("memory_use", dict(zip(("limit", "used", "reclaimable"), min(groups), strict=True)))


def memory_left(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return {"left", "limit", "file"} of the group above a process that leaves it least: bytes, and whose limit it is.

    What others in a group hold is not left; their file cache is, as it is given up when it is needed.
    """
    groups = [
        (max(0, limit - max(0, used - _file_cache(stat, "inactive_file", "active_file"))), limit, file)
        for limit, used, stat, file in _memory_limits(pid, root)
    ]
    if not groups:
        return Reading("memory_left", missing=NO_LIMIT)
    return Reading("memory_left", dict(zip(("left", "limit", "file"), min(groups), strict=True)))


def pids_limit(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return the smallest limit above a process on how many processes and threads there may be."""
    return _smallest("pids_limit", "pids", ("pids.max",), pid, root)


def pids_used(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return how many processes and threads there are in the innermost group of a process that counts them."""
    return _smallest("pids_used", "pids", ("pids.current",), pid, root)


def _smallest(name: str, controller: str, files: tuple[str, ...], pid: int | str, root: Path) -> Reading:
    texts = [read_text(place / file) for place in group_folders(root, controller, pid) for file in files]
    limits = [int(text) for text in texts if text.isdigit() and int(text) < UNLIMITED]
    if limits:
        return Reading(name, min(limits))
    return Reading(name, missing=NO_LIMIT if any(texts) else "no control group can be read")


def _memory_limits(pid: int | str, root: Path) -> Iterator[tuple[int, int, dict[str, int], str]]:
    """Yield each limit on the memory of a process, what is used of it, its memory.stat, and the file of the limit."""
    for place in group_folders(root, "memory", pid):
        stat = counts(place / "memory.stat")
        for limit, used in LIMITS.items():
            texts = [read_text(place / name) for name in (limit, used)]
            if all(text.isdigit() for text in texts) and int(texts[0]) < UNLIMITED:
                yield int(texts[0]), int(texts[1]), stat, limit


def _file_cache(stat: dict[str, int], *names: str) -> int:
    """Return bytes of file cache by a memory.stat: of version 1 with the groups below, as version 2 counts it."""
    return sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in names)


def group_folders(root: Path, controller: str, pid: int | str = "self") -> Iterator[Path]:
    """Yield the folder of a process's control group and of those above it; in a container some are not there."""
    mount = root / "sys/fs/cgroup"
    for entry in read_text(root / f"proc/{pid}/cgroup").splitlines():
        names, _, path = entry.partition(":")[2].partition(":")
        if names == "":
            tops = [mount] if (mount / "cgroup.controllers").exists() else [mount / "unified"]
        elif controller in names.split(","):
            tops = [mount / controller, mount / names]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield from (top.joinpath(*parts[:depth]) for top in dict.fromkeys(tops))
