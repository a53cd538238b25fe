"""What this machine allows a training to use: processor, memory, descriptors, threads, disk, network, and WSL2's GPU.

Limits are tried, not only read: threads are started, files are written and synced. Only ever called in a child.
"""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import re
import resource
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from ocrlab.hardware import cgroup, host
from ocrlab.hardware.processes import kernel_log
from ocrlab.hardware.system_files import memory_fields, read_text

MIB = 1 << 20
THREADS = 64  # a loader with 8 workers of 8 threads
WRITTEN = 16 * MIB  # a small checkpoint
WSL_LIBRARIES = "usr/lib/wsl/lib"  # where Windows puts its driver's Linux half
# Where a Linux display driver puts its libcuda, which shadows Windows's and must not be there.
LINUX_DRIVERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/cuda/compat")


def processor(root: str = "/") -> dict[str, Any]:
    """Return name and instruction sets of the processor, and the variables that switch some of them off."""
    place = Path(root)
    return {
        "name": host.cpu_name(place).value,
        "machine": platform.machine(),
        "flags": sorted(host.cpu_flags(place)),
        "variables": {key: value for key, value in os.environ.items() if "CPU" in key or "MKL" in key or "BLAS" in key},
    }


def library_path() -> dict[str, list[str]]:
    """Return what LD_LIBRARY_PATH offers of NVIDIA's libraries, and what LD_PRELOAD forces upon every process."""
    offers: list[str] = []
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        for name in ("cudnn", "cublas", "nccl", "cudart", "cuda"):
            offers += glob.glob(os.path.join(glob.escape(folder or "."), f"lib{name}*.so*"))
    return {"offers": sorted(offers), "preload": os.environ.get("LD_PRELOAD", "").replace(":", " ").split()}


def memory(root: str = "/") -> dict[str, Any]:
    """Return bytes of memory that are available, the limit that holds here, and what else can refuse an allocation."""
    place = Path(root)
    fields, group = memory_fields(place / "proc/meminfo"), cgroup.memory_use(root=place).value or {}
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return {
        "limit": host.memory_bytes(place).value,
        "total": fields.get("MemTotal"),
        "available": fields.get("MemAvailable"),
        "used_of_group": group.get("used"),
        "inactive": group.get("reclaimable", 0),
        "address_space": None if soft == resource.RLIM_INFINITY else soft,
        "overcommit": read_text(place / "proc/sys/vm/overcommit_memory"),
    }


def shared_memory(folder: str = "/dev/shm") -> dict[str, Any]:
    """Return size and free bytes of /dev/shm, whether it can be written, and what dead processes left in it."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return {"error": str(error)}
    left = []
    for path in glob.glob(os.path.join(folder, "torch_*")):
        pid = os.path.basename(path).split("_")[1]  # torch_PID_RANDOM_NUMBER
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            left.append(os.path.basename(path))
    return {"total": usage.total, "free": usage.free, "left": left, **_write(folder, min(WRITTEN, usage.free // 2))}


def descriptors() -> dict[str, Any]:
    """Return the limits on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"soft": soft, "hard": hard}


def threads(root: str = "/") -> dict[str, Any]:
    """Start threads that wait, and return how many came up with the limits that could have stopped them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    place, go, error = Path(root), threading.Event(), ""
    started: list[threading.Thread] = []
    try:
        for _ in range(THREADS):
            thread = threading.Thread(target=go.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as problem:
        error = str(problem)
    used = cgroup.pids_used(root=place).value
    go.set()
    for thread in started:
        thread.join()
    return {
        "wanted": THREADS,
        "started": len(started),
        "error": error,
        "processes": None if soft == resource.RLIM_INFINITY else soft,
        "group": cgroup.pids_limit(root=place).value,
        "used_of_group": used,
    }


def disk(folder: str) -> dict[str, Any]:
    """Write and sync a file in a folder, or in the nearest one above that exists, and return speed and free bytes."""
    place = host.existing_folder(folder)
    try:
        usage, table = shutil.disk_usage(place), os.statvfs(place)
    except OSError as error:
        return {"folder": str(place), "error": str(error)}
    answer = {"folder": str(place), "free": usage.free, "files": table.f_favail if table.f_files else None}
    return {**answer, **_write(str(place), min(WRITTEN, max(usage.free // 2, 4096)))}


def wsl(root: str = "/") -> dict[str, Any]:
    """Return whether this is WSL, and if so its kernel, /dev/dxg, the libcuda files and memory."""
    top = Path(root)
    release = read_text(top / "proc/sys/kernel/osrelease") or read_text(top / "proc/version")
    if not re.search("microsoft", release, re.IGNORECASE):
        return {"wsl": 0}
    linux = [path for place in LINUX_DRIVERS for path in (top / place).glob("libcuda.so*")]
    memory = memory_fields(top / "proc/meminfo")
    return {
        "wsl": 2 if "WSL2" in release or re.search(r"microsoft-standard", release) else 1,
        "release": release.split()[0] if release else "",
        "dxg": (top / "dev/dxg").exists(),
        "libcuda": sorted(str(path) for path in (top / WSL_LIBRARIES).glob("libcuda.so*")),
        "foreign": sorted(str(path) for path in linux if WSL_LIBRARIES not in os.path.realpath(path)),
        "memory": memory.get("MemTotal", 0),
        "swap": memory.get("SwapTotal", 0),
        "windows_folder": os.getcwd().startswith("/mnt/") if root == "/" else False,
    }


def network(address: str, port: int, timeout: float) -> dict[str, Any]:
    """Open a connection to the tracker's server or to the proxy in front of it, and close it again; nothing is sent."""
    began = time.perf_counter()
    try:
        with contextlib.closing(socket.create_connection((address, port), timeout)):
            return {"seconds": time.perf_counter() - began}
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - began}


def kernel(seconds: float) -> dict[str, Any]:
    """Return what the kernel wrote about kills, faults and GPUs in the last seconds, or why it cannot be read."""
    log = kernel_log.lines(max(0.0, time.monotonic() - seconds))
    return {"lines": log.value or [], "missing": log.missing}


def _write(folder: str, count: int) -> dict[str, Any]:
    """Write, sync and remove a file of so many bytes; return seconds, or the error."""
    began, block = time.perf_counter(), os.urandom(MIB)
    try:
        with tempfile.TemporaryFile(prefix=".ocrlab-doctor-", dir=folder) as file:
            for start in range(0, count, MIB):
                file.write(block[: min(MIB, count - start)])
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return {"error": f"{error.strerror or error} (errno {error.errno})"}
    return {"written": count, "seconds": time.perf_counter() - began}
