"""How long each step waits for its data, and why: any loader, watched from inside its workers.

    with ocrlab.debug.watch_dataloader(train_loader) as report:
        for batch in report:                 # or in train_loader itself, also inside lightning.Trainer.fit
            ...
    print(report.finding()); report.table(); report.slowest(); report.steps()

`measure` tries settings and recommends only what it has measured.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from ocrlab.debug.instruments import sample_names
from ocrlab.debug.instruments.dataloader import bottlenecks, loader_proxy, sample_timing, worker_log
from ocrlab.debug.instruments.dataloader.bottlenecks import Loading
from ocrlab.debug.instruments.dataloader.loader_proxy import IteratorProxy
from ocrlab.debug.instruments.dataloader.tune_workers import Setting, measure
from ocrlab.debug.instruments.dataloader.worker_log import Death, Step
from ocrlab.run_folder.fail_safe import InstrumentGuard, raised_by_signal

if TYPE_CHECKING:
    import pandas

__all__ = ["LoaderReport", "Setting", "Step", "measure", "watch"]

MAX_STEPS = 100_000  # of the last steps that are stored
MAIN = -1  # the worker number of the training process itself


class LoaderReport:
    """A watched loader and what was measured: iterate over it as over the loader itself, whose attributes it has."""

    def __init__(self, source: Iterable[Any], folder: Path) -> None:
        self.source, self.folder = source, folder
        self.step_records: deque[Step] = deque(maxlen=MAX_STEPS)
        self.logs: list[worker_log.Log] = []
        self.deaths: list[Death] = []
        self.error: BaseException | None = None
        self.epochs, self.guard = 0, InstrumentGuard("loader.watch")
        self.workers = int(getattr(source, "num_workers", 0) or 0)
        self.processes: Sequence[Any] = ()  # the workers of this epoch
        self._delay = self._cpu = 0.0  # of this thread, of this process, when the last batch came
        self._timing = 0.0  # seconds that timing samples had taken in this process by then
        self._event: Any = None  # a CUDA event after everything that the last step asked of the device
        self.loader: Any = None  # the DataLoader that this takes part in
        self.from_loader = False  # the loader itself makes timed iterators

    def __iter__(self) -> Iterator[Any]:
        iterator = TimedIterator(self, is_outside=True).begin(lambda: iter(self.source))
        return iterator._iterator if isinstance(iterator._iterator, TimedIterator) else iterator

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.source, name)

    def table(self) -> pandas.DataFrame:
        """Return one row for each process that loads: rate, shares of its time, threads, memory in MB, how it ended."""
        import pandas as pd

        self.read_logs()
        return pd.DataFrame([bottlenecks.process_row(log, self.deaths) for log in self.logs])

    def steps(self) -> pandas.DataFrame:
        """Return one row for each step: seconds of waiting for its data and of computing."""
        import pandas as pd

        return pd.DataFrame(list(self.step_records), columns=[column.name for column in fields(Step)])

    def slowest(self, count: int = 10) -> pandas.DataFrame:
        """Return the samples that took longest, by name: seconds, times the median, and what they did meanwhile."""
        import pandas as pd

        self.read_logs()
        names = ["sample", "seconds", "times", "doing", "worker", "index"]
        return pd.DataFrame(bottlenecks.slowest_samples(self.logs, count), columns=names)

    def waiting(self) -> float:
        """Return the share of the step that is waiting for data, 0 to 1, without the first step of each epoch."""
        return Loading(list(self.step_records)).waiting_share

    def findings(self) -> list[str]:
        """Return all findings, the most important first."""
        self.read_logs()
        persistent = bool(getattr(self.source, "persistent_workers", False))
        steps = list(self.step_records)
        return Loading(steps, self.logs, self.deaths, self.workers, self.error, persistent).findings()

    def finding(self) -> str:
        """Return in one sentence what the training waits for, and why."""
        return self.findings()[0]

    def __str__(self) -> str:
        return "\n".join([*self.findings(), bottlenecks.table_text(self.table())])

    def read_logs(self) -> None:
        """Read what the processes that load have written; after the block their last logs stay."""
        if self.folder.is_dir():
            self.logs = worker_log.read_logs(self.folder)

    # What happens in the loader

    def attach(self) -> None:
        """Let a loader make timed iterators.

        `__iter__` of DataLoader and of most of its subclasses calls `_get_iterator`; of one that does not, only an
        iteration over the report is timed.
        """
        source: Any = self.source
        if isinstance(source, DataLoader):
            says_so = not issubclass(type(source), DataLoader)  # as accelerate's wrapper says
            self.loader = loader = getattr(source, "base_dataloader", source) if says_so else source
            if not loader.num_workers:
                sample_timing.begin(self.folder, MAIN)
            if (iterator := vars(loader).get("_iterator")) is not None:  # workers that are there already are not timed
                vars(loader)["_iterator"] = TimedIterator(self, iterator)
            loader_proxy.observe(loader, self)

    def detach(self) -> None:
        """Leave the loader as it was, and read the logs for the last time."""
        if self.loader is not None:
            loader_proxy.leave(self.loader, self)
        sample_timing.end(self.folder)
        self.read_logs()

    def prepare(self, loader: Any) -> None:
        """Let a copy of the loader time its samples."""
        with self.guard():
            sample_timing.install(loader, self.folder)

    def wrap(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return a timed iterator."""
        return TimedIterator(self).begin(make)

    def epoch_began(self, iterator: Any) -> None:
        """Note an epoch and the workers of its iterator."""
        self.epochs += 1
        self.processes = getattr(iterator, "_workers", ())

    def wait_began(self, now: float) -> None:
        """Note that a step ended, and that the wait for the next batch begins."""
        last = self.step_records[-1] if self.step_records else None
        if last is not None and last.compute is None:
            last.compute = now - last.began - last.wait
            last.delay = worker_log.seconds_without_core() - self._delay
            last.cpu = time.process_time() - self._cpu
        if torch.cuda.is_initialized() and torch.cuda.is_available():
            self._event = torch.cuda.Event()
            self._event.record()

    def batch_came(self, began: float, now: float, first: bool) -> None:
        """Note that a batch came."""
        idle = None if self._event is None else bool(self._event.query())
        self._event = None
        timing = sample_timing.timing_seconds(self.folder)  # in the training process it is not a wait of the program
        self.step_records.append(Step(began, max(now - began - timing + self._timing, 0.0), None, first, idle))
        self._timing = timing
        self._delay, self._cpu = worker_log.seconds_without_core(), time.process_time()

    def loading_failed(self, error: BaseException | None = None) -> None:
        """Note that loading failed, and each worker that is dead."""
        self.error = error or self.error
        time.sleep(0.05 if self.processes else 0)  # torch hears of a death before the exit status can be read
        self.read_logs()
        logs = {log.pid: log for log in self.logs}
        for number, process in enumerate(self.processes):
            if (code := process.exitcode) and process.pid not in {death.pid for death in self.deaths}:
                log = logs.get(process.pid, worker_log.Log(process.pid, number))
                how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                sample = sample_names.index_text(getattr(self.source, "dataset", None), log.now)
                self.deaths.append(Death(log.worker, log.pid, how, sample, log.count))


class TimedIterator(IteratorProxy):
    """Times the batches of an epoch.

    `is_outside` for one around a loader whose own iterator may be timed, too: then that one counts.
    """

    def __init__(self, report: LoaderReport, iterator: Any = None, *, is_outside: bool = False) -> None:
        super().__init__(report, iterator)
        self._is_outside, self._is_first, self._entered = is_outside, True, time.monotonic()

    def begin(self, make: Callable[[], Any]) -> TimedIterator:
        """Begin an epoch with the iterator that `make` returns, or None for the same one again."""
        report = self._observer
        self._is_first, self._entered = True, time.monotonic()
        report.from_loader |= not self._is_outside
        try:
            iterator = make()
        except Exception as error:
            report.loading_failed(error)
            raise
        self._iterator = self._iterator if iterator is None else iterator
        if not self._is_outside:
            self._note(report.epoch_began, self._iterator)
        return self

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        self.begin(lambda: self._iterator._reset(*args, **kwargs))

    def __next__(self) -> Any:
        report = self._observer
        now = self._entered if self._is_first else time.monotonic()
        if not self._is_first:
            self._note(report.wait_began, now)
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise
        except BaseException as error:
            self._note(report.loading_failed, error)
            raise
        if self._is_first and self._is_outside:
            self._note(report.epoch_began, self._iterator)
        self._note(report.batch_came, now, time.monotonic(), self._is_first)
        self._is_first = False
        return batch

    def _note(self, method: Callable[..., None], *args: Any) -> None:
        report = self._observer
        if not report.guard.problem and not (self._is_outside and report.from_loader):
            try:
                method(*args)
            except Exception as error:
                if raised_by_signal(error):  # a worker died just now, and torch says so from its handler
                    report.error = error
                report.guard.handle(error)


@contextlib.contextmanager
def watch(source: Iterable[Any]) -> Iterator[LoaderReport]:
    """Measure inside the block how long each step waits for its batch, which samples are slow, and what workers do.

    Args:
        source: A torch DataLoader, which the program iterates as usual, also inside of Lightning. For any other
            iterable, iterate over the returned report; only waiting and computing are then measured.

    Batches, their order and every random state do not change; all times are in seconds. Enter the block before the
    workers start: those of a persistent loader that already run are not timed. The report can be read inside the block
    and after it. Raises OSError if no temporary folder can be made.
    """
    report = LoaderReport(source, Path(tempfile.mkdtemp(prefix="ocrlab-loader-")))
    try:
        with report.guard():
            report.attach()
        yield report
    except Exception:
        with contextlib.suppress(Exception):  # torch reports a death wherever the program is, also in its own step
            report.loading_failed()
        raise
    finally:
        with report.guard():
            report.detach()
        shutil.rmtree(report.folder, ignore_errors=True)  # a worker that lives on notices, and closes its log
