"""How much memory a training may need: the limit that its process is under, or what was asked for."""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ocrlab.errors import ConfigError
from ocrlab.probes import cgroup

MIB, GB = 1 << 20, 10**9
ROOT = Path("/")
INACTIVE = ("total_inactive_file", "inactive_file")  # of memory.stat: version 1 with its children, version 2
ACTIVE = ("total_active_file", "active_file")


@dataclass(frozen=True)
class Limit:
    """Bytes, how they are counted, and whose limit it is; `chosen` where somebody asked for it by a number.

    `kind` is resident (memory that no file stands for, of all processes), address (RLIMIT_AS), data (RLIMIT_DATA) or
    device (a GPU's; bytes are then what the training may reserve, known only to the child).
    """

    bytes: int
    kind: str
    source: str
    chosen: bool = False


def find(gigabytes: float | None, *, cuda: bool = False, root: Path = ROOT) -> Limit:
    """Return the smallest limit that holds for a training started here; raises ConfigError for a limit of nothing.

    `gigabytes` are 10^9 bytes, as the limits of containers and cards are sold.
    """
    if gigabytes is not None and not gigabytes > 0:
        raise ConfigError("--limit is no amount of memory", got=gigabytes, need="gigabytes, more than 0")
    asked = int(gigabytes * GB) if gigabytes is not None else None
    if cuda:
        return Limit(asked or 1 << 50, "device", "--limit" if asked else "the device's memory", asked is not None)
    found = [Limit(asked, "resident", "--limit", True)] if asked is not None else []
    found += [limit for limit in (_group(root), _free(root)) if limit is not None]
    for kind, number in (("address", resource.RLIMIT_AS), ("data", resource.RLIMIT_DATA)):
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            name = "RLIMIT_AS" if kind == "address" else "RLIMIT_DATA"
            found.append(Limit(soft, kind, f"{name} (ulimit -{'v' if kind == 'address' else 'd'})"))
    if not found:
        raise ConfigError("Nothing here says how much memory there is", need="--limit GB")
    return min(found, key=lambda limit: limit.bytes)


def _group(root: Path) -> Limit | None:
    """Return what the memory control group leaves for one more process, None without a limit.

    What others in it hold is not ours; the page cache among it is given up when it is needed.
    """
    whole = cgroup.memory_limit(root=root).value
    group = cgroup.memory_group(root=root)
    if whole is None or group is None:
        return None
    stat = _numbers(group / "memory.stat")
    used = next((int(text) for name in ("memory.current", "memory.usage_in_bytes") if (text := _text(group / name))), 0)
    cache = sum(next((stat[name] for name in names if name in stat), 0) for names in (INACTIVE, ACTIVE))
    version = "version 1" if (group / "memory.limit_in_bytes").exists() else "version 2"
    left = int(whole) - max(0, used - cache)
    return Limit(max(0, left), "resident", f"the memory control group ({version}, {int(whole) / MIB:,.0f} MiB)")


def _free(root: Path) -> Limit | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return Limit(int(found[1]) * 1024, "resident", "free memory of this machine") if found else None


def _numbers(path: Path) -> Mapping[str, int]:
    pairs = [line.split() for line in _text(path).splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
