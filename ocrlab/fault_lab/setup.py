"""What faults set up before they fail: folders, compiled libraries, small file systems, small control groups."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLONE_NEWNS, MS_RDONLY, MS_REC, MS_PRIVATE = 0x20000, 1, 0x4000, 1 << 18  # linux/sched.h, linux/mount.h
NOBODY = 65534
GROUPS = Path("/sys/fs/cgroup")


class LazyModule:
    """A module that is imported when it is first used: the list of faults needs no torch, which takes seconds."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


torch: Any = LazyModule("torch")


def folder() -> Path:
    """Return a new folder under TMPDIR; whoever starts a fault sets TMPDIR and clears it."""
    return Path(tempfile.mkdtemp(prefix="receipts-"))


def library(source: str, name: str, *options: str, where: Path | None = None) -> Path:
    """Compile C (or with a name that ends in .cpp C++) and return the shared library."""
    place = (where or folder()) / name
    place.write_text(source)
    target = place.with_suffix(".so")
    compiler = "c++" if place.suffix == ".cpp" else "cc"
    subprocess.run([compiler, "-O1", "-g0", "-w", "-shared", "-fPIC", "-o", target, place, *options], check=True)
    return target


def small_disk(place: str, size: str, *, read_only: bool = False) -> None:
    """Mount a small tmpfs at `place`, seen by this process and its children only; see mount(2), tmpfs(5)."""
    libc = ctypes.CDLL(None, use_errno=True)
    kind = MS_RDONLY if read_only else 0
    done = libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    done = done or libc.mount(b"tmpfs", place.encode(), b"tmpfs", kind, f"size={size}".encode())
    if done:
        raise OSError(ctypes.get_errno(), "mount", place)


def small_group(controller: str, limit: int) -> Path:
    """Make a control group of `limit` (bytes or processes) and return its list of processes, to be joined by `join`."""
    unified = (GROUPS / "cgroup.controllers").exists()
    root = GROUPS if unified else GROUPS / controller
    clear_groups()
    group = root / f"receipts-{os.getpid()}"
    group.mkdir()
    names = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max", "pids.max")}
    (group / names[controller][0 if unified else 1]).write_text(str(limit))
    return group / "cgroup.procs"


def clear_groups() -> None:
    """Remove the control groups that dead faults have left."""
    for place in (GROUPS, GROUPS / "memory", GROUPS / "pids"):
        for group in place.glob("receipts-*"):
            if not Path("/proc", group.name.rpartition("-")[2]).exists():
                with contextlib.suppress(OSError):
                    group.rmdir()


def join(group: Path) -> None:
    """Move this process into a control group."""
    group.write_text(str(os.getpid()))


def drop_root() -> None:
    """Become nobody where this is root: root is above permissions and process limits."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def limit(kind: int, value: int) -> None:
    """Lower one resource limit of this process; see setrlimit(2)."""
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1] if kind == resource.RLIMIT_CPU else value))


def few_files(spare: int) -> None:
    """Allow this process to open `spare` files more."""
    lowest = os.dup(0)
    os.close(lowest)
    limit(resource.RLIMIT_NOFILE, lowest + spare)


def address_space(extra: int) -> None:
    """Allow this process `extra` bytes more than it has mapped now."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit(resource.RLIMIT_AS, mapped + extra)


def later(seconds: float, act: Callable[[], object]) -> None:
    """Do something in a little while from another process, as an operator or a scheduler would."""
    parent = os.getpid()
    if os.fork() == 0:
        time.sleep(seconds)
        if os.getppid() == parent:
            act()
        os._exit(0)


def soon(seconds: float, act: Callable[[], object]) -> None:
    """Do something in a little while from a thread."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
