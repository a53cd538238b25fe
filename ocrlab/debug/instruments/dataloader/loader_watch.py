"""Waiting for data against computing, and why: any loader, watched from inside its workers.

    with loader.watch(train_loader) as seen:
        for batch in seen:                 # or in train_loader itself, also inside lightning.Trainer.fit
            ...
    print(seen.finding()); seen.table(); seen.slowest(); seen.steps()

`tune_workers.measure` tries settings and recommends only what it has measured.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from ocrlab.debug.instruments.dataloader import bottlenecks as reasons
from ocrlab.debug.instruments.dataloader import sample_names as names
from ocrlab.debug.instruments.dataloader import sample_timing as samples
from ocrlab.debug.instruments.dataloader import worker_log as journal
from ocrlab.debug.instruments.dataloader.tune_workers import Setting, Trial, TuningResult, measure, rebuild_loader
from ocrlab.debug.instruments.dataloader.worker_locks import LockStats, current_syscall
from ocrlab.debug.instruments.dataloader.worker_log import Death, Step
from ocrlab.run_folder.fail_safe import InstrumentGuard, raised_by_signal

if TYPE_CHECKING:
    import pandas

__all__ = ["Death", "LoaderReport", "Setting", "Step", "Trial", "TuningResult", "measure", "rebuild_loader", "watch"]

MAX_LOCK_PROBES = 200  # steps before whose wait each worker is looked at
MOST = 100_000  # of the last steps that are kept one by one
MAIN = -1  # the worker number of the training process itself


class LoaderReport:
    """A watched loader: iterate over it as over the loader itself, whose attributes it has; then ask what was seen."""

    def __init__(self, source: Iterable[Any], folder: Path) -> None:
        self.source, self.folder = source, folder
        self.step_records: deque[Step] = deque(maxlen=MOST)
        self.logs: list[journal.Log] = []
        self.deaths: list[Death] = []
        self.error: BaseException | None = None
        self.epochs, self.guard = 0, InstrumentGuard("loader.watch")
        self.workers = int(getattr(source, "num_workers", 0) or 0)
        self.processes: dict[int, Any] = {}
        self.schedule: int | None = None
        self._delay = self._cpu = 0.0  # of this thread, of this process, when the last batch came
        self._timing = 0.0  # seconds that timing samples had taken in this process by then
        self.locks = LockStats()
        self._mark: Any = None  # a CUDA event behind everything that the last step asked of the device
        self.from_loader = False  # the loader itself makes timed iterators

    def __iter__(self) -> Iterator[Any]:
        before = self.epochs
        iterator = _TimedIterator(self, lambda: iter(self.source), outside=True)
        return iterator if self.epochs == before else iterator._below  # the loader has made a timed one

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # while this is being made or copied
            raise AttributeError(name)
        return getattr(self.source, name)

    def table(self) -> pandas.DataFrame:
        """Return one row for each process that loads: rate, shares of its time, threads, memory in MB, how it ended."""
        import pandas as pd

        self._read()
        return pd.DataFrame([reasons.process_row(log, self.deaths) for log in self.logs])

    def steps(self) -> pandas.DataFrame:
        """Return one row for each step: seconds of waiting for its data and of computing."""
        import pandas as pd

        names = ["began", "wait", "compute", "first", "idle", "delay", "cpu"]
        return pd.DataFrame([asdict(step) for step in self.step_records], columns=names)

    def slowest(self, count: int = 10) -> pandas.DataFrame:
        """Return the samples that took longest, by name: seconds, times the median, and what they did meanwhile."""
        import pandas as pd

        self._read()
        names = ["sample", "seconds", "times", "doing", "worker", "index"]
        return pd.DataFrame(reasons.slowest_samples(self.logs, count), columns=names)

    def waiting(self) -> float:
        """Return the share of the step that is waiting for data, 0 to 1, without the first step of each epoch."""
        return reasons.waiting_share(list(self.step_records))

    def findings(self) -> list[str]:
        """Return everything that was found, the most important first."""
        self._read()
        persistent = bool(getattr(self.source, "persistent_workers", False))
        return reasons.findings(
            list(self.step_records), self.logs, self.deaths, self.workers, self.error, self.locks, persistent=persistent
        )

    def finding(self) -> str:
        """Return in one sentence what the training waits for, and why."""
        return self.findings()[0]

    def __str__(self) -> str:
        return "\n".join([*self.findings(), reasons.table_text(self.table())])

    def left(self, now: float) -> None:
        """Take note that a step ended, and that the wait for the next batch begins."""
        last = self.step_records[-1] if self.step_records else None
        if last is not None and last.compute is None:
            last.compute = now - last.began - last.wait
            last.delay = journal.runqueue_seconds(self.schedule) - self._delay
            last.cpu = time.process_time() - self._cpu
        if len(self.step_records) <= MAX_LOCK_PROBES:
            self.locks.see(
                [at for pid, process in self.processes.items() if process.is_alive() and (at := current_syscall(pid))]
            )
        if torch.cuda.is_initialized() and torch.cuda.is_available():
            self._mark = torch.cuda.Event()
            self._mark.record()

    def came(self, began: float, now: float, first: bool) -> None:
        """Take note that a batch came."""
        idle = None if self._mark is None else bool(self._mark.query())
        self._mark = None
        timing = samples.timing_seconds(self.folder)  # in the training process it is no waiting of the program's own
        self.step_records.append(Step(began, max(now - began - timing + self._timing, 0.0), None, first, idle))
        self._timing = timing
        self._delay, self._cpu = journal.runqueue_seconds(self.schedule), time.process_time()

    def started(self, before: set[Any]) -> None:
        """Take note of the processes that the loader started, and which thread takes the batches."""
        self.epochs += 1
        self.processes |= {int(p.pid or 0): p for p in multiprocessing.active_children() if p.pid not in before}
        if self.schedule is None:
            self.schedule = journal.open_schedstat()

    def ended(self, error: BaseException) -> None:
        """Take note that loading failed, and of each worker that is dead."""
        self.error = error
        self.died()

    def died(self) -> None:
        """Take note of each worker that is dead."""
        self._read()
        time.sleep(0.05 if self.processes else 0)  # a signal is told before the exit status can be read
        logs = {log.pid: log for log in self.logs}
        for number, (pid, process) in enumerate(sorted(self.processes.items())):
            code = process.exitcode
            if code and pid not in {death.pid for death in self.deaths}:
                log = logs.get(pid, journal.Log(pid, number))
                how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                sample = names.sample_text(getattr(self.source, "dataset", None), log.now)
                self.deaths.append(Death(log.worker, pid, how, sample, log.count))

    def _read(self) -> None:
        if self.folder.is_dir():
            self.logs = journal.read_logs(self.folder)


class _TimedIterator(Iterator[Any]):
    """An iterator over batches that takes the time; everything else is that of the loader's own iterator.

    `outside` is one around a loader whose own iterator may be timed, too: then that one counts.
    """

    def __init__(self, report: LoaderReport, begin: Callable[[], Iterator[Any]], outside: bool = False) -> None:
        self._report, self._outside = report, outside
        self._below = self._begin(begin)

    @classmethod
    def around(cls, report: LoaderReport, iterator: Iterator[Any]) -> _TimedIterator:
        """Return one around an iterator that is there already."""
        watched = cls.__new__(cls)
        watched._report, watched._outside, watched._below = report, False, iterator
        watched._first, watched._entered = True, time.monotonic()
        return watched

    def _begin(self, begin: Callable[[], Any]) -> Any:
        report = self._report
        self._first, self._entered = True, time.monotonic()
        self._before = {process.pid for process in multiprocessing.active_children()}
        report.from_loader |= not self._outside
        try:
            begun = begin()
        except Exception as error:
            report.ended(error)
            raise
        if not self._outside:
            self._notify(report.started, self._before)
        return begun

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        """Begin another epoch with the workers of a persistent loader, which calls this."""
        self._begin(lambda: self._below._reset(*args, **kwargs))

    def __len__(self) -> int:
        return len(self._below)

    def __next__(self) -> Any:
        report = self._report
        now = self._entered if self._first else time.monotonic()
        if not self._first:
            self._notify(report.left, now)
        try:
            batch = next(self._below)
        except StopIteration:
            raise
        except BaseException as error:
            self._notify(report.ended, error)
            raise
        if self._first and self._outside:
            self._notify(report.started, self._before)
        self._notify(report.came, now, time.monotonic(), self._first)
        self._first = False
        return batch

    def __getattr__(self, name: str) -> Any:
        if name == "_below":
            raise AttributeError(name)
        return getattr(self._below, name)

    def _notify(self, method: Any, *args: Any) -> None:
        if not self._report.guard.problem and not (self._outside and self._report.from_loader):
            try:
                method(*args)
            except Exception as error:
                if raised_by_signal(error):  # a worker died just now, and torch says so from its handler
                    self._report.error = error
                self._report.guard.handle(error)


@contextlib.contextmanager
def watch(source: Iterable[Any]) -> Iterator[LoaderReport]:
    """Measure inside the block how long each step waits for its batch, which samples are slow, and what workers do.

    source     a torch DataLoader, over which the program iterates as ever, also inside of Lightning; of any other
               iterable only waiting and computing are measured, by iterating over what this returns

    Batches, their order and every random state stay what they are; all times are in seconds. Begin before the workers
    start: those of a persistent loader that was used before are not looked into. What was measured can be asked inside
    the block and after. Raises OSError where no temporary folder can be made.
    """
    folder = Path(tempfile.mkdtemp(prefix="ocrlab-loader-"))
    report = LoaderReport(source, folder)
    undo: list[Any] = []
    try:
        if isinstance(source, DataLoader):
            with report.guard():
                _attach(source, report, undo)
        yield report
    except Exception:
        with contextlib.suppress(Exception):  # torch tells a death wherever the program is, also in its own step
            report.died()
        raise
    finally:
        for each in reversed(undo):
            with contextlib.suppress(Exception):
                each()
        report._read()
        _close(report)
        shutil.rmtree(folder, ignore_errors=True)  # a worker that lives on sees that and closes its journal


def _attach(loader: DataLoader[Any], report: LoaderReport, undo: list[Any]) -> None:
    """Let a loader make timed iterators by an attribute of its own, and put into `undo` what takes it away.

    DataLoader has no public hook for that. `__iter__` of it, and of most of its subclasses, calls `_get_iterator`; of
    one that does not, only who iterates over `seen` is timed.
    """
    inner: Any = loader if issubclass(type(loader), DataLoader) else getattr(loader, "base_dataloader", loader)
    attributes, make = vars(inner), inner._get_iterator
    before = attributes.get("_get_iterator")

    def get_iterator() -> Iterator[Any]:
        places: dict[str, tuple[Any, Any]] = {}
        with contextlib.ExitStack() as stack:
            with report.guard():
                places = stack.enter_context(samples.timed_samples(inner, report.folder))
            iterator = _TimedIterator(report, make)
        if inner.num_workers:  # they have got theirs
            below = getattr(iterator._below, "__dict__", {})
            below.update({f"_{name}": own for name, (ours, own) in places.items() if below.get(f"_{name}") is ours})
        return iterator

    def leave() -> None:
        if attributes.get("_get_iterator") is get_iterator:
            del attributes["_get_iterator"]
            attributes.update({} if before is None else {"_get_iterator": before})
        if isinstance(attributes.get("_iterator"), _TimedIterator):  # of a persistent loader, whose workers live on
            attributes["_iterator"] = attributes["_iterator"]._below

    undo.append(leave)
    if not inner.num_workers:
        samples.begin(report.folder, MAIN)
        undo.append(lambda: samples.end(report.folder))
    if (iterator := attributes.get("_iterator")) is not None:  # workers that were there before: only waits are timed
        attributes["_iterator"] = _TimedIterator.around(report, iterator)
    attributes["_get_iterator"] = get_iterator


def _close(report: LoaderReport) -> None:
    descriptor, report.schedule = report.schedule, None
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(descriptor)
