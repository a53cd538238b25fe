"""A command run under the limits that a failed run was under: address space, and a memory control group of its own.

python -m ocrlab.rerun.why_limit ADDRESS GROUP COMMAND ...        what the child runs; 0 and - for no limit
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrlab.probes import cgroup

TOPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
FILES = (("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), ("memory.max", "memory.swap.max"))  # versions 1, 2


@dataclass(frozen=True)
class Limits:
    """Bytes of address space (RLIMIT_AS) and of a control group; None where there was no such limit."""

    address: int | None = None
    group: int | None = None

    def __str__(self) -> str:
        parts = [f"{self.address >> 20:,} MiB of address space"] if self.address else []
        parts += [f"a control group of {self.group >> 20:,} MiB"] if self.group else []
        return " and ".join(parts) or "no limit of its own"


@contextlib.contextmanager
def under(limits: Limits, words: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Yield the command that runs `words` under the limits, and why a limit could not be set (empty: all are).

    A limit that holds here already is not set again.
    """
    group, problem = None, ""
    here = cgroup.memory_limit().value
    if limits.group and (here is None or limits.group < here):
        try:
            group = _make(limits.group)
        except OSError as error:
            problem = f"a memory control group cannot be made here ({error.strerror})"
    try:
        if limits.address or group:
            first = [sys.executable, "-m", "ocrlab.rerun.why_limit", str(limits.address or 0), str(group or "-")]
            yield [*first, *words], problem
        else:
            yield list(words), problem
    finally:
        if group:
            with contextlib.suppress(OSError):
                group.rmdir()


def _make(limit: int) -> Path:
    """Make a memory control group of so many bytes, without swap; raises OSError."""
    for top, (file, swap) in zip(TOPS, FILES, strict=True):
        if not top.is_dir() or (top == TOPS[1] and not (top / "cgroup.controllers").exists()):
            continue
        group = top / f"ocrlab-{os.getpid()}"
        group.mkdir(exist_ok=True)
        try:
            (group / file).write_text(str(limit))
        except OSError:
            group.rmdir()
            raise
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            (group / swap).write_text(str(limit if top == TOPS[0] else 0))
        return group
    raise OSError(2, "no control groups")


def main(address: str, group: str, words: Sequence[str]) -> None:
    """Take the limits upon this process and become the command."""
    if group != "-":
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    if int(address):
        resource.setrlimit(resource.RLIMIT_AS, (int(address), int(address)))
    os.execvp(words[0], list(words))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
