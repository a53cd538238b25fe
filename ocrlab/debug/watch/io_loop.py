"""One program under watch: its streams, its signals, its silence, and its end, in one loop that never blocks."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ocrlab.debug.watch import child_process as children
from ocrlab.debug.watch import clean_exit_hints, pseudo_terminal
from ocrlab.debug.watch.child_process import Child
from ocrlab.debug.watch.hang_detector import HangDetector
from ocrlab.debug.watch.memory_tracker import MemoryTracker
from ocrlab.debug.watch.output_stream import CHUNK, LogBuffer, OutputCallback, Sink, is_open, unread
from ocrlab.errors import escape_control

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
STOPPING = (signal.SIGINT, signal.SIGTERM)
OURS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
LINGER = 2.0  # seconds for processes that a program leaves running after it ended well; none after a failure
GRACE = 3.0  # seconds between SIGTERM and SIGKILL
TWICE = 0.5  # seconds within which two SIGTERMs are one: timeout(1) signals its child, and then its whole group
DRAIN = 1.0  # seconds that a stream may stay open when no process of the program is left
GIVE_UP = 5.0  # seconds after SIGKILL: a process that waits for a dead disk cannot be killed
PIPE_SIZE = 1 << 20
F_SETPIPE_SZ = 1031  # linux/fcntl.h; in Python's fcntl from 3.10 on, not on every build
OBEYED = 10.0  # seconds within which an end counts as the answer to a signal
LITTLE, RECENT = 1024, 0.1  # bytes, seconds: output that comes often and in small pieces is read in batches,
BATCH, TYPED = 0.05, 0.002  # seconds apart, on a terminal sooner: to wake for each would cost more than all the rest
KEYS_PENDING = 1 << 16


@dataclass
class Session:
    """A running program with all that is open for it."""

    quiet: HangDetector
    output: Callable[[int, bytes], None] | None = None
    ring: LogBuffer = field(default_factory=LogBuffer)
    memory: MemoryTracker = field(default_factory=MemoryTracker)
    terminal: pseudo_terminal.Terminal | None = None
    sinks: dict[int, Sink] = field(default_factory=dict)  # by stream: 1 and 2
    sources: dict[int, int] = field(default_factory=dict)  # of the program's output: descriptor -> stream
    resting: dict[int, float] = field(default_factory=dict)  # sources that are read again at this monotonic time
    reads_keys: bool = False  # from stdin
    keys: bytearray = field(default_factory=bytearray)  # typed, and not yet taken by the program
    came: list[int] = field(default_factory=list)  # signals
    handlers: dict[int, Any] = field(default_factory=dict)
    wake: tuple[int, int] | None = None
    terms: int = 0  # SIGTERMs passed on
    asked: tuple[int, float] = (0, 0.0)  # the last signal from outside, or by a key, and when
    ending: float | None = None  # when SIGTERM went to everyone
    killed: float = 0.0  # when SIGKILL last did
    drained: float | None = None  # when nothing was left to write any more
    before_stop: Callable[[], None] = lambda: None  # called before the program gets a signal that may end it
    child: Child = field(init=False, repr=False)  # from `start` on

    def start(self, command: list[str], env: Mapping[str, str], scratch: Path) -> None:
        """Start the program; raises CommandRefused and OSError."""
        for stream in (1, 2):
            self.sinks[stream] = OutputCallback(stream, self.output) if self.output else Sink(stream)
        self.terminal = None if self.output else pseudo_terminal.open_pair()
        streams, ours = self._streams()
        screen = self.terminal.screen if self.terminal else -1
        try:
            pty = self.terminal is not None
            self.child = children.start(command, streams, env, pty=pty, screen=screen, scratch=str(scratch))
        finally:
            for descriptor in ours:
                os.close(descriptor)
        self._listen()
        if self.terminal:
            self.terminal.enter()
            self.reads_keys = self.terminal.keyboard

    def step(self, wait: float) -> None:
        """Wait for something to happen, `wait` seconds at most, and pass it on."""
        if self.child.empty:
            self.resting.clear()
        due = [self.resting[source] for source in self._open_sources() if source in self.resting]
        wait = min(wait, max(0.0, min(due, default=math.inf) - time.monotonic()))
        poll = select.poll()
        for descriptor, events in self._awaited().items():
            poll.register(descriptor, events)
        ready = {descriptor for descriptor, _ in poll.poll(math.ceil(1000 * wait))}
        self._read_all(ready)
        if not self.child.empty and self.child.control.fileno() in ready:
            self.child.listen()
        if self.wake and self.wake[0] in ready:
            os.read(self.wake[0], 512)
        if self.reads_keys and 0 in ready:
            self._type()
        if self.came or self.child.stopped:
            self._signals()
        for sink in self.sinks.values():
            sink.flush()
        self._send_keys()

    def _awaited(self) -> dict[int, int]:
        """Return what is waited for: the events of poll(2) by descriptor.

        A stream whose reader is slow is not read on until that has caught up.
        """
        readers = [] if self.child.empty else [self.child.control.fileno()]
        readers += [self.wake[0]] if self.wake else []
        readers += [0] if self.reads_keys else []
        readers += [source for source in self._open_sources() if source not in self.resting]
        pending = {sink.descriptor: select.POLLOUT for sink in self.sinks.values() if sink.pending}
        return {**dict.fromkeys(readers, select.POLLIN), **pending}

    def _open_sources(self) -> list[int]:
        return [source for source, stream in self.sources.items() if not self.sinks[stream].full]

    def _read_all(self, ready: set[int]) -> None:
        """Read the sources that are ready or have rested long enough, and with them all others: lines stay in order."""
        now, sources = time.monotonic(), self._open_sources()
        if not any(source in ready or self.resting.get(source, math.inf) <= now for source in sources):
            return
        waiting = [source for source in sources if source in ready or (source in self.resting and unread(source))]
        self.resting.clear()
        streams = sorted(waiting, key=self.sources.__getitem__)
        for descriptor in streams:
            self._read(descriptor)
            if descriptor is not streams[-1]:  # all of stdout before stderr: what was printed first stands first
                for _ in range(PIPE_SIZE // CHUNK):
                    if descriptor in self.sources and unread(descriptor):
                        self._read(descriptor)

    @property
    def alive(self) -> bool:
        """Return whether anything of the program is left, or anything that it wrote and we did not pass on."""
        if not self.child.empty:
            return True
        if self.terminal:
            self.terminal.close_slave()
        is_blocked = any(sink.pending for sink in self.sinks.values())
        if is_blocked:  # a reader that is slow gets everything; two SIGTERMs end it
            return self.terms < 2
        self.drained = self.drained or time.monotonic()
        return bool(self.sources) and time.monotonic() - self.drained < DRAIN

    def end(self, now: float) -> None:
        """Ask every process of the program to end, and soon make it; called again and again until nothing is left."""
        child = self.child
        if child.empty:
            return
        if self.ending is None:
            self.ending = now
            child.signal(signal.SIGTERM, everyone=True)
            child.signal(signal.SIGCONT, everyone=True)
        elif now - self.ending > GRACE + GIVE_UP:
            child.empty = True
        elif now - self.ending > GRACE and now - self.killed > 0.1:
            self.killed = now
            child.signal(signal.SIGKILL, everyone=True)

    @property
    def ended_by(self) -> str | None:
        """Who ended the program, where it ended by a signal that came through us or soon after it."""
        (number, when), child = self.asked, self.child
        if not number or child.code is None or child.ended is None:
            return None
        if child.code in (-number, 128 + number) or child.ended - when < OBEYED:
            return "user" if number == signal.SIGINT else "outside"
        return None

    @property
    def lost(self) -> str:
        """What to report of output that could not be written; empty where all of it could."""
        return next((clean_exit_hints.lost(stream, sink.lost) for stream, sink in self.sinks.items() if sink.lost), "")

    def write_message(self, text: str) -> None:
        """Write a few lines of ocrlab to stderr, after the program's output so far."""
        ending = "\r\n" if self.terminal and self.terminal.raw else "\n"
        after_bar = self.ring.middle and (self.terminal or self.ring.stream == 2)
        words = ("\n" if after_bar else "") + escape_control(text).rstrip("\n") + "\n"
        self.sinks[2].put(words.replace("\n", ending).encode(errors="replace"))

    def close(self) -> None:
        """Give back the terminal and the signal handlers, and close everything; what is left is killed."""
        if self.terminal:
            undo = self.terminal.undo()
            if undo:
                self.sinks[self.terminal.screen].put(undo)
            self.terminal.leave()
            self.terminal.close_slave()
            self.sources.setdefault(self.terminal.master, 0)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        if self.wake:
            signal.set_wakeup_fd(-1)
            for descriptor in self.wake:
                os.close(descriptor)
        for descriptor in self.sources:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for sink in self.sinks.values():
            sink.close()
        self.memory.close()
        if hasattr(self, "child"):
            self.child.control.close()  # the guard ends whatever is left when it sees that
            self.child.guard.wait()

    def _streams(self) -> tuple[list[int], list[int]]:
        """Return the program's stdin, stdout and stderr, and those of them that are ours to close."""
        term, opened = self.terminal, []
        if term and term.keyboard:
            streams = [term.slave]
        elif self.output or not is_open(0):
            opened.append(os.open(os.devnull, os.O_RDONLY))
            streams = [opened[0]]
        else:
            streams = [0]
        for stream in (1, 2):
            if term and os.isatty(stream):
                streams.append(term.slave)
                self.sources[term.master] = term.screen
                continue
            reading, writing = os.pipe()
            with contextlib.suppress(OSError):
                fcntl.fcntl(reading, F_SETPIPE_SZ, PIPE_SIZE)
            os.set_blocking(reading, False)
            self.sources[reading] = stream
            streams.append(writing)
            opened.append(writing)
        return streams, opened

    def _read(self, descriptor: int) -> None:
        """Take in what the program wrote and pass it on."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last process has let go of the terminal
            data = b""
        stream = self.sources[descriptor]
        if not data or self.sinks[stream].gone:
            self._drop(descriptor)
            return
        self.ring.add(stream, data)
        self.memory.note_output(data)
        if self.terminal and descriptor == self.terminal.master:
            self.terminal.note(data)
        now = time.monotonic()
        if len(data) < LITTLE and now - self.quiet.since < RECENT:
            self.resting[descriptor] = now + (TYPED if self.terminal else BATCH)
        self.quiet.moved(now, "output")
        self.sinks[stream].put(data)

    def _drop(self, descriptor: int) -> None:
        """Close a stream that has ended, or that has no reader any more: the program then sees SIGPIPE or EIO."""
        self.resting.pop(descriptor, None)
        self.sources.pop(descriptor)
        if not self.terminal or descriptor != self.terminal.master:
            os.close(descriptor)

    def _type(self) -> None:
        """Pass on what was typed."""
        assert self.terminal is not None, "keys come from a terminal"
        try:
            data = os.read(0, 4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self.keys) > KEYS_PENDING:
            self.reads_keys = False
            return
        if self.terminal.interrupts(data):
            self.before_stop()
            self.asked = signal.SIGINT, time.monotonic()
        self.keys += data
        self.quiet.moved(time.monotonic(), "keys")
        self._send_keys()

    def _send_keys(self) -> None:
        if self.keys and self.terminal:
            with contextlib.suppress(OSError):
                del self.keys[: os.write(self.terminal.master, self.keys)]

    def _listen(self) -> None:
        """Take over the signals that we pass on, in the main thread; those that are switched off stay so (nohup)."""

        def note(number: int, _frame: FrameType | None) -> None:
            self.came.append(number)

        try:
            reading, writing = os.pipe()
            for descriptor in (reading, writing):
                os.set_blocking(descriptor, False)
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        except ValueError:  # not the main thread: the program around us owns the signals
            os.close(reading)
            os.close(writing)
            return
        self.wake = (reading, writing)
        for number in (*PASSED_ON, *OURS):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.handlers[number] = signal.signal(number, note)

    def _signals(self) -> None:
        """Pass on the signals that came, and follow the program where Ctrl-Z has stopped it."""
        child = self.child
        while self.came:
            number = self.came.pop(0)
            if number == signal.SIGWINCH:
                if self.terminal:
                    self.terminal.resize()
            elif number == signal.SIGTSTP:
                child.signal(signal.SIGSTOP)
                self._sleep()
            elif number == signal.SIGCONT:
                self._wake()
            else:
                self._pass_on(number)
        if child.stopped in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU) and self.terminal:
            child.stopped = None
            self._sleep()

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGTERM == self.asked[0] and time.monotonic() - self.asked[1] < TWICE:
            return
        if number in STOPPING:
            self.before_stop()
        self.asked = number, time.monotonic()
        self.terms += number == signal.SIGTERM
        if self.terms > 1:
            self.ending = self.ending or time.monotonic() - GRACE
            self.child.signal(signal.SIGKILL, everyone=True)
        else:
            self.child.signal(number)

    @property
    def waits_for_keys(self) -> bool:
        """Return whether the program waits for the person at the terminal, who may take all the time there is."""
        return self.terminal is not None and self.terminal.keyboard and self.terminal.asking(self.child.pid)

    def _sleep(self) -> None:
        """Stop as the program did, with the terminal as the shell wants it, and go on with it later."""
        raw = self.terminal is not None and self.terminal.raw
        if self.terminal:
            self.terminal.leave()
        began = time.monotonic()
        old = signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # without a shell above us this does not stop anybody
        os.kill(0 if raw else os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, old)
        self.quiet.since += time.monotonic() - began
        self._wake()

    def _wake(self) -> None:
        if self.terminal:
            self.terminal.enter()
        self.child.signal(signal.SIGCONT)
