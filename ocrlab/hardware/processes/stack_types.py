"""What a stack is made of: frames of threads of a process, and how it was got."""

from __future__ import annotations

from dataclasses import dataclass, field

from ocrlab.hardware.processes.process_tree import Process


@dataclass(frozen=True)
class Frame:
    """One call; `line` is 0 in native code, `locals` holds only what identifies a sample, a module or a worker.

    `state` holds all local variables, to be compared with a later look; it is never written down.
    """

    function: str
    file: str
    line: int
    locals: dict[str, str] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Thread:
    """One thread, innermost frame first; `active` means that it uses the CPU, `gil` that it holds Python's lock.

    `wchan` is where in the kernel it sleeps, `call` the system call with the file that it waits for; both may be empty.
    """

    id: int
    name: str = ""
    active: bool = False
    gil: bool = False
    frames: list[Frame] = field(default_factory=list)
    wchan: str = ""
    call: str = ""


@dataclass(frozen=True)
class Stack:
    """All threads of one process, main thread first; `why_not` says why Python's frames are missing, empty if not."""

    process: Process
    threads: list[Thread] = field(default_factory=list)
    how: str = "proc"  # or py-spy, faulthandler
    wchan: str = ""
    why_not: str = ""
