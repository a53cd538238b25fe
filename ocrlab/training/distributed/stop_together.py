"""Stopping in order: all ranks stop and save at the same step, and a training that does not get there is ended.

A signal handler of Python runs between two instructions of the main thread, which a hung one may never come to. So the
C half of the handler wakes a thread (`signal.set_wakeup_fd`), which needs nothing of the main thread but its GIL. Where
that is not let go of either, `ocrlab watch` ends the process from outside.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as group
from torch import Tensor

from ocrlab.errors import DataError, OcrlabError, RunError
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training.distributed.collectives import about_rank

WITHIN, TIMES, MOST = 10.0, 3.0, 120.0  # seconds to the end of a micro-batch, or so many of the longest, at most these
WATCHED = 8.0  # seconds more under `ocrlab watch`, which sees all processes and judges the hang
SAVING = 60.0  # seconds from there to the end of the fit: last.ckpt is written
ANNOUNCED_AFTER = 2.0  # seconds of waiting after which the deadline is printed
LAST = 1.0  # seconds for the last message on disk
REACHED = 0  # the byte for "the training stops now"; all others are numbers of signals
LATE, CLOSED = -1, -2  # in place of a byte: none came in time, the `with` block has ended


class StopDeadline:
    """A thread that waits for SIGINT or SIGTERM, and then for REACHED and the end of the `with` block.

    A training that misses a deadline prints where it hangs, writes that down with `fail`, and ends.
    """

    def __init__(
        self, seconds: Callable[[], float], fail: Callable[[dict[str, Any]], Any], who: str = "", more: float = 0.0
    ) -> None:
        self.seconds, self.fail, self.who, self.more = seconds, fail, who, more
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        self.thread = threading.Thread(target=self._wait, name="ocrlab stop deadline", daemon=True)
        self.thread.start()

    def __enter__(self) -> StopDeadline:
        """Let signals wake the thread, unless an event loop is woken by them already: then the handler notes them."""
        self.previous = -1
        with contextlib.suppress(ValueError):  # not the main thread: the program around us owns the signals
            self.previous = signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
            if self.previous != -1:
                signal.set_wakeup_fd(self.previous)
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous == -1:
            with contextlib.suppress(ValueError):
                signal.set_wakeup_fd(-1)
        os.close(self.writing)
        self.thread.join(LAST)

    def note(self, number: int) -> None:
        """Note a signal, or REACHED; may be called by a signal handler."""
        with contextlib.suppress(OSError):
            os.write(self.writing, bytes([number]))

    def _wait(self) -> None:
        """Wait for a signal, then for the end of the micro-batch, then for the end of the `with` block."""
        try:
            number = self._read((signal.SIGINT, signal.SIGTERM))
            if number == CLOSED:
                return
            asked, within = time.monotonic(), self.seconds()
            due = asked + within + self.more
            answer = self._read((REACHED,), min(due, asked + ANNOUNCED_AFTER))
            if answer == LATE:
                if not self.who:  # of several ranks the first announces
                    name = signal.Signals(number).name
                    write_line(f"ocrlab: {name}: training stops after this micro-batch; forced exit in {within:.0f} s")
                answer = self._read((REACHED,), due)
            if answer == REACHED:
                answer = self._read((), time.monotonic() + SAVING)
            if answer == LATE:
                self._end(number, time.monotonic() - asked)
        finally:
            os.close(self.reading)

    def _read(self, wanted: Sequence[int], due: float = math.inf) -> int:
        """Return the next of the wanted bytes; LATE when it is due and none came, CLOSED at the end of the block."""
        while True:
            wait = None if due == math.inf else max(0.0, due - time.monotonic())
            if not select.select([self.reading], [], [], wait)[0]:
                return LATE
            data = os.read(self.reading, 1)
            if not data:
                return CLOSED
            if data[0] in wanted:
                return data[0]

    def _end(self, number: int, passed: float) -> None:
        """Print where every thread is, write it down, and end the process with its loader workers."""
        what = f"{self.who}training did not stop within {passed:.0f} s of {signal.Signals(number).name}; it hangs"
        write_line(f"ocrlab: {what} here, and is ended:")
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback(2, all_threads=True)
        error = {"type": "Hung", "message": what, "where": None}
        record = threading.Thread(target=self.fail, args=(error,), daemon=True)  # the disk may be what hangs
        record.start()
        record.join(LAST)
        with contextlib.suppress(Exception):
            for child in multiprocessing.active_children():
                child.kill()
        os._exit(128 + number)


def allowed(longest: float, micros: int) -> float:
    """Return the seconds to the end of `micros` micro-batches, of which the longest lately took so many seconds."""
    return min(max(WITHIN, TIMES * longest * micros), MOST)


def write_line(text: str) -> None:
    """Write a line to stderr past Python's own stream, whose lock a hung thread may hold."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))


class StopAgreement:
    """What all ranks know at the end of a step: whether one must stop, whether to save, and the batches of each.

    The numbers travel while the next step is computed: `exchange` returns those of the step before, the same on every
    rank, so that all act at the same step and none waits. A message is (signal, save, micro-batches done, batches of
    this step, and the shape B C H W of a batch).
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.shapes: list[tuple[int, ...]] = []  # of the batches of this step
        self.work: Any = None
        self.messages: list[Tensor] = []

    def note_batch(self, images: Tensor) -> None:
        """Note the shape of a batch (B, C, H, W)."""
        self.shapes.append(tuple(images.shape))

    def exchange(self, micro: int, stop: int, save: bool) -> tuple[int, bool]:
        """Send the message of this step, and return (signal to stop for, save) of the last; raises DataError."""
        decided = self.settle()
        odd = next((shape for shape in self.shapes if shape != self.shapes[0]), self.shapes[0])
        message = torch.tensor([stop, int(save), micro, len(self.shapes), *odd])
        self.shapes = []
        self.messages = [torch.zeros_like(message) for _ in range(self.ranks.world)]
        self.work = group.all_gather(self.messages, message, async_op=True)
        return decided

    def settle(self) -> tuple[int, bool]:
        """Return what the messages of the last step have decided; raises DataError where a rank's batch is another."""
        if self.work is None:
            return 0, False
        self.work.wait()
        self.work = None
        rows = [tuple(message.tolist()) for message in self.messages]
        batches = [row[2:] for row in rows]
        majority = max(batches, key=batches.count)
        for rank, batch in enumerate(batches):
            if batch[2:] != majority[2:]:
                error: OcrlabError = DataError(
                    f"Rank {rank} got a batch of another shape",
                    got=f"{batch[2:]} up to its micro-batch {batch[0]}",
                    need=f"{majority[2:]}, as on the others",
                    do="All ranks need the same config, data and version of ocrlab",
                )
                raise about_rank(rank, error)
            if batch != majority:
                what = f"Rank {rank} has done another number of micro-batches"
                raise about_rank(rank, RunError(what, got=batch[0], need=f"{majority[0]}, as the others have"))
        return max(row[0] for row in rows), any(row[1] for row in rows)
