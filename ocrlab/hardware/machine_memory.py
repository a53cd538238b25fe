"""The memory of the whole machine, and who on it holds most; Documentation/filesystems/proc.rst."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ocrlab.hardware.processes import process_tree
from ocrlab.records import Reading

ROOT = Path("/")
FIELD = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
PAGE = os.sysconf("SC_PAGE_SIZE")


def machine(root: Path = ROOT) -> Reading:
    """Return {"total", "available", "used"} in bytes; available is what can be had without swapping."""
    try:
        fields = dict(FIELD.findall((root / "proc/meminfo").read_text(encoding="ascii", errors="replace")))
        total, free = int(fields["MemTotal"]) * 1024, int(fields["MemAvailable"]) * 1024
    except (OSError, KeyError) as error:
        return Reading("machine_memory", missing=f"/proc/meminfo: {error}")
    return Reading("machine_memory", {"total": total, "available": free, "used": total - free})


def largest(count: int) -> list[dict[str, Any]]:
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
