"""How long a training that was told to stop may take to get there: one that hangs says where it is, and ends.

A signal handler of Python runs between two instructions of the main thread, which a hung one may never come to. So the
C half of the handler wakes a thread (`signal.set_wakeup_fd`), which needs nothing of the main thread but its GIL. Where
that is not let go of either, `ocrlab watch` ends the process from outside.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

WITHIN, TIMES, MOST = 10.0, 3.0, 120.0  # seconds to the end of a micro-batch, or so many of the longest, at most these
WATCHED = 8.0  # seconds more where somebody watches from outside: who sees all processes, and judges
SAVING = 60.0  # seconds from there to the end of the fit: last.ckpt is written
ANNOUNCED_AFTER = 2.0  # seconds after which a person who waits is told for how long
LAST = 1.0  # seconds for the last word on disk
REACHED = 0  # the byte that says so; all others are numbers of signals


class Patience:
    """A thread that waits for SIGINT or SIGTERM, and then for `reached` and the end of the block."""

    def __init__(
        self, seconds: Callable[[], float], fail: Callable[[dict[str, Any]], Any], who: str = "", more: float = 0.0
    ) -> None:
        self.seconds, self.fail, self.who, self.more = seconds, fail, who, more
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self.thread = threading.Thread(target=self._wait, name="ocrlab patience", daemon=True)
        self.thread.start()

    def note(self, number: int) -> None:
        """Note a signal, or REACHED; may be called by a signal handler."""
        with contextlib.suppress(OSError):
            os.write(self.writing, bytes([number]))

    def close(self) -> None:
        """Wait for nothing any more."""
        os.close(self.writing)
        self.thread.join(LAST)

    def _wait(self) -> None:
        number, asked, due, announced = 0, 0.0, 0.0, False
        try:
            while True:
                now = time.monotonic()
                next_look = (
                    None if not number else max(0.0, (due if announced else min(due, asked + ANNOUNCED_AFTER)) - now)
                )
                if not select.select([self.reading], [], [], next_look)[0]:
                    if time.monotonic() >= due:
                        self._give_up(number, time.monotonic() - asked)
                    announced = announced or self._announce(number, due - asked - self.more)
                    continue
                data = os.read(self.reading, 64)
                if not data:
                    return
                for byte in data:
                    if byte == REACHED and number:
                        due, announced = time.monotonic() + SAVING, True
                    elif byte in (signal.SIGINT, signal.SIGTERM) and not number:
                        number, asked = byte, time.monotonic()
                        due = asked + self.seconds() + self.more
        finally:
            os.close(self.reading)

    def _announce(self, number: int, within: float) -> bool:
        if not self.who:  # of several ranks one tells
            name = signal.Signals(number).name
            write_line(f"ocrlab: {name}: training stops behind this micro-batch; within {within:.0f} s, or it is ended")
        return True

    def _give_up(self, number: int, passed: float) -> None:
        """Say where every thread is, write it down, and end the process with its loader workers."""
        name = signal.Signals(number).name
        what = f"{self.who}training did not stop within {passed:.0f} s of {name}; it hangs"
        write_line(f"ocrlab: {what} here, and is ended:")
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback(2, all_threads=True)
        last_word = threading.Thread(target=self.fail, args=({"type": "Hung", "message": what, "where": None},))
        last_word.daemon = True  # the disk may be what hangs
        last_word.start()
        last_word.join(LAST)
        with contextlib.suppress(Exception):
            for child in multiprocessing.active_children():
                child.kill()
        os._exit(128 + number)


@contextlib.contextmanager
def patient(patience: Patience) -> Iterator[Patience]:
    """Let signals wake `patience` around a `with` block, where nobody else is woken by them."""
    old = -1
    with contextlib.suppress(ValueError):  # not the main thread: the program around us owns the signals
        old = signal.set_wakeup_fd(patience.writing, warn_on_full_buffer=False)
        if old != -1:  # an event loop; the handler tells us
            signal.set_wakeup_fd(old)
    try:
        yield patience
    finally:
        with contextlib.suppress(ValueError):
            if old == -1:
                signal.set_wakeup_fd(-1)
        patience.close()


def allowed(longest: float, micros: int) -> float:
    """Return the seconds to the end of `micros` micro-batches, of which the longest lately took so many seconds."""
    return min(max(WITHIN, TIMES * longest * micros), MOST)


def write_line(text: str) -> None:
    """Write a line to stderr past Python's own stream, whose lock a hung thread may hold."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))
