"""Running something in a child of the notebook under watch: its output streams, its events too, and the kernel lives.

The watch runs in a thread: the kernel's own signal handlers stay, and what is displayed is displayed by the cell.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import pickle
import queue
import re
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.debug.watch.supervisor import Ended, Options, watch
from ocrlab.errors import ConfigError, RunError
from ocrlab.hardware.processes import exit_codes
from ocrlab.notebook.child_main import CALL, ERROR, EVENTS, VALUE
from ocrlab.records import Verdict, to_json
from ocrlab.redaction import clean
from ocrlab.reports import progress_view, verdict_view
from ocrlab.reports.notebooks import jupyter_kernel
from ocrlab.reports.notebooks.termination import WORDS

LONGEST = 2_000_000  # characters of output that one cell takes; all of it is in the log of the run folder
POLL = 0.05  # seconds between two looks at output and events
GRACE = 20.0  # seconds that a child has after an interrupt, to finish a step and save; a second interrupt ends it
PATIENCE = 5.0  # seconds for the watch to record how a killed child ended
ENDED = re.compile(rb"ocrlab watch: the program .* ended\n +cause +unknown")  # worth reading: no block shows it
MARK = "OCRLAB_CHILD"  # an environment variable that every process below the child inherits

Event = dict[str, Any]


class ChildFailed(RunError):
    """The child of a cell failed, was killed, or hung; the kernel lives. `ended` is what the watch recorded."""

    def __init__(self, ended: Ended, why: str = "") -> None:
        self.ended = ended
        self.word = WORDS.get(ended.status, "FAIL")
        super().__init__(sentence(ended, why), do="The kernel and your variables are intact")

    def record(self, cell: int | None) -> dict[str, Any]:
        """Return how it ended as it stands in a result."""
        ended = self.ended
        fields = {"status": ended.status, "cell": cell, "exit_code": ended.exit_code, "signal": ended.signal}
        return {**fields, "exit_status": ended.exit_status or 1, "verdict": to_json(ended.verdict)}


class Stopped(KeyboardInterrupt):
    """A person stopped the child of a cell; `ended` is what the watch recorded, None where it had no time."""

    def __init__(self, ended: Ended | None) -> None:
        self.ended = ended
        super().__init__("you stopped the child; the kernel and your variables are intact")

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def sentence(ended: Ended, why: str = "") -> str:
    """Return in a sentence how a child ended; `why` is why the watch ended it, or an error of ocrlab that did."""
    if ended.status == "hung":
        return f"The child was ended: {why or 'it made no progress'}"
    if ended.signal:
        meaning = exit_codes.meaning(ended.signal)
        return f"The child died of {ended.signal}" + (f": {meaning}" if meaning else "")
    return f"The child failed with exit status {ended.exit_code}" + (f". {why}" if why else "")


def call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    events: Callable[[Event], None] | None = None,
) -> Any:
    """Call an importable function in a child and return its value; `events` gets what it sends to `progress`.

    Raises ConfigError for a function that cannot be imported or arguments that cannot be pickled, ChildFailed,
    Stopped.
    """
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or "<" in name:
        need, do = "a function that can be imported", "Put it into a file, or begin the cell with %%isolated"
        raise ConfigError(f"{name} exists only in this notebook", need=need, do=do)
    how = {"module": module, "name": name, "args": tuple(args), "kwargs": dict(kwargs)}
    return run({**how, "progress": events is not None}, options, events)["value"]


def run(call: dict[str, Any], options: Options, events: Callable[[Event], None] | None = None) -> Any:
    """Do a call of `child.main` in a child and return what came back; raises ChildFailed, Stopped, RunError.

    The verdict of a child that failed is displayed before.
    """
    try:
        data = pickle.dumps({"path": sys.path, **call})
    except Exception as error:  # a pickle may raise anything
        got = f"{type(error).__name__}: {error}"
        raise ConfigError("The arguments cannot be sent to a child", got=got) from error
    with tempfile.TemporaryDirectory(prefix="ocrlab-child-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / CALL).write_bytes(data)
        command = [sys.executable, "-c", "from ocrlab.notebook import child_main as child; child.start()", name]
        began = time.monotonic()
        ended = follow(command, options, events, folder / EVENTS)
        overdue = options.timeout is not None and time.monotonic() - began >= options.timeout
        if ended.status == "success":
            if not (folder / VALUE).exists():
                what = f"The {'cell' if 'code' in call else 'function'} ended the process itself; nothing came back"
                raise RunError(what, do="Remove the call that exits")
            return pickle.loads((folder / VALUE).read_bytes())
        why = (folder / ERROR).read_text(encoding="utf-8").removesuffix(".") if (folder / ERROR).exists() else ""
    if ended.signal == "SIGINT" or ended.exit_status == 130:
        raise Stopped(ended)
    if ended.status != "failed" or (ended.verdict and ended.verdict.causes):  # else the traceback is enough
        from IPython.display import display

        place = clean(str(ended.folder)) if ended.folder else ""
        display(verdict_view.view(ended.verdict or Verdict(), folder=place))
    if ended.status == "hung":
        limit = f"it was over its limit of {options.timeout or 0:g} s"
        why = limit if overdue else f"nothing moved for {options.silence:g} s"
    raise ChildFailed(ended, why)


class WatchedChild:
    """A command under watch in a thread, which sets `ended` after it; `ending` is how, or why watching failed."""

    def __init__(self, command: Sequence[str], options: Options, output: Callable[[int, bytes], None]) -> None:
        self.mark = uuid.uuid4().hex
        self.ended = threading.Event()  # not `join`: before Python 3.13 an interrupt of it makes a thread look ended
        self.ending: Ended | BaseException | None = None
        work = (command, options, output)
        threading.Thread(target=self._watch, args=work, name="ocrlab watch", daemon=True).start()

    def _watch(self, command: Sequence[str], options: Options, output: Callable[[int, bytes], None]) -> None:
        try:
            self.ending = watch(command, options, output=output, env=environment() | {MARK: self.mark})
        except BaseException as error:
            self.ending = error
        self.ended.set()

    def interrupt(self) -> None:
        """Hand Ctrl-C on to every process of the child."""
        for pid in jupyter_kernel.marked(MARK, self.mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill everything that it started, and wait until the watch has recorded how it ended."""
        jupyter_kernel.end(MARK, self.mark)
        self.ended.wait(PATIENCE)


def follow(
    command: Sequence[str], options: Options, events: Callable[[Event], None] | None = None, path: Path | None = None
) -> Ended:
    """Run a command under watch below the cell and return how it ended; `events` gets the lines of `path` as they come.

    Raises Stopped, after nothing of the command is left, and what `watch` raises. Ctrl-C lets the child finish its
    step; a second one kills at once.
    """
    chunks: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    child = WatchedChild(command, options, lambda *chunk: chunks.put(chunk))
    screen = Screen(chunks, path if events else None, events)
    try:
        while not child.ended.wait(POLL):
            screen.update()
    except KeyboardInterrupt:
        child.interrupt()
        deadline = time.monotonic() + GRACE
        with contextlib.suppress(KeyboardInterrupt):
            while not child.ended.wait(POLL) and time.monotonic() < deadline:
                screen.update()
        screen.update()
        child.kill()
        raise Stopped(child.ending if isinstance(child.ending, Ended) else None) from None
    finally:
        jupyter_kernel.end(MARK, child.mark)
    screen.update()
    if not isinstance(child.ending, Ended):
        raise child.ending or AssertionError("set before `ended`")
    return child.ending


def environment() -> dict[str, str]:
    """Return the child's environment: output as it comes, no pictures into a kernel that it has not."""
    home = str(Path(__file__).parents[2])
    paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(paths)}


class Screen:
    """What a cell shows of its child: output as it comes, up to a limit that a browser can bear, and events."""

    def __init__(
        self,
        chunks: queue.SimpleQueue[tuple[int, bytes]],
        path: Path | None = None,
        take: Callable[[Event], None] | None = None,
    ) -> None:
        self.chunks, self.path, self.take = chunks, path, take
        self.left, self.read = LONGEST, 0
        utf8 = codecs.getincrementaldecoder("utf-8")
        self.streams = {1: (sys.stdout, utf8("replace")), 2: (sys.stderr, utf8("replace"))}

    def update(self) -> None:
        """Show what came since the last call."""
        while not self.chunks.empty():
            self._print(*self.chunks.get())
        if self.path and self.take and self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.read)
                for line in file.read().splitlines(keepends=True):
                    if line.endswith(b"\n"):  # else it is being written
                        self.read += len(line)
                        with contextlib.suppress(ValueError, KeyError):
                            self.take(json.loads(line))
        if isinstance(self.take, progress_view.Live):
            self.take.tick()

    def _print(self, stream: int, data: bytes) -> None:
        if stream == 2 and data.startswith(b"ocrlab watch: ") and b"\n  cause " in data and b"goes on" not in data:
            if not ENDED.match(data):
                return  # the verdict's own block says it better
            data = data.partition(b"\n")[0] + b"\n"
        file, decoder = self.streams[stream]
        text = decoder.decode(data)
        if self.left > 0:
            file.write(text[: self.left])
            self.left -= len(text)
            if self.left <= 0:
                file.write(f"\n… more than {LONGEST} characters; the rest is not shown here\n")
