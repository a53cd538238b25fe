"""Who runs a run: its process as a record, whether that still lives, and the last word a signal leaves it."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any


def identity() -> dict[str, Any]:
    """Return what identifies this process among all that ever had its number, and how it was started."""
    pid = os.getpid()
    process = {"schema": 1, "pid": pid, "started": _started(pid), "boot": _boot(), "host": socket.gethostname()}
    folder = None
    with contextlib.suppress(OSError):  # somebody may have removed it
        folder = os.getcwd()
    return {**process, "command": list(sys.orig_argv), "folder": folder, "python": platform.python_version()}


def alive(process: Mapping[str, Any]) -> bool:
    """Return whether the process of an `identity` still runs; one of another machine or container counts as alive."""
    if process.get("host") not in (None, socket.gethostname()):
        return True  # it cannot be asked, and a live run must not be taken over
    started = _started(process.get("pid"))
    return started is not None and started == process.get("started") and process.get("boot") == _boot()


@contextlib.contextmanager
def signals_exit() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit(128 + n), in the main thread and where nobody else handles them."""
    owner, old = os.getpid(), {}

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked child dies as it would have without us
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        signal.signal(number, signal.SIG_IGN)  # a second one must not cut off the last word
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                old[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _started(pid: object) -> int | None:
    """Return the start time of a process in clock ticks since boot; None when it is gone or a zombie."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    return None


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
