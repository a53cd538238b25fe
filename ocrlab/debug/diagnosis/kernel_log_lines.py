"""Lines of the kernel log that name a process: OOM kills, traps, segmentation faults, Xid; whose they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ocrlab.debug.diagnosis.log_lines import clean

# mm/oom_kill.c, arch/x86/kernel/traps.c, arch/x86/mm/fault.c, and the NVIDIA kernel module.
KINDS = {
    "oom": re.compile(r"(?:Kill(?:ed)? process |oom-kill:[^\n]{0,300},pid=|reaped process )(?P<pid>\d+)"),
    "trap": re.compile(r"\[(?P<pid>\d+)\] trap invalid opcode ip:\S+ sp:\S+ error:\S+(?: in (?P<what>[^\s\[]+))?"),
    "fault": re.compile(r"\[(?P<pid>\d+)\]: segfault at \S+ ip \S+ sp \S+ error \d+(?: in (?P<what>[^\s\[]+))?"),
    "xid": re.compile(r"Xid \([^)\n]{1,40}\): (?P<what>\d+), pid='?(?P<pid>\d+)"),
}
BEGINS = re.compile(r"invoked oom-killer|\bmemory: usage \d")  # names who asked for memory, not who was killed


@dataclass(frozen=True)
class KernelLine:
    """One line: its kind (oom, trap, fault, xid), whose it is, the library or the Xid, its number and text."""

    kind: str
    pid: int
    what: str
    number: int
    text: str


def own_pids(facts: Mapping[str, Any]) -> set[int]:
    """Return the numbers under which the kernel log knows the program's processes, from the facts of an incident."""
    return {int(pid) for key in ("pids", "oom_pids") for pid in facts.get(key) or ()}


def process_lines(text: str) -> Iterator[KernelLine]:
    """Yield every line that names a process."""
    for line in clean(text):
        for kind, pattern in KINDS.items():
            match = pattern.search(line.text)
            if match:
                what = match.groupdict().get("what") or "unmapped code"
                yield KernelLine(kind, int(match["pid"]), what, line.number, line.text.strip())
                break


def blank_other_processes(text: str, ours: Iterable[int]) -> str:
    """Return a kernel log in which the lines about other people's processes are empty; numbers of lines stay."""
    mine = set(ours)
    lines = list(process_lines(text))
    foreign = {entry.number for entry in lines if entry.pid not in mine}
    if not any(entry.kind == "oom" and entry.pid in mine for entry in lines):
        foreign |= {number for number, line in enumerate(text.split("\n"), 1) if BEGINS.search(line)}
    return "\n".join("" if number in foreign else line for number, line in enumerate(text.split("\n"), 1))
