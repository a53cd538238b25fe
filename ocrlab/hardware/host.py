"""The host: cores, memory, instruction sets, disk and packages, as this process may use them.

In a container the machine's own figures mislead: 64 cores and 256 GiB are seen where a control group allows 2 and 4.
Every function takes the `root` of the file system it reads from, so that other machines can be tested.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocrlab.hardware import cgroup, installed_packages
from ocrlab.hardware.system_files import memory_fields, read_text
from ocrlab.records import Reading

ROOT = Path("/")


def cores(root: Path = ROOT) -> int:
    """Return how many logical cores this process may keep busy: affinity, and the quota of its control groups."""
    return max(1, min([len(os.sched_getaffinity(0)), *(int(quota) for quota in _quotas(root))]))


def physical_cores(root: Path = ROOT) -> int:
    """Return how many physical cores this process may keep busy; two threads of one core count once."""
    cpus = os.sched_getaffinity(0)
    topology = [root / f"sys/devices/system/cpu/cpu{cpu}/topology" for cpu in cpus]
    units = {(read_text(place / "physical_package_id"), read_text(place / "core_id")) for place in topology}
    count = len(cpus) if ("", "") in units else len(units)
    return max(1, min(count, cores(root)))


def wanted_threads() -> int | None:
    """Return the number of threads that OMP_NUM_THREADS asks for, no more than there are cores; None if it is unset.

    The 1 that torchrun sets by itself is nobody's wish.
    """
    number = os.environ.get("OMP_NUM_THREADS", "")
    if number == "1" and "TORCHELASTIC_RUN_ID" in os.environ:
        return None
    return min(int(number), cores()) if number.isdecimal() and int(number) else None


def memory_bytes(root: Path = ROOT) -> Reading:
    """Return the memory that this process and its children may use, in bytes: the machine's or its control group's."""
    fields = memory_fields(root / "proc/meminfo")
    limits = [fields["MemTotal"]] if "MemTotal" in fields else []
    group = cgroup.memory_limit(root=root).value
    limits += [group] if group is not None else []
    if not limits:
        return Reading("memory_bytes", missing="neither /proc/meminfo nor a control group can be read")
    return Reading("memory_bytes", min(limits))


def cpu_name(root: Path = ROOT) -> Reading:
    """Return the name of the processor."""
    match = re.search(r"^model name\s*:\s*(.+)$", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    missing = None if match else "/proc/cpuinfo has no model name"
    return Reading("cpu_name", match[1].strip() if match else None, missing)


def cpu_flags(root: Path = ROOT) -> set[str]:
    """Return the instruction sets of the processor as Linux names them (avx2, amx_bf16); empty if unknown."""
    match = re.search(r"^flags\s*:\s*(.+)$", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    return set(match[1].split()) if match else set()


def disk_free(path: Path | str) -> Reading:
    """Return the free bytes of the disk that holds `path` or, where that is not made yet, its nearest parent."""
    try:
        return Reading("disk_free", shutil.disk_usage(existing_folder(path)).free)
    except OSError as error:
        return Reading("disk_free", missing=str(error))


def existing_folder(path: Path | str) -> Path:
    """Return a path, or where that is not made yet the nearest one above it that exists."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def shm_bytes(root: Path = ROOT) -> Reading:
    """Return the size in bytes of /dev/shm, through which loader workers hand over their batches."""
    try:
        return Reading("shm_bytes", shutil.disk_usage(root / "dev/shm").total)
    except OSError as error:
        return Reading("shm_bytes", missing=str(error))


def environment(root: Path = ROOT) -> dict[str, Any]:
    """Return what a result depends on: versions, revision, machine; without names of users, hosts or folders."""
    readings = (cpu_name(root), memory_bytes(root), shm_bytes(root), revision())
    return {
        "schema": 1,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "cores": cores(root),
        "physical_cores": physical_cores(root),
        "cpu_flags": sorted(flag for flag in cpu_flags(root) if flag.startswith(("avx", "amx", "fma"))),
        **{reading.name: reading.value for reading in readings},
        "missing": {reading.name: reading.missing for reading in readings if reading.missing},
        "packages": packages(),
    }


def packages() -> dict[str, str]:
    """Return every installed package with its version, by normalised name; damaged ones are left out."""
    every = reversed(installed_packages.distributions())  # the first one of a name is what gets imported
    return dict(sorted({each["name"]: each["version"] for each in every}.items()))


def revision() -> Reading:
    """Return the git revision of the code, with `-dirty` where it was changed; missing where ocrlab is installed."""
    top = Path(__file__).parents[2]
    if not (top / ".git").exists():
        return Reading("revision", missing="not run from a git checkout")
    command = ["git", "-C", str(top), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        return Reading("revision", missing=str(error.stderr).strip()[:200] or "git failed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Reading("revision", missing=type(error).__name__)
    return Reading("revision", done.stdout.strip())


def _quotas(root: Path) -> Iterator[float]:
    """Yield, in cores, every CPU quota that stands above this process, of both versions of control groups."""
    for group in cgroup.group_folders(root, "cpu"):
        old = " ".join(read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        for text in (read_text(group / "cpu.max"), old):  # "150000 100000", in microseconds; "max 100000"
            quota, _, period = text.partition(" ")
            if quota.isdigit() and (period or "100000").isdigit() and int(period or "100000"):
                yield int(quota) / int(period or "100000")
