"""What the kernel wrote about processes that it killed, and about GPUs: OOM kills, traps, faults, NVIDIA's Xid.

In a container the numbers of processes are the host's: `match` also goes by name and time, and says how sure it is.
Sources: Linux mm/oom_kill.c, arch/x86/kernel/traps.c, arch/x86/mm/fault.c; NVIDIA's Xid catalogue.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrlab.records import Reading

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192  # the kernel never gives more at once, and refuses to give less than a whole record
COMMAND_SECONDS = 3.0
JOURNAL = ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-monotonic"]
XID_SECONDS = 0.5  # between the first line of an exception and the one that names the process
DRIFT = 2e-5  # of an uncorrected clock
RESTRICTED = "the kernel log is closed to this user: sysctl kernel.dmesg_restrict=0, or run as root"
TELLING = re.compile(
    r"oom-kill:|Out of memory: Kill|Memory cgroup out of memory|Killed process|oom_reaper|invoked oom-killer|"
    r"\bmemory: usage \d+kB, limit \d+kB|"
    r"traps: |segfault at|general protection fault|trap \w+|NVRM: |nvidia-uvm|Machine check|hung_task|blocked for more"
)
OOM = r"(?P<group>Memory cgroup )?[Oo]ut of memory:? Kill(?:ed)? process (?P<pid>\d+) \((?P<name>.*?)\)"
XID = r"NVRM: Xid \(PCI:[^)]*\): (?P<detail>\d+)(?:, pid='?(?P<pid>\d+)'?)?(?:, name=(?P<name>[^,]*))?"
PATTERNS = (
    ("oom", re.compile(OOM)),
    ("oom", re.compile(r"^Killed process (?P<pid>\d+) \((?P<name>.*?)\)")),
    ("oom", re.compile(r"oom_reaper: reaped process (?P<pid>\d+) \((?P<name>.*?)\)")),
    ("oom", re.compile(r"oom-kill:constraint=(?P<detail>\w+).*?task=(?P<name>.*?),pid=(?P<pid>\d+)")),
    ("trap", re.compile(r"traps: (?P<name>.*?)\[(?P<pid>\d+)\] (?:trap )?(?P<detail>[\w ]+?)(?: in \S+\[\S+)? ip:")),
    ("segfault", re.compile(r"^(?P<name>.*?)\[(?P<pid>\d+)\]: segfault at (?P<detail>[0-9a-f]+)")),
    ("xid", re.compile(XID)),
)
LIBRARY = re.compile(r" in (\S+)\[[0-9a-f]+(?:,[0-9a-f]+)?\+[0-9a-f]+\]")


@dataclass(frozen=True)
class Event:
    """One line that the kernel wrote about a process or a GPU; `seconds` on the monotonic clock, None if unknown.

    `kind` is oom, trap, segfault or xid; `detail` the trap (invalid opcode), the address, the limit that was hit
    (CONSTRAINT_MEMCG) or the number of the Xid; `library` the file in which the instruction stood.
    """

    kind: str
    pid: int | None
    name: str
    detail: str
    library: str
    seconds: float | None
    text: str


def lines(since_monotonic_s: float = 0.0) -> Reading:
    """Return the lines since a moment of time.monotonic() about a kill, a fault or a GPU, as "[secs] text".

    The kernel's clock is never corrected, so that lines from shortly before come too: DRIFT of the uptime.
    """
    missing, since = RESTRICTED, since_monotonic_s - 1.0 - DRIFT * since_monotonic_s
    for command in ([], ["dmesg"], JOURNAL):
        log = _command(command) if command else _kmsg()
        if log.value is not None:
            relevant = [line for line in log.value if TELLING.search(line) and _seconds(line) >= since]
            return Reading("kernel_log", relevant)
        missing = log.missing or missing
    return Reading("kernel_log", missing=missing)


def events(log: Iterable[str]) -> list[Event]:
    """Return what the lines of a kernel log say, as records; those that name neither process nor GPU are left out."""
    records: list[Event] = []
    for line in log:
        text = re.sub(r"^\s*(?:<\d+>)?\[\s*[\d.]+\]\s*(?:\[\s*T\d+\]\s*)?", "", line)
        for kind, parts in [(kind, hit.groupdict()) for kind, pattern in PATTERNS if (hit := pattern.search(text))][:1]:
            library, pid = LIBRARY.search(text), parts.get("pid")
            event = Event(
                kind,
                int(pid) if pid else None,
                name=(parts.get("name") or "").strip("'<> "),
                detail=parts.get("detail") or ("CONSTRAINT_MEMCG" if parts.get("group") else ""),
                library=library[1] if library else "",
                seconds=_seconds(line) if line.lstrip().startswith("[") else None,
                text=text.strip(),
            )
            records.append(event)
    return records


def xid_owners(log: Sequence[str]) -> dict[int, int]:
    """Return whose each Xid of a kernel log is: number of the line, from 0, and process.

    Most lines of an exception name no process; the driver adds one that does, milliseconds later. Measured on an H200
    with driver 580, 2026-11-27.
    """
    owners: dict[int, int] = {}
    named: Event | None = None
    for number in range(len(log) - 1, -1, -1):
        for event in (event for event in events([log[number]]) if event.kind == "xid"):
            named = event if event.pid is not None else named
            if named is None or named.pid is None or event.detail != named.detail:
                continue
            timed = event.seconds is not None and named.seconds is not None
            if not timed or 0 <= (named.seconds or 0) - (event.seconds or 0) <= XID_SECONDS:
                owners[number] = named.pid
    return owners


def match(event: Event, pid: int, name: str, ended_monotonic_s: float | None = None, slack_s: float = 5.0) -> float:
    """Return how sure it is, 0..1, that an event is about a process: by number, else by name and time of its end."""
    if event.pid is not None and event.pid == pid:
        return 0.95
    if not event.name or not name.startswith(event.name[:15]):  # the kernel keeps 15 characters of a name
        return 0.0
    if event.seconds is None or ended_monotonic_s is None:
        return 0.3
    return 0.7 if abs(event.seconds - ended_monotonic_s) <= slack_s else 0.0


def _seconds(line: str) -> float:
    match = re.match(r"\s*(?:<\d+>)?\[\s*(\d+\.?\d*)\]", line)
    return float(match[1]) if match else float("inf")


def _kmsg() -> Reading:
    """Read the kernel's own device without ever waiting for a line that is not written yet."""
    try:
        descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return Reading("kernel_log", missing=RESTRICTED if error.errno in (errno.EPERM, errno.EACCES) else str(error))
    messages: list[str] = []
    end = time.monotonic() + COMMAND_SECONDS
    try:
        while time.monotonic() < end:
            try:
                record = os.read(descriptor, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the ring was written over where we read; the next read goes on after it
                continue
            head, _, rest = record.decode(errors="replace").partition(";")
            stamp = head.split(",")[2]
            messages.append(f"[{int(stamp) / 1e6:.6f}] {rest.partition(chr(10))[0]}")
    except (OSError, ValueError, IndexError) as error:
        return Reading("kernel_log", missing=f"{KMSG} cannot be read: {error}")
    finally:
        os.close(descriptor)
    return Reading("kernel_log", messages)


def _command(command: list[str]) -> Reading:
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=COMMAND_SECONDS, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return Reading("kernel_log")
    messages = done.stdout.decode(errors="replace").splitlines()
    return Reading("kernel_log", [re.sub(r"^(\[.*?\]) \S+ kernel:", r"\1", line) for line in messages] or None)
