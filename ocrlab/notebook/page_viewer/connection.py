"""The line to the detector, which lives in a watched child as long as its notebook is open.

A crash of torch, of a decoder or of a stranger's picture ends the child and not the kernel: its cause is named, and the
next question starts a new child. Nothing waits without a limit. The child remembers pages only to be quick, so that a
question says all that it takes to answer it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ocrlab import errors
from ocrlab.debug.watch.supervisor import Ended, Options, watch
from ocrlab.errors import OcrlabError, RunError
from ocrlab.notebook import child_runner
from ocrlab.reports.notebooks import jupyter_kernel
from ocrlab.run_folder import watcher_link

START = 300.0  # seconds for the child to import torch on a machine that does much else
PATIENCE = 120.0  # seconds for one page of a large network on one core
LEAVING = 5.0  # seconds for the watch to write down how a child died
POLL = 0.05  # seconds between two looks at whether the child still lives
LONGEST = 70  # characters of the folder of temporary files that leave room in the 108 of a socket's address

PROGRAM = "from ocrlab.notebook.page_viewer import connection as inspect_link; inspect_link.start()"


@dataclass
class Link:
    """A child that answers questions, started by the first one; `first` is asked before any other, to prepare it."""

    first: tuple[Any, ...]  # a question: its name and its arguments
    runs: Path  # where the incident is written if the child dies
    connection: Connection | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    came: deque[Ended | BaseException] = field(default_factory=lambda: deque(maxlen=1))
    mark: str = ""

    def __post_init__(self) -> None:
        atexit.register(self.close)

    def ask(self, name: str, *args: Any, seconds: float = PATIENCE) -> Any:
        """Return the child's answer to a question.

        Raises what the child raised of ocrlab's errors, ChildFailed where it died, RunError where it took longer than
        `seconds`, Stopped where a person interrupted.
        """
        if self.connection is None:
            self._start()
            try:
                prepared = self._answer(self.first, START)
            except OcrlabError:
                self._hang_up()  # one that is not prepared would misunderstand every question
                raise
            if (name, *args) == self.first:
                return prepared
        return self._answer((name, *args), seconds)

    def close(self) -> None:
        """End the child: it leaves by itself when nobody asks any more."""
        atexit.unregister(self.close)
        self._hang_up()

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
            self.ended.wait(1.0)  # one that computes leaves when it wants to answer; killed, it would look crashed

    def _start(self) -> None:
        """Start the child under watch, and wait until it has come to the line."""
        self.mark, self.ended, self.came = uuid.uuid4().hex, threading.Event(), deque(maxlen=1)
        long = len(tempfile.gettempdir()) > LONGEST
        folder = Path(tempfile.mkdtemp(prefix="ocrlab-line-", dir="/tmp" if long else None))  # for its owner only
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.bind(str(folder / "line"))
                door.listen(1)
                door.settimeout(POLL)
                ours = (self.ended, self.came, self.mark)
                threading.Thread(target=_keep, args=(folder / "line", self.runs, *ours), daemon=True).start()
                self.connection = self._wait_for(door)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_for(self, door: socket.socket) -> Connection:
        deadline = time.monotonic() + START
        try:
            while not self.ended.is_set() and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    return Connection(door.accept()[0].detach())
        except KeyboardInterrupt:
            self._kill()
            raise child_runner.Stopped(None) from None
        raise self._why(START)

    def _answer(self, question: tuple[Any, ...], seconds: float) -> Any:
        line, deadline = self.connection, time.monotonic() + seconds
        assert line is not None, "started before"
        try:
            line.send(question)
            while not line.poll(POLL):
                if time.monotonic() > deadline:
                    raise self._why(seconds)
            kind, value = line.recv()
        except (EOFError, OSError) as error:
            raise self._why(0.0) from error
        except KeyboardInterrupt:  # an answer that nobody has read would be taken for that to the next question
            self._leave()
            raise child_runner.Stopped(None) from None
        if kind == "error":
            raise raised(*value)
        return value

    def _why(self, seconds: float) -> OcrlabError:
        """Return why there is no answer, and leave a child that has died or says nothing."""
        silent = not self.ended.wait(0.0 if seconds else LEAVING)
        self._leave()
        [ended] = self.came or [None]
        if silent or not isinstance(ended, Ended):
            what = f"The detector gave no answer for {seconds:g} s and was ended" if seconds else "The detector is gone"
            return RunError(what, do="Choose the page again to start it anew; the kernel is well")
        return child_runner.ChildFailed(ended)

    def _leave(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self._kill()

    def _kill(self) -> None:
        if self.mark and not self.ended.is_set():
            jupyter_kernel.end(child_runner.MARK, self.mark)
            self.ended.wait(LEAVING)


def raised(name: str, what: str, got: Any, need: Any, do: str | None) -> OcrlabError:
    """Return an error of the child as one of ours: its class by name, RunError where ocrlab has no such class."""
    kind = getattr(errors, name, RunError)
    error: OcrlabError = kind(what, got=got, need=need, do=do)
    return error


def _keep(
    line: Path, runs: Path, ended: threading.Event, came: deque[Ended | BaseException], mark: str
) -> None:  # in a thread
    """Run the child to its end under watch; it may be silent for as long as nobody asks."""
    command = [sys.executable, "-c", PROGRAM, str(runs), str(line)]
    options = Options(silence=float("inf"), own_folder=True)
    try:
        came.append(
            watch(command, options, output=_unheard, env=child_runner.environment() | {child_runner.MARK: mark})
        )
    except BaseException as error:
        came.append(error)
    ended.set()


def _unheard(_stream: int, _data: bytes) -> None:
    """Take what the child prints: the watch keeps the end of it for the verdict."""


def serve(connection: Connection, answer: Mapping[str, Callable[..., Any]]) -> None:
    """Answer questions in the child by the functions of `answer` until the notebook is gone."""
    while True:
        try:
            name, *args = connection.recv()
        except (EOFError, OSError):
            return
        try:
            reply = ("value", answer[name](*args))
        except OcrlabError as error:
            kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)
            reply = ("error", (kind, error.what, _text(error.got), _text(error.need), error.do))
        except MemoryError:
            reply = ("error", ("DataError", "The page needs more memory than is left", None, None, "Reduce the image"))
        except Exception as error:
            message = f"{type(error).__name__}: {error}".partition("\n")[0]
            reply = ("error", ("RunError", "The detector could not answer", message, None, None))
        try:
            connection.send(reply)
        except OSError:  # the notebook was closed meanwhile
            return


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def come(path: str) -> Connection:
    """Return the child's end of the line."""
    door = socket.socket(socket.AF_UNIX)
    door.connect(path)
    return Connection(door.detach())


def start() -> None:
    """Be the child that the notebook talks to: argv ends in the folder of runs and the socket."""
    line, runs = sys.argv.pop(), sys.argv.pop()
    watcher_link.report_runs(runs)  # before torch, whose import may be the end
    from ocrlab.notebook.page_viewer import worker

    serve(come(line), worker.PageWorker().answers())
    os._exit(0)  # there is nothing to write, and to take torch down takes longer than a kernel has to leave
