"""Who looks after a replay while it runs: what does not go on any more is looked into, and ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.debug.flight_record import replay_position, ring_reader
from ocrlab.debug.instruments.user_code import is_own
from ocrlab.errors import OcrlabError
from ocrlab.hardware.processes import process_tree, stack_dumps
from ocrlab.records import from_json
from ocrlab.run_folder.fail_safe import guarded

LOADS = "ocrlab/debug/recorder/sample_recorder.py"  # on the stack of whoever loads
LOADING = 3.0  # times longer that one sample may take to load
SLOWER = 30.0  # times the longest time between two operators so far
GRACE = 5.0  # seconds in which a program may end after that process of it which is replayed
SLOWEST = 20.0  # seconds: what a single slow start can ask for at most
STACK_SECONDS = 2.0


class ChildWatchdog(threading.Thread):
    """Looks at the trail of a child, and ends the child when it has not moved for too long, or its step does not end;
    keeps its stacks. Where the run ended while it was `loading`, it looks at its workers' pages too; of `several` ranks
    one may wait for another before its first operator.
    """

    def __init__(
        self, place: Path, patience: float, endless: float, *, loading: bool = False, several: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.place, self.patience, self.endless, self.loading, self.several = place, patience, endless, loading, several
        self.stuck: set[int] = set()  # processes that were in the program's own code, and loaded nothing
        self.loaded: tuple[Any, float] = None, 0.0  # what the pages said last, and since when
        self.over = threading.Event()
        self.stacks, self.frame = "", ""
        self.awaits = ""  # the line of the program that waited for another process, which may be another rank
        self.process: process_tree.Process | None = None  # the one that is replayed
        self.root = 0  # the first one of its program
        self.gone: float | None = None  # since when it has ended
        self.is_left = False  # its program waited for something that only another rank would do, and was ended

    def run(self) -> None:
        step, began = None, 0.0
        while not self.over.wait(0.1):
            last = replay_position.read(self.place / "trail.bin")
            trace = read_json(self.place / "trace.json")
            now = time.monotonic()
            if self._is_gone(now):
                if now - (self.gone or now) > GRACE:
                    self._leave()
                    return
            elif last is None or trace.get("state") != "running":
                if self.loading and self._is_stuck(now):
                    return
                if self.several and not trace and is_still(self.place, self.endless):
                    self._end(self.process.pid if self.process else 0)
                    return
            else:
                if step != trace.get("micro"):
                    step, began = trace.get("micro"), now
                patience = max(self.patience, min(SLOWER * last.slowest, SLOWEST))
                if now - last.time > patience or now - began > self.endless:  # or its operators go on for ever
                    self._end(int(trace.get("pid") or 0))
                    return

    def _is_gone(self, now: float) -> bool:
        """Return whether the process that is replayed has ended, be it that its program goes on."""
        if self.process is None:
            with contextlib.suppress(OcrlabError, OSError):
                self.process = process = process_tree.read_process(ring_reader.read_ring(self.place / "ring.bin").pid)
                self.gone = now if process is None else None
                while process is not None and process.parent != os.getpid():
                    process = process_tree.read_process(process.parent)
                self.root = 0 if process is None else process.pid
            return self.gone is not None
        current = process_tree.read_process(self.process.pid)
        if current is not None and current.started == self.process.started and current.state not in "ZX":
            return False
        self.gone = now if self.gone is None else self.gone
        return True

    def _leave(self) -> None:
        """End what is left of a program whose replayed process has ended."""
        for process in process_tree.descendants(self.root) if self.root and self.root != os.getpid() else ():
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
                self.is_left = True

    def _is_stuck(self, now: float) -> bool:
        """Return whether a process is in the middle of loading and does not go on, and end the child then."""
        with contextlib.suppress(OcrlabError, OSError):
            flight = ring_reader.read_ring(self.place / "ring.bin")
            at = [(worker.pid, worker.sample, worker.time) for worker in flight.workers]
            status = at, flight.now and flight.now.micro
            waited = status == self.loaded[0] and now - self.loaded[1] > LOADING * self.patience
            if status != self.loaded[0] or waited:
                self.loaded = status, now
            lines = _loading([worker.pid for worker in flight.workers], self.place) if waited else {}
            if lines:
                self._end(flight.pid)
                self.stuck, self.frame = set(lines), next(filter(None, lines.values()), "")
                return True
        return False

    def _end(self, pid: int) -> None:
        with guarded(self.place, "stacks of a replay"):  # it is ended in any case
            taken = stack_dumps.take(process_tree.descendants(pid)[:1], STACK_SECONDS)
            self.stacks = stack_dumps.text(taken)
            self.frame = next((frame for stack in taken for frame in _own_frames(stack)), "")
            self.awaits = self.frame if taken and _is_for_others(taken[0]) else ""
            run_folder.write_text(self.place / "stacks.txt", self.stacks, private=True)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def is_still(place: Path, longest: float) -> bool:
    """Return whether the newest step of a replay lasts longer than a step may."""
    with contextlib.suppress(OcrlabError, OSError):
        now = ring_reader.read_ring(place / "ring.bin").now
        return now is not None and time.time() - now.time > longest
    return False


def _loading(pids: Sequence[int], place: Path) -> dict[int, str]:
    """Return which of some processes are in the middle of loading a sample or a batch, each with its line."""
    with guarded(place, "stacks of workers"):
        taken = stack_dumps.take(
            [process for pid in pids for process in process_tree.descendants(pid)[:1]], STACK_SECONDS
        )
        ours = [s for s in taken for t in s.threads[:1] if any(f.file.endswith(LOADS) for f in t.frames)]
        return {stack.process.pid: next(iter(_own_frames(stack)), "") for stack in ours}
    return {}


def _is_for_others(stack: stack_dumps.Stack) -> bool:
    """Return whether a main thread waits in multiprocessing, other than for the workers of a loader."""
    frames = [frame.file for thread in stack.threads[:1] for frame in thread.frames]
    inner = " ".join(itertools.takewhile(lambda file: not is_own(file), frames))
    return "/multiprocessing/" in inner and "/torch/utils/data/" not in inner


def _own_frames(stack: stack_dumps.Stack) -> list[str]:
    """Return the lines of a main thread that are the program's own, the innermost first; of a forked worker those of
    what it loads, none where it waits.
    """
    frames = [frame for thread in stack.threads[:1] for frame in thread.frames if frame.line]
    frames = list(itertools.takewhile(lambda frame: frame.function != "_worker_loop", frames))
    own = [frame for frame in frames if is_own(frame.file)]
    return [f"{frame.file}:{frame.line} {frame.function}" for frame in own]


def read_json(path: Path) -> dict[str, Any]:
    try:
        return from_json(path.read_bytes(), source=path.name)
    except (OSError, OcrlabError):
        return {}
