"""The watched program, as its guard reports it: started, stopped, ended; and how to send it a signal."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ocrlab.errors import escape_name
from ocrlab.hardware.processes import process_tree
from ocrlab.run_folder import watcher_link

GUARD = Path(__file__).with_name("reaper.py")
SWEEPS = 50  # looks for what is left when the guard was killed: what forks meanwhile is found by the next one
NO_SUCH_COMMAND, NOT_EXECUTABLE = 127, 126  # exit statuses of a shell


class CommandRefused(Exception):
    """The operating system does not execute the command; `status` is what a shell would answer."""

    def __init__(self, command: Sequence[str], number: int) -> None:
        super().__init__(f"{escape_name(command[0])}: {os.strerror(number)}")
        self.status = NO_SUCH_COMMAND if number in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE


@dataclass
class Child:
    """A running program and its guard. `code` is its exit code, negative for a signal, None while it runs."""

    pid: int
    guard: subprocess.Popen[bytes]
    control: socket.socket
    started: float = field(default_factory=time.monotonic)
    code: int | None = None
    ended: float | None = None  # monotonic
    empty: bool = False  # it and all that came from it are gone
    stopped: int | None = None  # the signal that stopped it
    guard_lost: bool = False
    mark: str = ""  # NAME=VALUE in the environment of all that comes from it, and of nothing else
    peak_bytes: int | None = None  # of resident memory
    exits: list[dict[str, Any]] = field(default_factory=list)  # of its own accord, not by us
    ending: bool = False  # signals went to everyone

    def signal(self, number: int, *, everyone: bool = False) -> None:
        """Send a signal to the program's group, or to every process that came from it."""
        self.ending |= everyone
        with contextlib.suppress(OSError):
            self.control.send(f"{'all' if everyone else 'group'} {int(number)}".encode())
        if number == signal.SIGCONT:
            self.stopped = None

    def listen(self) -> None:
        """Take in what the guard reports; a guard that is gone took the program with it."""
        with contextlib.suppress(BlockingIOError):
            while not self.empty:
                text = ""
                with contextlib.suppress(ConnectionError):
                    text = self.control.recv(64).decode()
                verb, *numbers = text.split() or ["empty"]
                if not text and self.code is None:
                    self.guard_lost, self.code, self.ended = True, -signal.SIGKILL, time.monotonic()
                    self._kill_family()
                if verb == "exit":
                    self._ended(*map(int, numbers))
                elif verb == "stopped" and int(numbers[0]) == self.pid:
                    self.stopped = int(numbers[1])
                elif verb == "empty":
                    self.empty = True

    def _kill_family(self) -> None:
        """Kill what the program has left, found by session and environment, as its reaper no longer can."""
        for _ in range(SWEEPS):
            family = [process for process in process_tree.snapshot().values() if self._is_ours(process)]
            for process in family:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
            if not family:
                return
            time.sleep(0.02)

    def _is_ours(self, process: process_tree.Process) -> bool:
        if process.state == "Z":
            return False
        if process.session in (self.pid, self.guard.pid):
            return True
        try:
            return self.mark.encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def _ended(self, pid: int, code: int, peak_kb: int) -> None:
        main = pid == self.pid
        if not self.ending:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else None
            process = {"pid": pid, "role": "main" if main else "other"}
            self.exits.append({**process, "exit_code": code if code >= 0 else None, "signal": name})
        if main:
            self.code, self.ended, self.peak_bytes = code, time.monotonic(), peak_kb * 1024


def start(
    command: Sequence[str],
    streams: Sequence[int | IO[bytes]],
    env: Mapping[str, str],
    *,
    pty: bool = False,
    screen: int = -1,
    scratch: str = "",
) -> Child:
    """Start a command under a guard; `streams` are its stdin, stdout and stderr. Raises CommandRefused, OSError.

    With `pty` one of the streams is a terminal and becomes the controlling one; `screen` is the user's own terminal, to
    be given back as it was when the watcher is killed. `scratch` is a folder that the guard removes then.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors = [theirs.fileno(), *([os.dup(screen)] if screen >= 0 else [])]  # 0, 1 and 2 are the program's
    how = [str(descriptors[0]), "pty" if pty else "pipes", str(descriptors[-1]) if screen >= 0 else "-1", scratch]
    try:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), *how, *command],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env=dict(env),
            pass_fds=descriptors,
            start_new_session=True,
        )
    finally:
        theirs.close()
        if screen >= 0:
            os.close(descriptors[-1])
    verb, _, number = ours.recv(64).decode().partition(" ")
    if verb != "started":
        ours.close()
        guard.wait()
        if verb == "refused":
            raise CommandRefused(command, int(number))
        raise OSError(errno.ECHILD, f"the guard of the program ended at once, with status {guard.returncode}")
    ours.setblocking(False)
    return Child(int(number), guard, ours, mark=f"{watcher_link.FOLDER}={env.get(watcher_link.FOLDER)}")
