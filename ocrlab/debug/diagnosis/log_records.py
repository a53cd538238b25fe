"""A log as typed records, read in one pass: exceptions with their frames and chain, and the stacks of threads.

It reads tracebacks of Python, IPython and pytest, and the stacks that py-spy, faulthandler and gdb print. Source that a
traceback quotes names what a program could do, not what happened: `quoted` are the lines to leave out of a search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ocrlab.hardware.processes.process_tree import Process
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

TRACEBACK = "Traceback (most recent call last)"
CAUSED = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"
NOTE = "ocrlab: "  # begins what hidden_errors.py writes below a traceback: what hid the exception
FRAME = re.compile(
    r'^(?P<indent>\s*)File "(?P<file>[^"\n]{1,500})", line (?P<line>\d+|\?\?\?)(?:,? in (?P<function>\S+))?'
)
TYPE = r"^(?:E {3,})?(?:\w+\.){0,6}"  # pytest marks its line with an E
NAMED = re.compile(rf"{TYPE}(_?[A-Z]\w{{0,60}})(?::|$)")  # ends a traceback, whatever the exception is called
RAISED = re.compile(rf"{TYPE}([A-Z]\w{{0,60}}(?:Error|Exception|Exit|Interrupt))(?::|$)")  # without a traceback
MARKS = re.compile(r"^[\s~^]+$")  # below the part of a line that was at work
ASSERTED = re.compile(r"^\s+assert\s")
UNMET = re.compile(r"^(?:\w+\.){0,6}AssertionError:?\s*$")  # only the line above says what did not hold
NOTEBOOK = re.compile(r"^(?!Original )([A-Z]\w{1,60}) +Traceback \(most recent call last\)")
CELL = re.compile(
    r"^(?:(?:Cell |Input )?In ?\[(?P<cell>\d+)\]|<ipython-input-(?P<old>\d+)-\w+>"
    r"|File (?P<file>[^\"\s].{0,500}?)(?=[:,])"
    r"|(?P<path>(?:/|~/|[A-Z]:\\)[^\s:]{1,500}\.py)(?= in ))"  # IPython 7
    r"(?:(?:, line |:)(?P<line>\d+))?(?:,? in (?P<function>[\w.<>]+))?"
)
NOTEBOOK_CODE = re.compile(r"^(?:(?P<arrow>-+>) *|\s+)(?P<line>\d+)(?:\s(?P<code>.*)|$)")
TEST = re.compile(r"^_{5,}.{1,200}_{5,}$")  # pytest's heading of a test that failed
TEST_CODE = re.compile(r"^(?:>\s|\s{4})")

PROCESS = re.compile(r"^\s*Process (\d+): (.*)$")
ABOUT = re.compile(r"^# (\w+), state (\w), (\d+) threads, from ([\w-]+?)(?:, sleeps in (\w+))?(?:; (.*))?$")
THREAD = re.compile(r"^\s*Thread (0x[0-9a-fA-F]+|\d+) \((active|idle)(\+gil)?\)(?:: \"(.*)\")?")
FAULT = re.compile(
    r"^\s*(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\]]*)\])?[^\n]{0,60}\(most recent call first\)"
)
CRASH = re.compile(r"^\s*Fatal Python error: ")
GDB_THREAD = re.compile(r"^\s*Thread \d+ \(.*?LWP (\d+)\)(?: \"(.*?)\")?")
GDB_FRAME = re.compile(
    r"^\s*#\d+\s+(?:0x[0-9a-fA-F]+ in )?([\w:~<>.@]+)[^(]*\(.*?\)(?: (?:from|at) (\S+?)(?::(\d+))?)?\s*$"
)
PYSPY_FRAME = re.compile(r"^\s+([^\s()]+) \((.+):(\d+)\)\s*$|^\s+(\S.*) \(([^()]*)\)\s*$")  # Python's, or native
LOCAL = re.compile(r"^\s{8,}(\w+): (.+)$")
WAITS = re.compile(r"^\s+# waits in (\w+.*)$")
ROLES = ((re.compile(r"spawn_main|pt_data_worker"), "worker"), (re.compile(r"resource_tracker|forkserver"), "helper"))


@dataclass(frozen=True)
class Line:
    """One line: its 1-based number in the file as people see it, and its text."""

    number: int
    text: str


@dataclass(frozen=True)
class LoggedFrame(Frame):
    """A frame as a log shows it: the number of its line there, and the source that is quoted below it."""

    number: int = 0
    text: str = ""
    source: str = ""
    source_number: int = 0
    marks: str = ""
    listed: bool = False  # in a listing of IPython; the file of a cell is `cell 3`

    @property
    def code(self) -> str:
        """The part of the source that was at work: what is marked below it, all of it where nothing is."""
        begin = len(self.marks) - len(self.marks.lstrip())
        return (self.source[begin : len(self.marks.rstrip())] if self.marks else self.source).strip()


@dataclass
class LoggedException:
    """One exception: its frames, outermost first, and its last line, `Type: message`, empty where the log breaks off.

    `relation` is "cause" or "context" where it follows from the exception before it, `raise ... from` or a handler that
    failed. An exception that is not `traced` is a line without a traceback.
    """

    first: int
    last: int
    number: int = 0  # of the last line
    text: str = ""
    frames: list[LoggedFrame] = field(default_factory=list)
    traced: bool = True
    relation: str = ""
    note: str = ""  # what hid it, in errors.txt

    @property
    def type(self) -> str:
        """The name of its class without the module; empty where the log breaks off."""
        match = NAMED.match(self.text)
        return match[1] if match else ""

    @property
    def message(self) -> str:
        """What it says on its first line."""
        return self.text.partition(": ")[2].strip()


@dataclass
class LoggedThread:
    """A thread in a dump of faulthandler, innermost frame first; `fatal` where a signal ended the program in it."""

    first: int
    last: int
    fatal: bool
    frames: list[Frame]


@dataclass(frozen=True)
class LogRecords:
    """All records of a log in its order; `quoted` are the indices of the lines that show source."""

    exceptions: tuple[LoggedException, ...] = ()
    threads: tuple[LoggedThread, ...] = ()
    stacks: tuple[Stack, ...] = ()
    quoted: frozenset[int] = frozenset()


def read_records(lines: Sequence[Line]) -> LogRecords:
    """Return what the lines of a log show."""
    reader = _Reader(lines)
    for index, line in enumerate(lines):
        reader.read(index, line)
    return reader.records()


def parse_stacks(text: str) -> list[Stack]:
    """Return the stacks that a text holds, innermost frame first; empty where there is none.

    A process whose number the text does not give has pid 0. Threads without a name keep an empty one.
    """
    return list(read_records([Line(number, line) for number, line in enumerate(text.splitlines(), 1)]).stacks)


def read_frame(text: str) -> LoggedFrame | None:
    """Return the frame that a line of a traceback or a dump shows; None for any other line."""
    match = FRAME.match(text)
    return _logged_frame(match, Line(0, text)) if match and match["function"] else None


def _logged_frame(match: re.Match[str], line: Line) -> LoggedFrame:
    number = int(match["line"]) if match["line"].isdigit() else 0
    return LoggedFrame(match["function"], match["file"], number, number=line.number, text=line.text.strip())


class _Reader:
    """What was read so far: the traceback, the thread and the listing to which the next line may belong."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.exceptions: list[LoggedException] = []
        self.threads: list[LoggedThread] = []
        self.stacks: list[Stack] = []
        self.quoted: set[int] = set()
        self.open: LoggedException | None = None  # a traceback that lacks its exception
        self.name = ""  # of that exception, where a notebook gives it first
        self.relation = ""  # of the next exception to the last
        self.frames: list[Frame] | None = None  # of the thread that is open
        self.indent: int | None = None  # of the last frame: a deeper line shows its source
        self.listing: re.Pattern[str] | None = None

    def read(self, index: int, line: Line) -> None:
        """Read the next line."""
        text = line.text
        if frame := FRAME.match(text):
            self.indent, self.listing = len(frame["indent"]), None
            if frame["function"]:
                self._add(_logged_frame(frame, line))
        elif not text.strip():
            self.indent = None
            return
        elif self.indent is not None and len(text) - len(text.lstrip()) > self.indent:
            self.quoted.add(index)
            self._quote(line)
        elif self._is_listed(index, line) or self._opens(line):
            self.indent = None
        else:
            self.indent = None
            self._read_text(index, line)
        if text.startswith((" ", "\t")):
            self._extend(line.number)

    def records(self) -> LogRecords:
        """Return the records after the last line."""
        self._break_off()
        stacks = tuple(_main_first(stack) for stack in self.stacks if stack.threads or stack.why_not)
        return LogRecords(tuple(self.exceptions), tuple(self.threads), stacks, frozenset(self.quoted))

    def _add(self, frame: LoggedFrame) -> None:
        if self.open:
            self.open.frames.append(frame)
        elif self.frames is not None:
            self.frames.append(frame)
        self._extend(frame.number)

    def _extend(self, number: int) -> None:
        if self.open:
            self.open.last = number
        elif self.threads and self.threads[-1].frames is self.frames:
            self.threads[-1].last = number

    def _quote(self, line: Line) -> None:
        """Add a line of source, or the marks below it, to the last frame of the open traceback."""
        if not self.open or not self.open.frames:
            return
        last = self.open.frames[-1]
        if not last.source:
            self.open.frames[-1] = replace(last, source=line.text, source_number=line.number)
        elif not last.marks and MARKS.match(line.text):
            self.open.frames[-1] = replace(last, marks=line.text)

    def _is_listed(self, index: int, line: Line) -> bool:
        """Return whether a line is source in a listing of IPython or pytest, or the heading of its frame."""
        if TEST.match(line.text):
            self.listing = TEST_CODE
        code = self.listing.match(line.text) if self.listing else None
        if code is None:
            cell = CELL.match(line.text) if self.listing is NOTEBOOK_CODE and self.open else None
            if cell:
                file = cell["file"] or cell["path"] or f"cell {cell['cell'] or cell['old']}"
                function, number = cell["function"] or "<module>", int(cell["line"] or 0)
                frame = LoggedFrame(function, file, number, number=line.number, text=line.text.strip(), listed=True)
                self._add(frame)
            return cell is not None
        self.quoted.add(index)
        if self.listing is NOTEBOOK_CODE and code["arrow"] and self.open and self.open.frames:
            source, last = code["code"] or "", self.open.frames[-1]
            self.open.frames[-1] = replace(last, line=int(code["line"]), source=source, source_number=line.number)
        return True

    def _opens(self, line: Line) -> bool:
        """Open the traceback, the process or the thread that a line begins; return whether it does."""
        text = line.text
        if TRACEBACK in text:
            self._break_off()
            notebook = NOTEBOOK.match(text)
            self.name, self.listing = (notebook[1], NOTEBOOK_CODE) if notebook else ("", self.listing)
            self.open = LoggedException(line.number, line.number, relation=self.relation)
            self.relation, self.frames = "", None
        elif CRASH.match(text):
            self._open_process(Process(0, role="main"), "crash")
        elif match := PROCESS.match(text):
            command = match[2].strip()
            role = next((role for pattern, role in ROLES if pattern.search(command)), "main")
            self._open_process(Process(int(match[1]), role=role, command=command), "py-spy")
        elif self.stacks and (match := ABOUT.match(text)):
            old = self.stacks.pop().process
            process = Process(old.pid, state=match[2], command=old.command, role=match[1], threads=int(match[3]))
            self._open_process(process, match[4], match[5] or "", match[6] or "")
        elif match := THREAD.match(text):
            active, gil = match[2] == "active", bool(match[3])
            self._open_thread(Thread(int(match[1], 0), match[4] or "", active=active, gil=gil), "py-spy")
        elif match := FAULT.match(text):
            self._open_thread(Thread(int(match[2], 16), match[3] or ""), "faulthandler")
            frames = self.stacks[-1].threads[-1].frames
            self.threads.append(LoggedThread(line.number, line.number, text.startswith("Current thread"), frames))
        elif match := GDB_THREAD.match(text):
            self._open_thread(Thread(int(match[1]), match[2] or ""), "gdb")
        else:
            return False
        return True

    def _open_process(self, process: Process, how: str, wchan: str = "", why_not: str = "") -> None:
        self.stacks.append(Stack(process, [], how, wchan, why_not))
        self.frames = None

    def _open_thread(self, thread: Thread, how: str) -> None:
        self._break_off()
        if not self.stacks:
            self._open_process(Process(0, role="main"), how)
        self.stacks[-1].threads.append(thread)
        self.frames = thread.frames

    def _read_text(self, index: int, line: Line) -> None:
        text = line.text
        if (self.frames is not None and self._is_frame_of_thread(self.frames, line)) or text.startswith((" ", "\t")):
            return
        self.frames = None
        if text.startswith((CAUSED, DURING)):
            self.relation = "cause" if text.startswith(CAUSED) else "context"
        elif text.startswith(NOTE) and self.exceptions:
            self.exceptions[-1].note = self.exceptions[-1].note or text.removeprefix(NOTE).rstrip(":")
        elif self.open and (text.startswith(self.name) if self.name else NAMED.match(text)):
            self._end_traceback(self.open, index, line)
        elif not self.open and RAISED.match(text):
            number = line.number
            self.exceptions.append(LoggedException(number, number, number, text, traced=False))
        if text.startswith("E ") or (self.listing is NOTEBOOK_CODE and NAMED.match(text)):
            self.listing = None

    def _end_traceback(self, exception: LoggedException, index: int, line: Line) -> None:
        self.open = None
        exception.number, exception.last, exception.text = line.number, line.number, line.text
        self.exceptions.append(exception)
        if UNMET.match(line.text):
            above = [at for at in (index - 1, index - 2) if at >= 0 and not MARKS.match(self.lines[at].text)][:1]
            self.quoted -= {at for at in above if ASSERTED.match(self.lines[at].text)}
        if exception.type == "KeyboardInterrupt" and exception.frames:  # stopped by hand: then it is where it hung
            thread = Thread(0, "MainThread", frames=list(reversed(exception.frames)))
            self.stacks.append(Stack(Process(0, role="main"), [thread], "traceback"))

    def _is_frame_of_thread(self, frames: list[Frame], line: Line) -> bool:
        """Add what a line shows of the open thread: a frame of py-spy or gdb, a local, the call that it waits in."""
        text, shown = line.text, (line.number, line.text.strip())
        if match := WAITS.match(text):
            threads = self.stacks[-1].threads
            threads[-1] = replace(threads[-1], call=match[1])
        elif (match := LOCAL.match(text)) and frames:
            frames[-1].locals[match[1]] = match[2]
        elif match := GDB_FRAME.match(text):
            frames.append(LoggedFrame(match[1], match[2] or "", int(match[3] or 0), {}, {}, *shown))
        elif match := PYSPY_FRAME.match(text):
            function, file = match[1] or match[4], match[2] or match[5]
            frames.append(LoggedFrame(function.strip(), file, int(match[3] or 0), {}, {}, *shown))
        else:
            return False
        return True

    def _break_off(self) -> None:
        """Close a traceback whose exception never came."""
        if self.open:
            self.exceptions.append(self.open)
            self.open = None


def _main_first(stack: Stack) -> Stack:
    """Put the main thread first: py-spy names it, faulthandler writes it last."""
    threads = stack.threads
    main = [thread for thread in threads if thread.id == stack.process.pid or thread.name == "MainThread"]
    if stack.how in ("faulthandler", "crash") and not main:
        main = threads[-1:]
    rest = [thread for thread in threads if not any(thread is first for first in main[:1])]
    return replace(stack, threads=main[:1] + rest)
