"""One check in one child process that can do no harm: its own session, a deadline, bounded output, no survivors."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.hardware.processes import exit_codes, process_tree

BOOT = Path(__file__).with_name("probe_child.py")
ROOT = Path(__file__).parents[3]
MARK = "OCRLAB_DOCTOR_CHILD"  # environment variable that identifies a child's children wherever they are
# wandb may be imported in a child, but reaches no network.
OFFLINE = {"PYTHONUNBUFFERED": "1", "WANDB_MODE": "disabled", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
FLOOD = 32 << 20  # bytes; no import and no check prints a thousandth of it
ANSWERS = 8 << 20  # bytes; the longest answer, every package of a big environment, is a fiftieth of it
TAIL = 16 << 10  # bytes kept of each stream: a traceback and what stands before it
TICK = 0.05  # seconds between two looks at a child
LAST_WORDS = 0.4  # seconds that a stuck child gets to write where it is
AFTERMATH = 0.3  # seconds for what still is in the pipes of a child that has ended
UNKILLABLE = 2.0  # seconds after SIGKILL; then it sits in the kernel (state D) and is left behind


@dataclass
class ProbeResult:
    """What became of a child: its answer, of all lines that it sent, how it ended, and the last it printed.

    `ended` is itself, deadline, idle, flood, stopped (by us, Ctrl-C) or unstarted; `code` is its exit code, negative
    for a signal, None where it did not end by itself.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    ended: str = "itself"
    code: int | None = None
    seconds: float = 0.0
    printed: int = 0  # bytes
    out: str = ""
    errors: str = ""
    garbage: str = ""  # what came through the channel and is not an answer
    done: bool = False  # it answered all it wanted to
    trapped: bool = False  # it hung because a thread met an illegal instruction and could not say so

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, if one did."""
        return exit_codes.signal_name(-self.code) if self.code is not None and self.code < 0 else None


def run(
    python: str,
    file: Path,
    function: str,
    arguments: Mapping[str, Any],
    *,
    deadline: float,
    idle: float | None = None,
    own: bool = False,
    stop: threading.Event | None = None,
) -> ProbeResult:
    """Call `function` of a probe file under `python` and return what came of it; never raises, never outlasts it all.

    It is ended after `deadline` seconds, or after `idle` seconds in which its processes used no processor and read
    nothing: a slow disk is given time, a lock is not. `own` lets it import ocrlab, and hides the user's variables and
    folder from it (python -I), which could break what only looks at the machine.
    """
    reader, writer = os.pipe()
    mark = f"{os.getpid()}-{time.monotonic_ns()}-{threading.get_ident()}"
    words = [str(writer), str(file), function, json.dumps(dict(arguments)), str(ROOT) if own else ""]
    try:
        process = subprocess.Popen(
            [python, *(["-I"] if own else []), str(BOOT), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **OFFLINE, MARK: mark},
            pass_fds=(writer,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(reader)
        return ProbeResult(ended="unstarted", errors=f"{type(error).__name__}: {error}")
    finally:
        os.close(writer)
    child = _Child(process, reader)
    try:
        return child.watch(deadline, idle, stop)
    finally:
        _kill(process, mark)
        child.pipes.close()
        os.close(reader)
        process.stdout.close()  # type: ignore[union-attr]  # both are pipes
        process.stderr.close()  # type: ignore[union-attr]


class _Child:
    """A running child with its three pipes, each read as it comes and kept only in part."""

    def __init__(self, process: subprocess.Popen[bytes], channel: int) -> None:
        self.process, self.channel, self.began = process, channel, time.monotonic()
        assert process.stdout is not None and process.stderr is not None, "both are pipes"
        self.buffers = {channel: b"", process.stdout.fileno(): b"", process.stderr.fileno(): b""}
        self.printed = self.sent = 0  # bytes
        self.pipes = selectors.DefaultSelector()
        for descriptor in self.buffers:
            os.set_blocking(descriptor, False)
            self.pipes.register(descriptor, selectors.EVENT_READ)

    def watch(self, deadline: float, idle: float | None, stop: threading.Event | None) -> ProbeResult:
        """Read until it ends or has to be ended, and return what came of it."""
        moved, last, looked = self.began, (-1, -1), 0.0
        ended, left = "itself", None
        while ended == "itself":
            self._read(TICK)
            now = time.monotonic()
            if self.process.poll() is not None:
                left = left or now
                if not self.pipes.get_map() or now - left > AFTERMATH:
                    break
            elif stop is not None and stop.is_set():
                ended = "stopped"
            elif self.printed > FLOOD or self.sent > ANSWERS:
                ended = "flood"
            elif now - self.began > deadline:
                ended = "deadline"
            elif idle is not None and now - looked > 1:
                looked, spent = now, work(self.process.pid)
                if spent != last:
                    moved, last = now, spent
                elif now - moved > idle:
                    ended = "idle"
        trapped = ended in ("deadline", "idle") and in_sigill(self.process.pid)
        if ended in ("deadline", "idle"):
            with contextlib.suppress(OSError):  # faulthandler writes the stacks even while the GIL is held
                self.process.send_signal(signal.SIGCONT)
                self.process.send_signal(signal.SIGUSR2)
            limit = time.monotonic() + LAST_WORDS
            while time.monotonic() < limit and self.process.poll() is None:
                self._read(TICK)
        channel, out, errors = (data.decode("utf-8", errors="replace") for data in self.buffers.values())
        result = ProbeResult(
            ended=ended, seconds=time.monotonic() - self.began, trapped=trapped, out=out, errors=errors
        )
        result.printed, result.code = self.printed, self.process.poll() if ended == "itself" else None
        for line in filter(str.strip, channel.split("\n")):
            try:
                answer = json.loads(line)
            except ValueError:
                answer = None
            if not isinstance(answer, dict):
                result.garbage = result.garbage or line[:80].encode("unicode_escape").decode()
            elif answer == {"done": True}:
                result.done = True
            else:
                result.answer |= answer
        return result

    def _read(self, seconds: float) -> None:
        """Take what is in the pipes; of a flood only the last part is kept, and it never holds the writer up."""
        if not self.pipes.get_map():
            time.sleep(min(seconds, 0.01))  # all pipes are closed, but it still lives
            return
        for key, _ in self.pipes.select(seconds):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self.pipes.unregister(key.fd)
            elif key.fd == self.channel:
                self.sent += len(data)
                self.buffers[key.fd] += data if self.sent <= ANSWERS else b""
            else:
                self.printed += len(data)
                self.buffers[key.fd] = (self.buffers[key.fd] + data)[-TAIL:]


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill all that a child started, wherever it went."""
    limit = time.monotonic() + UNKILLABLE
    while (family := relatives(process.pid, mark)) and time.monotonic() < limit:
        for pid in family:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.poll()  # reaps it, so that the next look finds it gone
        time.sleep(0.005)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, limit - time.monotonic()))


def in_sigill(pid: int) -> bool:
    """Return whether a thread of a process is in its handler of SIGILL, which blocks that signal meanwhile (proc(5)).

    `probe_child.py` handles it in Python and so waits for the GIL, in vain where the thread that holds it waits for
    this one.
    """
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            blocked = status.read_text(encoding="ascii", errors="replace").split("SigBlk:")[1].split()[0]
            if int(blocked, 16) >> (signal.SIGILL - 1) & 1:
                return True
    return False


def relatives(leader: int, mark: str) -> set[int]:
    """Return the living processes of the session that `leader` leads, and those that bear the mark in any other."""
    pids, variable = set(), f"{MARK}={mark}".encode()
    for pid in process_tree.pids():
        fields = process_tree.stat_fields(pid)
        if not fields or fields[0] in (b"Z", b"X"):
            continue
        if int(fields[3]) == leader or variable in process_tree.read_file(f"/proc/{pid}/environ"):
            pids.add(pid)
    return pids - {os.getpid()}


def work(leader: int) -> tuple[int, int]:
    """Return what the processes of a session have done so far: clock ticks of processor, and pages and bytes read."""
    ticks = read = 0
    for pid in process_tree.pids():
        fields = process_tree.stat_fields(pid)
        if fields and int(fields[3]) == leader:
            ticks += int(fields[11]) + int(fields[12])
            read += int(fields[9])
            words = process_tree.read_file(f"/proc/{pid}/io").split()  # "rchar: 12 wchar: ..."
            read += int(words[1]) if words else 0
    return ticks, read
