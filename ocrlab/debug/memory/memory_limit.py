"""How much memory a training may need: the limit that its process is under, or what was asked for."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from pathlib import Path

from ocrlab.errors import ConfigError
from ocrlab.hardware import cgroup
from ocrlab.hardware.system_files import memory_fields

MIB, GB = 1 << 20, 10**9
ROOT = Path("/")


@dataclass(frozen=True)
class Limit:
    """Bytes, how they are counted, and whose limit it is; `chosen` where somebody asked for it by a number.

    `kind` is resident (memory that no file stands for, of all processes), address (RLIMIT_AS), data (RLIMIT_DATA) or
    device (a GPU's; bytes are then what the training may reserve, known only to the child). `wanted` are the bytes that
    somebody asked for where less is free now.
    """

    bytes: int
    kind: str
    source: str
    chosen: bool = False
    wanted: int | None = None


def find_limit(gigabytes: float | None, *, cuda: bool = False, root: Path = ROOT) -> Limit:
    """Return the smallest limit that holds for a training started here; raises ConfigError for a limit of nothing.

    `gigabytes` are 10^9 bytes, as the limits of containers and cards are sold.
    """
    if gigabytes is not None and not 0 < gigabytes < 1e9:
        raise ConfigError("--limit must be a positive number of gigabytes", got=gigabytes, need="more than 0 GB")
    asked = int(gigabytes * GB) if gigabytes is not None else None
    if cuda:
        return Limit(asked or 1 << 50, "device", "--limit" if asked else "the device's memory", asked is not None)
    limits = [Limit(asked, "resident", "--limit", True)] if asked is not None else []
    limits += [replace(limit, wanted=asked) for limit in (_group(root), _free(root)) if limit is not None]
    for kind, name, option in (("address", "RLIMIT_AS", "v"), ("data", "RLIMIT_DATA", "d")):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            limits.append(Limit(soft, kind, f"{name} (ulimit -{option})"))
    if not limits:
        raise ConfigError("The available memory is unknown", need="--limit GB")
    return min(limits, key=lambda limit: limit.bytes)


def _group(root: Path) -> Limit | None:
    """Return what the memory control groups leave for one more process, None without a limit."""
    left = cgroup.memory_left(root=root).value
    if left is None:
        return None
    version = "version 1" if left["file"] == "memory.limit_in_bytes" else "version 2"
    high = "memory.high, " if left["file"] == "memory.high" else ""
    source = f"the memory control group ({version}, {high}{left['limit'] / MIB:,.0f} MiB)"
    return Limit(left["left"], "resident", source)


def free_memory(root: Path = ROOT) -> int | None:
    """Return the bytes that this machine and this memory control group have left, None where neither is known."""
    left = [limit.bytes for limit in (_group(root), _free(root)) if limit is not None]
    return min(left, default=None)


def _free(root: Path) -> Limit | None:
    available = memory_fields(root / "proc/meminfo").get("MemAvailable")
    return Limit(available, "resident", "free memory of this machine") if available is not None else None
