"""The threads of a process as the kernel sees them: state, place of sleep, system call.

Sources: proc(5); /proc/PID/stack needs root, /proc/PID/syscall the right to trace.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from ocrlab.hardware.processes.stack_types import Frame, Thread
from ocrlab.hardware.system_files import link_target, list_names, read_text

PROC = Path("/proc")
MOST = 64  # threads that are looked at; a process with thousands must not use up the time of the others
CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 23: "select", 35: "nanosleep", 42: "connect", 43: "accept",
        44: "sendto", 45: "recvfrom", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 202: "futex",
        230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6", 271: "ppoll",
        281: "epoll_pwait", 288: "accept4",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write", 72: "pselect6",
        73: "ppoll", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 202: "accept", 203: "connect",
        206: "sendto", 207: "recvfrom", 212: "recvmsg", 242: "accept4", 260: "wait4",
    },
}  # fmt: skip
NAMES = CALLS.get(platform.machine(), {})
PRIVATE = 128  # linux/futex.h: FUTEX_PRIVATE_FLAG; nobody outside the process can wake who sleeps there
ANY_CHILD = 0x80000000  # from here on a number means one of several
ON_A_FILE = frozenset("read write ioctl connect accept accept4 sendto recvfrom recvmsg fcntl flock".split())


def view(pid: int) -> list[Thread]:
    """Return the threads of a process, the main one first, with the kernel's frames; empty when it is gone."""
    ids = sorted(map(int, list_names(PROC / str(pid) / "task")), key=lambda tid: (tid != pid, tid))
    return [_thread(pid, tid) for tid in ids[:MOST]]


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler of its own for a signal, so that it would not end by it."""
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)", read_text(PROC / str(pid) / "status"), re.MULTILINE)
    return bool(match and int(match[1], 16) >> (number - 1) & 1)


def is_python(pid: int) -> bool:
    """Return whether a process holds a Python interpreter, its own or as a library."""
    program = link_target(PROC / str(pid) / "exe")
    if not program or re.match(r"python|pypy", os.path.basename(program)):
        return True  # of one that may not be looked into py-spy says why not
    return "libpython" in read_text(PROC / str(pid) / "maps")


def _thread(pid: int, tid: int) -> Thread:
    place = PROC / str(pid) / "task" / str(tid)
    active = read_text(place / "stat").rpartition(")")[2].split()[:1] == ["R"]
    wchan = "" if active else read_text(place / "wchan").partition(".")[0]  # without the compiler's .constprop.0
    return Thread(
        tid,
        read_text(place / "comm"),
        active=active,
        frames=[Frame(name, "kernel", 0) for name in re.findall(r"\] ([\w.]+)\+", read_text(place / "stack"))],
        wchan="" if wchan == "0" else wchan,
        call=_call(pid, read_text(place / "syscall")),
    )


def _call(pid: int, text: str) -> str:
    """Return a system call with the file behind its first argument, such as `read 0 /dev/pts/1`.

    A futex without a time limit is `private` where only threads of the same process can wake who sleeps there, else
    `shared`; `wait4 12` waits for process 12.
    """
    number, _, rest = text.partition(" ")
    name = NAMES.get(int(number)) if number.isdigit() else None
    if name is None:
        return ""
    first = rest.split(" ", 1)[0]
    if name == "futex":
        arguments = [int(word, 16) for word in rest.split()[:4] if word.startswith("0x")]
        for_ever = len(arguments) == 4 and not arguments[3]
        return f"futex {'private' if arguments[1] & PRIVATE else 'shared'}" if for_ever else name
    if name == "wait4" and first.startswith("0x"):
        asked = int(first, 16) & 0xFFFFFFFF
        return f"wait4 {asked}" if 0 < asked < ANY_CHILD else name
    if name not in ON_A_FILE or not first.startswith("0x"):
        return name
    descriptor = int(first, 16)
    return f"{name} {descriptor} {link_target(PROC / str(pid) / 'fd' / str(descriptor))}".rstrip()
