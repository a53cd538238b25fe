"""Restore and feed: the program, started again as a replay, goes from a snapshot through the recorded steps.

Which run, which steps and which variant of the matrix is in the job that OCRLAB_REPLAY names. Each loss is compared
with the record, bit for bit; `out/result.json` is written after every step, and the process ends after the last one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ocrlab import run_folder
from ocrlab.debug.flight_record import notebook_cells, program_info, ring_reader, ring_writer
from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.instruments import sample_names
from ocrlab.debug.recorder import replay_registration, rng_state, saved_rng_states, snapshots
from ocrlab.debug.recorder.loader_recorder import LoaderRecorder, can_record
from ocrlab.debug.recorder.sample_recorder import BatchOrigin, StatusLocation
from ocrlab.debug.replay.child import batch_feed, file_sandbox, single_rank
from ocrlab.debug.replay.child.batch_feed import BatchFeed, parts
from ocrlab.debug.replay.tracing import tracer
from ocrlab.errors import DataError
from ocrlab.records import SCHEMA
from ocrlab.run_folder.fail_safe import print_message


class ReplaySession:
    """One replay: the recorded steps, the state to begin with, and what came out."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.job = dict(job)
        self.out, self.rank = Path(job["out"]).absolute(), int(job.get("rank", 0))
        self.folder = Path(job["run"], "flight").absolute()
        wanted = [(self.rank, job["start"])] if job.get("start") is not None else []
        rings = [path for path in ring_reader.find_rings(self.folder) if ring_reader.parse_name(path)[0] == self.rank]
        ring = next((path for path in rings if not wanted or ring_reader.parse_name(path) in wanted), None)
        if ring is None:
            raise DataError(f"{self.folder} has no ring of rank {self.rank}", need="a run with a flight recorder")
        self.recorded = ring_reader.read_ring(ring)
        self.state = snapshots.read(Path(job["snapshot"])) if job.get("snapshot") else None
        first = self.state["micro"] if self.state else 0
        last = int(job["last_step"])
        self.records = [step for step in self.recorded.steps if step.micro >= first and step.number <= last]
        pending = batch_feed.pending_batches(self.recorded, self.records, last, self.folder)
        self.from_start = bool(program_info.read(self.folder, self.rank).get("from_start"))
        self.whole = bool(job.get("whole"))  # from its beginning on, with its own batches
        # The batch of a validation from which on it is looked at, -1 for none of them.
        self.validated = (job.get("cell") or {}).get("validate", job.get("validate"))
        self.is_before = self.validated is not None and not self.recorded.steps  # of a validation before all training
        if not self.whole and not self.is_before:
            batch_feed.check_steps(self.records, pending, first)
        self.first_epoch = self.records[0].epoch if self.records and not self.whole else 0
        self.writer = ring_writer.Writer(self.out / "ring.bin", slots=64, rank=self.rank)
        place = StatusLocation(self.out, self.rank, 0, 0)
        self.waiting = len(pending)  # batches that the run never got
        recorded = [*self.records, *pending]
        goes_on = self.validated is not None
        # It ended outside of its loop over the batches.
        ours = bool(self.records) and not pending and last > self.records[-1].number
        make_feed = partial(batch_feed.FullRerunFeed, done=self.is_done) if self.whole else BatchFeed
        self.feeding = make_feed(
            recorded, self.folder, place, self.recorded.start, self.over, goes_on=goes_on, behind=ours
        )
        self.feeding.trust = bool(job.get("trust"))
        self.index = -1 - (self.records[0].micro if self.whole else 0)
        self.now: Step | None = None
        self.batch: Any = None
        self.loss_value: float | None = None
        self.tensor: Tensor | None = None  # the loss itself: its storage tells whose NaN it is
        self.results: list[dict[str, Any]] = []
        self.trace: Any = None
        self.training_state: Any = None
        self.is_loaded = self.is_finished = False
        self.home = threading.get_ident()  # the thread of the loop
        self.fetching: int | None = None  # the thread that has asked for the batch at hand
        self.error: dict[str, Any] | None = None  # of the program; another thread may fetch batches after it
        self.is_ahead = False  # another thread does
        self.writing = threading.Lock()

    @classmethod
    def asked(cls, job: Mapping[str, Any]) -> ReplaySession | None:
        """Return the replay of a job; None for what the program records before the run that is replayed. Raises what a
        job can have wrong.
        """
        notebook_cells.begin_recording()
        if single_rank.is_other(job):
            if single_rank.asked:  # another rank, for which nobody waits
                leave()
            return None
        return cls(job) if "nth" not in job or saved_rng_states.count_recording() == job["nth"] else None

    def start(self, model: Any, optimizers: Any) -> None:
        """Set up the tracing (which switches the variant of the matrix), and keep the program from saving."""
        self.trace = tracer.Tracer(model, self.job, self.writer, optimizers=optimizers)
        torch.save = _saving(torch.save)
        if self.whole:
            saved_rng_states.restore_start(self.folder, self.rank, self.recorded.start)

    def feed(self, loader: Any) -> Any:
        """Return a loader that gives the recorded batches."""
        file_sandbox.end_hiding()
        return self.feeding.serve(loader)

    def batches(self, loader: Any, loop: Any) -> Iterator[Any]:
        """Yield the recorded batches of the next walk to a hand-written loop, restoring its state before the first."""
        file_sandbox.end_hiding()
        self.end()
        self._load()
        try:
            for batch in self.feeding.batches(loader):
                self._begin_in(loop, batch)
                yield self.batch
                self.end()
        except Exception as error:
            if threading.get_ident() != self.home:  # in a thread of the program, whose loop may wait for ever
                self.failed(error)
                leave()
            raise
        if self.feeding.is_behind:
            self.trace.behind()

    def _load(self) -> None:
        """Load the snapshot into the parts of a hand-written loop, once."""
        if not self.is_loaded and self.training_state is not None:
            self.is_loaded = True
            if self.state is not None:
                self.training_state.load(self.state["state"])

    def _begin_in(self, loop: Any, batch: Any) -> None:
        step, now = self.begin(batch), loop.now
        now.micro, now.number, now.epoch = step.micro, step.number, step.epoch

    def steps(self, numbers: Iterable[Any], loop: Any) -> Iterator[Any]:
        """Yield those of the `numbers` of a hand-written loop that the replay makes, from its snapshot on."""
        file_sandbox.end_hiding()
        self._load()
        self._await_extra_step()
        first = 0 if self.whole else self.records[0].micro if self.records else 0
        for number in itertools.islice(numbers, first, None):
            self.over()
            self._begin_in(loop, None)
            yield number
            self.end()
        self.over()

    def next_step(self, loop: Any) -> None:
        """Begin the next step of a loop that draws its batches by itself: it ends with the step of its optimizer."""
        file_sandbox.end_hiding()
        self.end()
        self._await_extra_step()
        self.over()
        self._begin_in(loop, None)

    def _await_extra_step(self) -> None:
        """Make one step more than was recorded where the run ended between two steps, of a loop without batches."""
        if self.records and int(self.job["last_step"]) > self.records[-1].number:
            self.waiting = 1

    def start_loop(self, training_state: Any) -> None:
        """Get ready to replay a hand-written loop; an error that nobody catches is one of the replay, too."""
        self.training_state, self.home = training_state, threading.get_ident()
        original_hook = sys.excepthook

        def uncaught(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
            self.failed(error)
            original_hook(kind, error, traceback)

        sys.excepthook = uncaught
        self.start(training_state.models, training_state.optimizers)

    def begin(self, batch: Any, micro: int | None = None) -> Step:
        """Put the random states to those of the next recorded step; ends the process after the last one.

        `self.batch` is then what the step is to be made with.
        """
        self.index += 1
        self.fetching = threading.get_ident()
        self.loss_value = self.tensor = None
        if self.index < 0:
            first, ahead = self.records[0], -self.index  # of it the record says nothing
            self.now, self.batch = Step(max(0, first.number - ahead), first.micro - ahead, 0, 0), batch
            self.writer.begin(replace(self.now, phase="forward", time=time.time()))
            return self.now
        if self.index >= len(self.records):
            self.over()
            last = self.records[-1] if self.records else Step(-1, -1)
            self.now = Step(last.number + 1, last.micro + 1, last.epoch, last.walk)
        else:
            self.now = self.records[self.index]
            if micro is not None and micro != self.now.micro:
                raise DataError("The program is at another step", got=f"micro-batch {micro}", need=self.now.micro)
            if not self.whole:
                rng_state.restore(self.now.random)
        more: dict[str, Any] = {"random": {}, "loaded": {}, "order": {}, "loss": None, "time": time.time()}
        self.writer.begin(replace(self.now, phase="forward", **more))
        now = self.now
        anew = lambda: self.feeding.apart(now)  # noqa: E731
        self.batch = self.trace.begin(batch, now.samples, now.number, now.micro, anew=anew)
        return self.now

    def over(self, *, leaving: bool = False) -> None:
        """End the process if the last recorded step is done; where the run ended after its loop, not while the program
        is `leaving` that.
        """
        if leaving and isinstance(self.feeding, batch_feed.FullRerunFeed):
            self.feeding.left()
        if leaving and self.feeding.is_behind:
            self.trace.behind()
        elif self.now is None and self.is_done():
            self.finish()

    def is_done(self) -> bool:
        """Return whether the recorded steps are done, and the batches that the run never got."""
        return len(self.results) >= len(self.records) + (0 if self.feeding.is_short else self.waiting)

    def phase(self, name: str) -> None:
        """Say which part of the step begins; a validation after the last step counts only if the run ended in it."""
        if name == "validation" and self.validated is None:
            self.over(leaving=True)
        self.writer.phase(name)

    def validation(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of a validation in a hand-written loop."""
        if self.validated is not None and len(self.results) == len(self.records) - 1:
            self.end()  # it validates in the middle of its epoch, after the last step
        watched = LoaderRecorder(loader, StatusLocation(self.out, self.rank, 0, 1)) if can_record(loader) else None
        if watched is not None:
            watched.start()
        try:
            for number, batch in enumerate(loader):
                origin = BatchOrigin() if watched is None else watched.take_origin()
                names = sample_names.batch_names(batch) or origin.samples
                yield self.validate_loaded(batch, names, number, loader, origin)
        finally:
            if watched is not None:
                watched.stop()

    def validate_loaded(self, batch: Any, samples: Sequence[str], number: int, loader: Any, loaded: BatchOrigin) -> Any:
        """Look at batch `number` of a validation after the last step, from the one in which the run ended on, that was
        `loaded` by a loader; returns the batch that is to be validated.
        """
        if self.validated is None or len(self.results) < len(self.records) or not 0 <= self.validated <= number:
            return batch
        last = self.records[-1] if self.records else Step(0, -1)
        anew = partial(parts, loader, loaded.base, loaded.states)
        return self.trace.begin(batch, samples, last.number, last.micro + 1 + number, phase="validation", anew=anew)

    def start_lightning(self, trainer: Any, model: Any, *, validates: bool) -> Callable[[], Any]:
        """Have a Lightning trainer resume from the snapshot and write nothing; returns what undoes the rest."""
        from ocrlab.debug.replay.child import lightning_resume

        lightning_resume.start(self, trainer, model, validates=validates)
        return lightning_resume.report_errors(self, trainer)

    def hand_over(self, module: Any, step: str, original: Any, batch: Any) -> Callable[[], Any]:
        """Have a `step` of a LightningModule made with `batch` in place of the original; returns what undoes it."""
        from ocrlab.debug.replay.child import lightning_resume

        return lightning_resume.hand_over(module, step, original, batch)

    def loss(self, value: Any, scale: float = 1.0) -> None:
        """Take the loss of this micro-batch."""
        if isinstance(value, Tensor):
            self.tensor = value
            value = value.detach().item() if value.numel() == 1 else None
        if value is not None:
            self.loss_value = float(value) * scale
            self.writer.loss(self.loss_value)

    def end(self) -> None:
        """End the step at hand, if there is one: compare the loss with the record, and write down what is known."""
        step = self.now
        if step is None:
            return
        self.now = None
        if self.index < 0:
            return
        self.trace.end(self.tensor if self.tensor is not None else self.loss_value)
        self.tensor = None
        self.results.append(
            {
                "number": step.number,
                "micro": step.micro,
                "loss": self.loss_value,
                "recorded": step.loss,
                "equal": same(self.loss_value, step.loss),
                "samples": step.samples,
            }
        )
        self._write(finished=False)

    def failed(self, error: BaseException) -> None:
        """Write down an error of the program: the fault has come again, or another one."""
        if self.is_finished:
            return
        with contextlib.suppress(ValueError):  # in another thread than the main one
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch raises there for a worker that ended: in here
        if self.trace is not None:
            self.trace.failed(error, self.tensor if self.tensor is not None else self.loss_value)
            self.trace.close()
        self.error = run_folder.describe(error)
        self.is_ahead = self.fetching not in (None, threading.get_ident())
        self._write(finished=False)

    def finish(self) -> None:
        """Write the result and end the process at once: no code of the program after the last step may run."""
        self.end()
        self.is_finished = True
        self.trace.close()
        self._write(finished=True)
        self.feeding.close()
        leave()

    def _write(self, *, finished: bool) -> None:
        with self.writing:
            exited = self.feeding.exited()
            result = {
                "schema": SCHEMA,
                "steps": self.results,
                "finished": finished,
                "error": self.error,
                "exited": list(exited),
                "statuses": list(exited.values()),
                "behind": self.feeding.is_behind and self.now is None and len(self.results) >= len(self.records),
                "warnings": self.warnings(),
                "ahead": self.is_ahead,
            }
            run_folder.write_json(self.out / "result.json", result, private=True)

    def warnings(self) -> list[str]:
        """Return what may make this replay another computation than the run was."""
        left_out = [*self.state["left_out"], *self.state["state"].get("without_state", ())] if self.state else []
        texts = [*notebook_cells.warned, *self.feeding.warned]
        texts += [f"not in the snapshot: {what}" for what in left_out]
        if single_rank.from_others:
            texts.append(
                f"the program takes values of other ranks, which are not there: {', '.join(single_rank.from_others)}"
            )
        if (
            self.state is None
            and not (self.whole or self.is_before)
            and not any(step.micro for step in self.records[:1])
        ):
            texts.append("no snapshot: the weights are those that the program begins with")
        return texts


def leave() -> NoReturn:
    """End the process with status 0, past everything that waits to be run at its exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)


def same(a: float | None, b: float | None) -> bool | None:
    """Return whether two losses are the same 64 bits, None where one is not known; NaN is the same as NaN."""
    if a is None or b is None:
        return None
    return struct.pack("<d", a) == struct.pack("<d", b) or (a != a and b != b)


def _saving(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of torch.save: a file that is named is opened in Python, so that it goes to the
    scratch folder of the replay; torch's own writer would open it in C++.
    """

    def save_apart(obj: Any, f: Any, *args: Any, **named: Any) -> None:
        if not isinstance(f, str | os.PathLike):
            save(obj, f, *args, **named)
        elif file_sandbox.is_active():
            with open(f, "wb") as file:
                save(obj, file, *args, **named)
        elif not _warned:
            _warned.append(True)
            print_message("this is a replay; files that the program saves with torch.save are not written")

    return save_apart


_warned: list[bool] = []


def prepare(job: Mapping[str, Any]) -> None:
    """Prepare the process of a replay when the recorder is imported: what it writes goes aside, one rank is alone."""
    file_sandbox.begin()  # of a Python that reads no PYTHONPATH
    single_rank.begin(job)


replay_registration.register(prepare, ReplaySession.asked)
