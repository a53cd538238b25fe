"""Stacks out of text, as people paste them: py-spy, faulthandler, gdb, and the traceback of a Ctrl-C."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ocrlab.hardware.processes.process_tree import Process
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

PROCESS = re.compile(r"^\s*Process (\d+): (.*)$")
ABOUT = re.compile(r"^# (\w+), state (\w), (\d+) threads, from ([\w-]+?)(?:, sleeps in (\w+))?(?:; (.*))?$")
THREAD = re.compile(r"^\s*Thread (0x[0-9a-fA-F]+|\d+) \((active|idle)(\+gil)?\)(?:: \"(.*)\")?")
FRAME = re.compile(r"^\s+([^\s()]+) \((.+):(\d+)\)\s*$|^\s+(\S.*) \(([^()]*)\)\s*$")  # Python's, or native
LOCAL = re.compile(r"^\s{8,}(\w+): (.+)$")
WAITS = re.compile(r"^\s+# waits in (\w+.*)$")
FAULT = re.compile(r"^\s*(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\]]*)\])? \(most recent call first\)")
FILE = re.compile(r'^\s*File "(.*?)", line (\d+|\?\?\?),? in (\S.*)$')
GDB_THREAD = re.compile(r"^\s*Thread \d+ \(.*?LWP (\d+)\)(?: \"(.*?)\")?")
GDB_FRAME = re.compile(
    r"^\s*#\d+\s+(?:0x[0-9a-fA-F]+ in )?([\w:~<>.@]+)[^(]*\(.*?\)(?: (?:from|at) (\S+?)(?::(\d+))?)?\s*$"
)
CRASH = re.compile(r"^\s*Fatal Python error: ")
TRACEBACK = re.compile(r"^\s*Traceback \(most recent call last\)")
STOPPED_BY_HAND = re.compile(r"^\s*KeyboardInterrupt\b")
ROLES = ((re.compile(r"spawn_main|pt_data_worker"), "worker"), (re.compile(r"resource_tracker|forkserver"), "helper"))


@dataclass
class _Reader:
    """What was read so far; a line belongs to the newest process and thread."""

    stacks: list[Stack] = field(default_factory=list)
    open: bool = False  # whether frames may follow; other text between ends a thread
    upside_down: Thread | None = None  # a traceback: outermost frame first, and kept only if it ends in Ctrl-C

    def process(self, process: Process, how: str, wchan: str = "", why_not: str = "") -> None:
        self.stacks.append(Stack(process, [], how, wchan, why_not))
        self.open = False

    def thread(self, thread: Thread, how: str) -> None:
        if not self.stacks:
            self.process(Process(0, role="main"), how)
        self.stacks[-1].threads.append(thread)
        self.open = True

    def frame(self, function: str, file: str, line: str | None) -> None:
        if self.open:
            number = int(line) if line and line.isdigit() else 0
            self.stacks[-1].threads[-1].frames.append(Frame(function.strip(), file, number))


def parse(text: str) -> list[Stack]:
    """Return the stacks that a text holds, innermost frame first; empty where there is none.

    A process whose number the text does not give has pid 0. Threads without a name keep an empty one.
    """
    reader = _Reader()
    for line in text.splitlines():
        if not (_header(reader, line) or _frame(reader, line)):
            _other_text(reader, line)
    return [_ordered(stack) for stack in reader.stacks if stack.threads or stack.why_not]


def _header(reader: _Reader, line: str) -> bool:
    if CRASH.match(line):
        reader.process(Process(0, role="main"), "crash")
    elif match := PROCESS.match(line):
        command = match[2].strip()
        role = next((role for pattern, role in ROLES if pattern.search(command)), "main")
        reader.process(Process(int(match[1]), role=role, command=command), "py-spy")
    elif reader.stacks and (match := ABOUT.match(line)):
        old = reader.stacks.pop().process
        process = Process(old.pid, state=match[2], command=old.command, role=match[1], threads=int(match[3]))
        reader.process(process, match[4], match[5] or "", match[6] or "")
    elif match := THREAD.match(line):
        thread = Thread(int(match[1], 0), match[4] or "", active=match[2] == "active", gil=bool(match[3]))
        reader.thread(thread, "py-spy")
    elif match := FAULT.match(line):
        reader.thread(Thread(int(match[2], 16), match[3] or ""), "faulthandler")
    elif match := GDB_THREAD.match(line):
        reader.thread(Thread(int(match[1]), match[2] or ""), "gdb")
    elif TRACEBACK.match(line):
        reader.upside_down = Thread(0, "MainThread")
    else:
        return False
    return True


def _frame(reader: _Reader, line: str) -> bool:
    if match := FILE.match(line):
        if reader.upside_down is not None:
            number = int(match[2]) if match[2].isdigit() else 0
            reader.upside_down.frames.insert(0, Frame(match[3].strip(), match[1], number))
        else:
            reader.frame(match[3], match[1], match[2])
    elif not reader.open:
        return False
    elif match := WAITS.match(line):
        threads = reader.stacks[-1].threads
        old = threads[-1]
        threads[-1] = Thread(old.id, old.name, old.active, old.gil, old.frames, call=match[1])
    elif (match := LOCAL.match(line)) and reader.stacks[-1].threads[-1].frames:
        reader.stacks[-1].threads[-1].frames[-1].locals[match[1]] = match[2]
    elif match := GDB_FRAME.match(line):
        reader.frame(match[1], match[2] or "", match[3])
    elif match := FRAME.match(line):
        reader.frame(match[1] or match[4], match[2] or match[5], match[3])
    else:
        return False
    return True


def _other_text(reader: _Reader, line: str) -> None:
    """End a thread; keep a traceback as a stack if the program was stopped by hand: then it is where it hung."""
    thread = reader.upside_down
    if not line.strip() or line.startswith((" ", "\t")):
        return  # a source line under its frame, or the marks under that
    reader.open, reader.upside_down = False, None
    if thread is None:
        return
    if STOPPED_BY_HAND.match(line) and thread.frames:
        reader.process(Process(0, role="main"), "traceback")
        reader.stacks[-1].threads.append(thread)


def _ordered(stack: Stack) -> Stack:
    """Put the main thread first: py-spy names it, faulthandler writes it last."""
    threads = stack.threads
    main = [thread for thread in threads if thread.id == stack.process.pid or thread.name == "MainThread"]
    if stack.how in ("faulthandler", "crash") and not main:
        main = threads[-1:]
    rest = [thread for thread in threads if not any(thread is first for first in main[:1])]
    return Stack(stack.process, main[:1] + rest, stack.how, stack.wchan, stack.why_not)
