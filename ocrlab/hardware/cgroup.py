"""The control group of a process, versions 1 and 2: its limits, its peak, and how often the kernel killed in it.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ocrlab.records import Reading

ROOT = Path("/")
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
        match = re.search(r"^oom_kill (\d+)$", _read(place / name) if place else "", re.MULTILINE)
        if match:
            return Reading("oom_kills", int(match[1]))
    return Reading("oom_kills", missing=f"{place or 'no memory control group'} keeps no count of kills")


def is_root(group: Path) -> bool:
    """Tell whether a group is the root of its hierarchy, whose counters are the whole machine's.

    Source: kernel/cgroup/cgroup-v1.c: cgroup.sane_behavior is a file of the root alone. Version 2 does not count in its
    root. A container that sees its own group at the top sees no root.
    """
    return (group / "cgroup.sane_behavior").exists()


def machine_oom_kills(root: Path = ROOT) -> Reading:
    """Return how many processes the kernel has killed for want of memory on the whole machine since it booted."""
    match = re.search(r"^oom_kill (\d+)$", _read(root / "proc/vmstat"), re.MULTILINE)
    if match:
        return Reading("machine_oom_kills", int(match[1]))
    return Reading("machine_oom_kills", missing="/proc/vmstat has no oom_kill (Linux before 4.13, or a sandbox)")


def memory_limit(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return the smallest memory limit above a process, in bytes."""
    return _smallest("memory_limit", "memory", ("memory.max", "memory.limit_in_bytes"), pid, root)


def memory_use(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return {"used", "limit", "reclaimable"} in bytes of the group above a process that has the smallest limit.

    Reclaimable is file cache that nobody has used lately: it counts as used, and is given up before anybody is killed.
    """
    groups = []
    for place in group_folders(root, "memory", pid):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            texts = [_read(place / name).strip() for name in (limit, used)]
            if all(text.isdigit() for text in texts) and int(texts[0]) < UNLIMITED:
                stat = re.search(r"^(?:total_)?inactive_file (\d+)$", _read(place / "memory.stat"), re.MULTILINE)
                groups.append((int(texts[0]), int(texts[1]), int(stat[1]) if stat else 0))
    if not groups:
        return Reading("memory_use", missing="no control group sets a limit")
    limit_, used_, idle = min(groups)
    return Reading("memory_use", {"used": used_, "limit": limit_, "reclaimable": idle})


def memory_left(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return {"left", "limit", "file"} of the group above a process that leaves it least: bytes, and whose limit it is.

    What others in a group hold is not left; their file cache is, as it is given up when it is needed.
    """
    groups = []
    for place in group_folders(root, "memory", pid):
        cache = _cache(_read(place / "memory.stat"))
        for limit, used in LIMITS.items():
            texts = [_read(place / name).strip() for name in (limit, used)]
            if all(text.isdigit() for text in texts) and int(texts[0]) < UNLIMITED:
                most, used_bytes = map(int, texts)
                groups.append((max(0, most - max(0, used_bytes - cache)), most, limit))
    if not groups:
        return Reading("memory_left", missing="no control group sets a limit")
    return Reading("memory_left", dict(zip(("left", "limit", "file"), min(groups), strict=True)))


def pids_limit(pid: int | str = "self", root: Path = ROOT) -> Reading:
    """Return the smallest limit above a process on how many processes and threads there may be."""
    return _smallest("pids_limit", "pids", ("pids.max",), pid, root)


def memory_peak(group: Path | None = None, root: Path = ROOT) -> Reading:
    """Return the most memory that a memory group, else this process's own, ever held, in bytes."""
    place = group or memory_group(root=root)
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        text = _read(place / name).strip() if place else ""
        if text.isdigit():
            return Reading("memory_peak", int(text))
    return Reading("memory_peak", missing=f"{place or 'no memory control group'} keeps no peak")


def _smallest(name: str, controller: str, files: tuple[str, ...], pid: int | str, root: Path) -> Reading:
    texts = [_read(place / file).strip() for place in group_folders(root, controller, pid) for file in files]
    limits = [int(text) for text in texts if text.isdigit() and int(text) < UNLIMITED]
    if limits:
        return Reading(name, min(limits))
    return Reading(name, missing="no control group sets a limit" if any(texts) else "no control group can be read")


def _cache(stat: str) -> int:
    """Return the bytes of file cache in a memory.stat: of version 1 with the groups below, as version 2 counts it."""
    counts = {line[1]: int(line[2]) for line in re.finditer(r"^(\w+) (\d+)$", stat, re.MULTILINE)}
    return sum(counts.get(f"total_{name}", counts.get(name, 0)) for name in ("inactive_file", "active_file"))


def group_folders(root: Path, controller: str, pid: int | str = "self") -> Iterator[Path]:
    """Yield the folder of a process's control group and of those above it; in a container some are not there."""
    mount = root / "sys/fs/cgroup"
    for entry in _read(root / f"proc/{pid}/cgroup").splitlines():
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
