"""Who holds what a thread waits for: the other end of a pipe, the lock on a file, the far end of a connection.

Sources: proc(5) for fd, fdinfo and locks; /proc/PID/net/tcp as in Documentation/networking/proc_net_tcp.rst.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ocrlab.hardware.processes import process_tree
from ocrlab.hardware.processes.stack_types import Stack, Thread
from ocrlab.hardware.system_files import link_target, list_names, read_text

PROC = Path("/proc")
SECONDS = 2.0  # for a look at the pipes of all processes; half of the truth would name the wrong ones
PIPE = re.compile(r"^(read|write) \d+ (pipe:\[\d+\])$")
LOCK = re.compile(r"^(?:flock|fcntl) (\d+)\b")
CONNECTION = re.compile(r"^(?:recvfrom|recvmsg|read|sendto|connect) \d+ socket:\[(\d+)\]$")
FLAGS = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
WRITE_LOCK = re.compile(
    r"^\d+: (?:FLOCK|POSIX|OFDLCK)\s+\w+\s+WRITE\s+(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE
)
SLEEPS = re.compile(r"^(?:clock_)?nanosleep$")  # between two tries, as SQLite does for a lock
MOST = 6  # pids that are named

Ends = dict[tuple[str, str], list[int]]  # by pipe and call: who could make it
Locks = dict[tuple[int, int, int], set[int]]  # by device and inode: who holds it


def name_owners(stacks: Sequence[Stack]) -> list[Stack]:
    """Return the stacks; their calls name who holds what they wait for: `flock 3 a.lock, held by 12`."""
    calls = [thread.call for process_stack in stacks for thread in process_stack.threads]
    ends = _pipe_ends(time.monotonic() + SECONDS) if any(map(PIPE.match, calls)) else {}
    locks: Locks = {}  # those who wait are marked with an arrow, and left out
    if any(LOCK.match(call) or SLEEPS.match(call) for call in calls):
        for who, major, minor, inode in WRITE_LOCK.findall(read_text(PROC / "locks")):
            locks.setdefault((int(major, 16), int(minor, 16), int(inode)), set()).add(int(who))

    def with_owner(pid: int, thread: Thread) -> Thread:
        return replace(thread, call=thread.call + _owner(pid, thread.call, ends, locks))

    return [
        replace(stack, threads=[with_owner(stack.process.pid, thread) for thread in stack.threads]) for stack in stacks
    ]


def _owner(pid: int, call: str, ends: Ends, locks: Locks) -> str:
    """Return who holds what a call waits for, in words to be added to it; empty where that is not known."""
    if (match := LOCK.match(call)) and (holders := _holders(pid, match[1], locks)):
        return f", held by {_list(holders)}"
    if SLEEPS.match(call) and locks:
        for name in list_names(PROC / str(pid) / "fd"):
            if holders := _holders(pid, name, locks):
                return f" beside {link_target(PROC / str(pid) / 'fd' / name)}, locked by {_list(holders)}"
    if (match := CONNECTION.match(call)) and (address := _far_end(pid, match[1])):
        return f", connected to {address}"
    if (match := PIPE.match(call)) and (match[2], match[1]) in ends:
        reads = match[1] == "read"
        others = [other for other in ends.get((match[2], "write" if reads else "read"), ()) if other != pid]
        return f", {'written' if reads else 'read'} by {_list(others)}"
    return ""


def _list(pids: list[int]) -> str:
    return ", ".join(map(str, pids[:MOST])) + (" and more" if len(pids) > MOST else "") if pids else "nobody else"


def _pipe_ends(end: float) -> Ends:
    """Return which processes could read from and write to each pipe, as far as we may look."""
    ends: Ends = {}
    for pid in sorted(process_tree.pids()):
        if time.monotonic() > end:
            return {}
        for name in list_names(PROC / str(pid) / "fd"):
            target = link_target(PROC / str(pid) / "fd" / name)
            flags = FLAGS.search(read_text(PROC / str(pid) / "fdinfo" / name)) if target.startswith("pipe:") else None
            mode = int(flags[1], 8) & os.O_ACCMODE if flags else None
            for call, modes in (("read", (os.O_RDONLY, os.O_RDWR)), ("write", (os.O_WRONLY, os.O_RDWR))):
                if mode in modes and pid not in (pids := ends.setdefault((target, call), [])):
                    pids.append(pid)
    return ends


def _holders(pid: int, descriptor: str, locks: Locks) -> list[int]:
    """Return who else has locked the file behind a descriptor of a process."""
    try:
        about = os.stat(PROC / str(pid) / "fd" / descriptor)
    except OSError:
        return []
    place = (os.major(about.st_dev), os.minor(about.st_dev), about.st_ino)
    return sorted(locks.get(place, set()) - {0, pid})


def _far_end(pid: int, inode: str) -> str:
    """Return the address at the other end of a TCP connection; empty for any other socket."""
    for name, family, size in (("tcp", socket.AF_INET, 8), ("tcp6", socket.AF_INET6, 32)):
        for words in map(str.split, read_text(PROC / str(pid) / "net" / name).splitlines()[1:]):
            if len(words) > 9 and words[9] == inode:
                address, _, port = words[2].partition(":")
                whole = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, size, 8))
                host = socket.inet_ntop(family, whole)
                return f"[{host}]:{int(port, 16)}" if size > 8 else f"{host}:{int(port, 16)}"
    return ""
