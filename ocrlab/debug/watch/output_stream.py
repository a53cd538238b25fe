"""The program's output: passed on byte for byte without ever blocking the watcher, and its head and tail kept."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
import termios
from collections.abc import Callable

CHUNK = 1 << 18  # bytes read at once
PENDING = 1 << 22  # bytes that wait for a slow reader before the program has to wait too
HEAD, TAIL = 1 << 16, 1 << 19  # bytes kept of a log: how it began, how it ended
PIPE_BUF = 4096  # bytes that a pipe that can be written takes without blocking: pipe(7)


class LogBuffer:
    """The first and the last part of everything that was written, in order of arrival."""

    def __init__(self, head: int = HEAD, tail: int = TAIL) -> None:
        self.limits = head, tail
        self.head, self.tail = bytearray(), bytearray()
        self.dropped = 0
        self.stream = 0

    def add(self, stream: int, data: bytes) -> None:
        """Take in what one stream wrote; a line that another stream interrupts is ended."""
        if stream != self.stream:
            self.stream = stream
            data = b"\n" + data if self.middle else data
        head, tail = self.limits
        room = head - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 2 * tail:
            self.dropped += len(self.tail) - tail
            del self.tail[:-tail]

    @property
    def middle(self) -> bool:
        """Return whether the last line has not ended yet."""
        return bytes((self.tail or self.head)[-1:]) not in (b"", b"\n")

    def text(self) -> str:
        """Return what is kept, with a line that says how much is missing between head and tail."""
        tail, dropped = self.tail[-self.limits[1] :], self.dropped + max(0, len(self.tail) - self.limits[1])
        gap = f"\n... {dropped} bytes left out ...\n".encode() if dropped else b""
        return (bytes(self.head) + gap + bytes(tail)).decode("utf-8", errors="replace")


class Sink:
    """Where output goes: a descriptor that is never waited for; what it does not take yet is kept in `pending`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.own = _unblocked(descriptor)
        is_file = is_open(descriptor) and stat.S_ISREG(os.fstat(descriptor).st_mode)
        self.chunk = CHUNK if self.own or is_file else PIPE_BUF
        self.pending = bytearray()
        self.gone = False  # nobody reads it any more
        self.lost: OSError | None = None  # why what the program printed is not where it should be

    def put(self, data: bytes) -> None:
        """Write what can be written now."""
        if self.gone:
            return
        self.pending += data
        self.flush()

    def flush(self) -> None:
        """Write more of what is pending, as far as it goes without waiting."""
        try:
            while self.pending and not self.gone:
                wrote = os.write(self.descriptor, memoryview(self.pending)[: self.chunk].tobytes())
                del self.pending[:wrote]
                if self.chunk == PIPE_BUF:
                    return
        except BlockingIOError:
            pass
        except OSError as error:  # a closed pipe needs no message, a full disk does
            self.lost = None if error.errno == errno.EPIPE else error
            self.gone = True
            self.pending.clear()

    @property
    def full(self) -> bool:
        """Return whether so much waits that the program should wait, as it would without a watcher between."""
        return len(self.pending) > PENDING

    def close(self) -> None:
        """Close the descriptor, if it was opened here."""
        if self.own:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)


class OutputCallback(Sink):
    """Output that goes to a function instead: it is called with the number of the stream, 1 or 2, and the bytes."""

    def __init__(self, stream: int, function: Callable[[int, bytes], None]) -> None:
        super().__init__(-1)
        self.stream, self.function = stream, function

    def put(self, data: bytes) -> None:
        """Hand over some bytes."""
        self.function(self.stream, data)


def _unblocked(descriptor: int) -> tuple[int, bool]:
    """Return the same pipe or terminal as a descriptor of its own that never blocks, so that nobody else's changes."""
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(kind) or os.isatty(descriptor):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{descriptor}", flags), True
    except OSError:  # closed, or not ours to open again
        pass
    return descriptor, False


def unread(descriptor: int) -> int:
    """Return how many bytes wait in a pipe or terminal."""
    count = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
