"""The line to the detector, which lives in a watched child as long as its notebook is open.

A crash of torch, of a decoder or of a stranger's picture ends the child and not the kernel: its cause is named, and the
next question starts a new child. Nothing waits without a limit. The child caches pages only to be quick, so that a
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
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from ocrlab import errors
from ocrlab.debug.watch.supervisor import Ended, Options
from ocrlab.errors import OcrlabError, RunError
from ocrlab.notebook import child_runner
from ocrlab.notebook.child_runner import WatchedChild
from ocrlab.run_folder import watcher_link

START = 300.0  # seconds for the child to import torch on a machine that does much else
PATIENCE = 120.0  # seconds for one page of a large network on one core
POLL = 0.05  # seconds between two looks at whether the child still lives
LONGEST = 70  # characters of the folder of temporary files that leave room in the 108 of a socket's address

PROGRAM = "from ocrlab.notebook.page_viewer import connection; connection.start()"


class Link:
    """A child that answers questions, started by the first one; `first` is asked before any other, to prepare it."""

    def __init__(self, first: tuple[Any, ...], runs: Path) -> None:
        self.first = first  # a question: its name and its arguments
        self.runs = runs  # where the incident is written if the child dies
        self.connection: Connection | None = None
        self.child: WatchedChild
        atexit.register(self.close)

    def ask(self, name: str, *args: Any, seconds: float = PATIENCE) -> Any:
        """Return the child's answer to a question.

        Raises what the child raised of ocrlab's errors, ChildFailed if it died, RunError if it took longer than
        `seconds`, Stopped if a person interrupted.
        """
        if self.connection is None:
            self._start()
            try:
                prepared = self._answer(self.first, START)
            except OcrlabError:
                self._disconnect()  # a child that is not prepared would misunderstand every question
                self.child.ended.wait(1.0)
                raise
            if (name, *args) == self.first:
                return prepared
        return self._answer((name, *args), seconds)

    def close(self) -> None:
        """End the child: it leaves by itself when nobody asks any more."""
        atexit.unregister(self.close)
        if self.connection is not None:
            self._disconnect()
            self.child.ended.wait(1.0)  # it leaves when it wants to answer; killed, it would look crashed

    def _disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _start(self) -> None:
        """Start the child under watch, and wait until it has connected.

        It may be silent for as long as nobody asks, and what it prints is dropped.
        """
        long = len(tempfile.gettempdir()) > LONGEST
        folder = Path(tempfile.mkdtemp(prefix="ocrlab-line-", dir="/tmp" if long else None))  # for its owner only
        command = [sys.executable, "-c", PROGRAM, str(self.runs), str(folder / "line")]
        options = Options(silence=float("inf"), own_folder=True)
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(folder / "line"))
            server.listen(1)
            server.settimeout(POLL)
            deadline = time.monotonic() + START
            self.child = WatchedChild(command, options, lambda _stream, _data: None)
            try:
                while not self.child.ended.is_set() and time.monotonic() < deadline:
                    with contextlib.suppress(TimeoutError):
                        self.connection = Connection(server.accept()[0].detach())
                        return
            except KeyboardInterrupt:
                self.child.kill()
                raise child_runner.Stopped(None) from None
            raise self._why(START)

    def _answer(self, question: tuple[Any, ...], seconds: float) -> Any:
        connection, deadline = self.connection, time.monotonic() + seconds
        assert connection is not None, "started before"
        try:
            connection.send(question)
            while not connection.poll(POLL):
                if time.monotonic() > deadline:
                    raise self._why(seconds)
            kind, value = connection.recv()
        except (EOFError, OSError) as error:
            raise self._why(0.0) from error
        except KeyboardInterrupt:  # an answer that nobody has read would be taken for that to the next question
            self._disconnect()
            self.child.kill()
            raise child_runner.Stopped(None) from None
        if kind == "error":
            name, what, got, need, do = value
            raised: OcrlabError = getattr(errors, name, RunError)(what, got=got, need=need, do=do)
            raise raised
        return value

    def _why(self, seconds: float) -> OcrlabError:
        """Return why there is no answer, and end a child that is silent; 0 seconds if the connection is lost."""
        silent = not self.child.ended.wait(0.0 if seconds else child_runner.PATIENCE)
        self._disconnect()
        self.child.kill()
        if silent or not isinstance(self.child.ending, Ended):
            what = f"The detector gave no answer for {seconds:g} s and was ended" if seconds else "The detector is gone"
            return RunError(what, do="Choose the page again to restart it; the kernel is unharmed")
        return child_runner.ChildFailed(self.child.ending)


def serve(connection: Connection, worker: object) -> None:
    """Answer questions in the child by the methods of `worker` until the notebook is gone."""
    while True:
        try:
            name, *args = connection.recv()
        except (EOFError, OSError):
            return
        try:
            reply = ("value", getattr(worker, name)(*args))
        except OcrlabError as error:
            kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)
            got, need = (None if value is None else str(value) for value in (error.got, error.need))
            reply = ("error", (kind, error.what, got, need, error.do))
        except MemoryError:
            reply = ("error", ("DataError", "The page needs more memory than is left", None, None, "Reduce the image"))
        except Exception as error:
            message = f"{type(error).__name__}: {error}".partition("\n")[0]
            reply = ("error", ("RunError", "The detector could not answer", message, None, None))
        try:
            connection.send(reply)
        except OSError:  # the notebook was closed meanwhile
            return


def start() -> None:
    """Be the child that the notebook talks to: argv ends in the folder of runs and the socket."""
    address, runs = sys.argv.pop(), sys.argv.pop()
    watcher_link.report_runs(runs)  # before torch, whose import may be the end
    from ocrlab.notebook.page_viewer import worker

    serve(Client(address), worker.PageWorker())
    os._exit(0)  # there is nothing to write, and to take torch down takes longer than a kernel has to leave
