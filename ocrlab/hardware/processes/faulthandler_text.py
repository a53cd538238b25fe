"""Stacks in faulthandler's words, and how a process that has it registered is asked for them.

A process says that it can be asked by holding a file open whose name ends in -PID.txt, in a folder of ocrlab's; a
handler alone is not enough, for SLURM plugins requeue a job on SIGUSR1.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from ocrlab.hardware.processes import kernel_threads as kernel
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.hardware.processes.stack_types import Frame, Thread
from ocrlab.hardware.system_files import link_target, list_names

THREAD = re.compile(r"(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\]]*)\])? \((?:most recent call first|idle)\):?")
FRAME = re.compile(r'File "(.*)", line (\d+|\?\?\?) in (.+)')
FOLDERS = {".stacks", "flight"}


def parse(text: str) -> list[Thread]:
    """Return the threads that faulthandler wrote, in its order."""
    threads: list[Thread] = []
    for line in text.splitlines():
        head, frame = THREAD.search(line), FRAME.search(line)
        if head:
            threads.append(Thread(int(head[2], 16), head[3] or ""))
        elif frame and threads:
            threads[-1].frames.append(Frame(frame[3].strip(), frame[1], int(frame[2]) if frame[2].isdigit() else 0))
    return threads


def ask(process: Process, end: float) -> list[Thread]:
    """Return the threads of a process that lets itself be asked by SIGUSR1; empty for every other one."""
    file = _file(process)
    if file is None or process.state in "TtDZX" or not kernel.catches(process.pid, signal.SIGUSR1):
        return []
    try:
        before = file.stat().st_size
        os.kill(process.pid, signal.SIGUSR1)
        size = before
        while time.monotonic() < end:
            time.sleep(0.01)
            now = file.stat().st_size
            if now == size > before:
                break
            size = now
        with file.open("rb") as stream:
            stream.seek(before)
            threads = parse(stream.read().decode(errors="replace"))
            return threads[-1:] + threads[:-1]  # faulthandler writes the oldest thread, which is the main one, last
    except OSError:
        return []


def _file(process: Process) -> Path | None:
    """Return the file into which a process, or the one that it was forked from, lets faulthandler write."""
    names = tuple(f"-{pid}.txt" for pid in (process.pid, process.parent))
    place = Path(f"/proc/{process.pid}/fd")
    for path in (Path(link_target(place / number)) for number in list_names(place)):
        if path.name.endswith(names) and (path.parent.name in FOLDERS or path.name.startswith("ocrlab-")):
            return path
    return None
