"""The recorded batches again: from their indices and random states, from their files, or by iterating to their place.

A run that no snapshot leads to is made again from its beginning, with the batches of the program's own loader
(FullRerunFeed). The record then only tells whether it is the same run.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.flight_record.ring_reader import Flight
from ocrlab.debug.flight_record.worker_status import last_batch_failed
from ocrlab.debug.instruments import sample_names
from ocrlab.debug.recorder import batch_store, rng_state, saved_rng_states
from ocrlab.debug.recorder.loader_recorder import CountingLoader, LoaderRecorder, can_record
from ocrlab.debug.recorder.sample_recorder import (
    BatchRequest,
    SampleRecorder,
    StatusLocation,
    TaggedBatch,
    copy_with_recorder,
)
from ocrlab.errors import DataError

Parts = tuple[list[str], Callable[[Sequence[int]], Any]]


class BatchFeed:
    """The batches of some recorded steps; each walk over `batches` gives those of the next recorded walk.

    `ended` is called when more is asked for than was recorded. Where it returns, somebody has fetched ahead of the last
    step: the last batch comes once more, so that this step is not taken for the last one of an epoch; except where it
    is, and the program `goes_on` to its validation, or to what comes after (`behind`) a finished epoch.
    """

    trust = False  # raw batches are unpickled also if somebody else recorded them

    def __init__(
        self,
        steps: Sequence[Step],
        flight: Path,
        place: StatusLocation,
        start: int,
        ended: Callable[[], None],
        *,
        goes_on: bool = False,
        behind: bool = False,
    ) -> None:
        self.flight, self.place, self.start, self.ended, self.goes_on = flight, place, start, ended, goes_on
        self.walks = [list(group) for _, group in itertools.groupby(steps, key=lambda step: step.walk)]
        self.next = 0
        self.behind = behind
        self.is_behind = False  # the program continues after the current epoch
        self.is_short = False  # the data ended where the run was waiting for more
        self.iterators: list[Any] = []
        self.loader: Any = None  # the one whose samples are at hand
        self.warned: list[str] = []

    def serve(self, loader: Any) -> Any:
        """Return the loader, or what stands for it, giving the recorded batches in place of its own."""
        if not can_record(loader):
            return FedLoader(loader, self)
        loader._ocrlab_entry = entry = LoaderRecorder(loader, self.place)  # lives as long as the loader
        entry.feed = lambda: ReplayIterator(lambda: self.batches(loader))
        entry.start()
        return loader

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of the next walk; raises DataError where they cannot be made again."""
        if self.next >= len(self.walks):
            self.ended()
            return
        steps = self.walks[self.next]
        self.next += 1
        self.is_behind = self.behind and self.next >= len(self.walks) and _is_last(loader, steps[-1])
        makers = {"raw": self._read_raw, "map": self._load_by_index, "walk": self._iterate_to}
        batch = None
        for kind, group in itertools.groupby(steps, key=self._kind_of):
            for batch in makers[kind](loader, list(group)):
                yield batch
        if self.next < len(self.walks) or self.goes_on:
            return
        self.is_behind |= self.is_short and _is_last(loader, steps[-1])
        if not self.is_behind:
            self.ended()
            yield batch

    def exited(self) -> dict[int, int]:
        """Return the processes of workers that have ended by themselves, with their exit status, that of a signal
        negative; what torch raises then may be about a pipe.
        """
        workers = [worker for iterator in self.iterators for worker in getattr(iterator, "_workers", ())]
        exits = {int(process.pid): process.exitcode for process in workers}
        return {pid: code for pid, code in exits.items() if code not in (None, 0, -signal.SIGTERM)}

    def close(self) -> None:
        """End the workers."""
        for iterator in self.iterators:
            end = getattr(iterator, "_shutdown_workers", None)
            if end is not None:
                end()

    def apart(self, step: Step) -> Parts | None:
        """Return the names of a batch's samples, and what puts a batch together of some of them; None where they cannot
        be had one by one.
        """
        return parts(self.loader, step.order, step.loaded) if _kind(step) == "map" else None

    def _kind_of(self, step: Step) -> str:
        """Return what a batch is made from: from its file, where that is gone from what the record says of it."""
        kind = _kind(step)
        name = str(step.order.get("raw"))
        if kind != "raw" or batch_store.has_batch(self.flight, name):
            return kind
        walk = step.order.get("kind") == "walk" and "position" in step.order
        if not walk and not isinstance(step.order.get("indices"), str):
            return kind
        gone = "batches that were kept raw are gone: they are made again from the data set, which may give others"
        self.warned += [gone] if gone not in self.warned else []
        return "walk" if walk else "map"

    def _read_raw(self, _loader: Any, steps: list[Step]) -> Iterator[Any]:
        for step in steps:
            yield batch_store.read_batch(self.flight, step.order["raw"], trust=self.trust)

    def _load_by_index(self, loader: Any, steps: list[Step]) -> Iterator[Any]:
        """Load by index, in as many workers as then, each batch with the random states that were before it."""
        if not can_record(loader):
            got = f"{type(loader).__name__} where a DataLoader was recorded"
            raise DataError("The loader is not the one that was recorded", got=got)
        self.loader = loader
        orders = [BatchRequest(indices(step), step.loaded) for step in steps]
        recorder = SampleRecorder(loader.dataset, self.place, loader.num_workers, replayed=True)
        copied = copy_with_recorder(loader, recorder)
        sampler = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        copied.__dict__.update({sampler: orders, "persistent_workers": False})
        if copied.num_workers:
            copied.num_workers = min(copied.num_workers, len(orders))
        iterator = iter(copied)
        self.iterators.append(iterator)
        for tagged in iterator:
            yield tagged.data

    def _iterate_to(self, loader: Any, steps: list[Step]) -> Iterator[Any]:
        """Begin the walk as it began then, and leave out what came before the recorded batches."""
        wanted = {int(step.order["position"]): step for step in steps}
        rng_state.restore(saved_rng_states.load_states(self.flight, self.place.rank, self.start, steps[0].walk))
        if can_record(loader):
            self.loader = loader
            recorder = SampleRecorder(loader.dataset, self.place, loader.num_workers, replayed=True)
            loader = copy_with_recorder(loader, recorder)
        iterator = iter(loader)
        self.iterators.append(iterator)
        for position in range(max(wanted) + 1):
            step = wanted.get(position)
            if step is not None and getattr(loader, "num_workers", 0) == 0:
                rng_state.restore(step.loaded)
            try:
                batch = next(iterator)
            except StopIteration:
                if step is not None and step.order.get("pending"):
                    self.is_short = True
                    return
                raise DataError(
                    "The data ends before the recorded batch", got=f"{position} batches", need=max(wanted) + 1
                ) from None
            if step is not None:
                yield batch.data if isinstance(batch, TaggedBatch) else batch


def parts(loader: Any, order: Mapping[str, Any], states: Mapping[str, bytes]) -> Parts | None:
    """Return the names of the samples of a batch that was loaded by its indices, and what puts a batch together of some
    of them. All are loaded here, once, as they were; the random states are those of before then.
    """
    if loader is None or order.get("single", True) or not isinstance(order.get("indices"), str):
        return None
    chosen = ast.literal_eval(order["indices"])
    with _states(states):
        whole = getattr(loader.dataset, "__getitems__", None)
        samples = list(whole(chosen)) if whole is not None else [loader.dataset[index] for index in chosen]
        after = rng_state.take(cuda=False)
    if len(samples) != len(chosen):
        return None

    def make(positions: Sequence[int]) -> Any:
        with _states(after):  # it may draw: a mixture, a size
            return loader.collate_fn([copy.deepcopy(samples[position]) for position in positions])

    own, names = sample_names.index_namer(loader.dataset), []
    for position, index in enumerate(chosen):
        carried: list[str] = []
        with contextlib.suppress(Exception):  # a batch of one need not be possible
            carried = sample_names.batch_names(make([position]))
        names.append(carried[0] if len(carried) == 1 else own(index))
    return names, make


@contextlib.contextmanager
def _states(states: Mapping[str, bytes]) -> Iterator[None]:
    """Put the random states to others for a block."""
    before = rng_state.take(cuda=False)
    rng_state.restore(states)
    try:
        yield
    finally:
        rng_state.restore(before)


def indices(step: Step) -> Any:
    """Return the indices of a recorded batch; raises DataError where the record does not hold them."""
    text = step.order.get("indices")
    if not isinstance(text, str):
        why = "they were too many for the ring" if step.left_out else "the loader gave none"
        raise DataError(
            f"The record of micro-batch {step.micro} has no sample indices",
            got=why,
            do="Record with recorder.batches=raw, or Recorder(batches='raw')",
        )
    return ast.literal_eval(text)


def _is_last(loader: Any, step: Step) -> bool:
    """Return whether a batch was the last one of its loader, or nobody knows how many there are."""
    try:
        return int(step.order.get("position", -1)) + 1 >= len(loader)
    except (TypeError, RuntimeError):  # a stream has no length
        return True


def _kind(step: Step) -> str:
    if "raw" in step.order:
        return "raw"
    return "walk" if step.order.get("kind") == "walk" else "map"


class ReplayIterator:
    """An iterator of a loader that may keep it for all its walks, as with persistent workers, and begin it anew."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self.begin, self.inner = begin, begin()

    def __iter__(self) -> ReplayIterator:
        return self

    def __next__(self) -> Any:
        return next(self.inner)

    def _reset(self, _loader: Any, first_iter: bool = False) -> None:
        self.inner = self.begin()


class FedLoader(CountingLoader):
    """In place of a loader that is not torch's."""

    def __init__(self, loader: Any, feed: BatchFeed) -> None:
        super().__init__(loader)
        self.feed = feed

    def __iter__(self) -> Iterator[Any]:
        return self.feed.batches(self.loader)


class FullRerunFeed(BatchFeed):
    """Stands where recorded batches are fed; `done` tells whether all recorded steps have been made."""

    def __init__(self, *args: Any, done: Callable[[], bool], **named: Any) -> None:
        super().__init__(*args, **named)
        self.done = done

    def serve(self, loader: Any) -> Any:
        """Have a loader say what its batches are made of, as when it was recorded."""
        self.loader = loader if can_record(loader) else None
        if self.loader is not None:
            loader._ocrlab_entry = entry = LoaderRecorder(loader, self.place)  # lives as long as the loader
            entry.start()
        return loader

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of the next walk."""
        iterator = iter(self.serve(loader))
        self.iterators = [iterator]
        try:
            while True:
                if not (self.goes_on or self.behind):
                    self.ended()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                yield batch
        finally:
            self.left()

    def left(self) -> None:
        """Note that the program has left its loop over the batches."""
        self.is_behind = self.behind and self.done()


def check_steps(steps: Sequence[Step], pending: Sequence[Step], first: int) -> None:
    """Raise DataError where the record has gaps between the snapshot, before micro-batch `first`, and the last step."""
    if not steps and not pending:
        raise DataError("Nothing to replay", got=f"no recorded step between micro-batch {first} and the last")
    if [step.micro for step in steps] != list(range(first, first + len(steps))):
        raise DataError(
            "The recording does not reach back to the snapshot",
            got=f"micro-batches {steps[0].micro} to {steps[-1].micro}",
            need=f"all from {first} on",
            do="Keep more steps: recorder.steps, or Recorder(steps=...)",
        )


def pending_batches(recorded: Flight, steps: Sequence[Step], last: int, folder: Path) -> list[Step]:
    """Return the batches that were being loaded when the run ended while it waited for data: one of them failed.

    `steps` are those to be made again, up to number `last`; `folder` is the flight/ of the run.
    """
    end = recorded.now
    newest = steps[-1] if steps else Step(-1, -1, phase="data")
    if end is None and not recorded.steps:  # it failed at its very first batch
        is_stream = saved_rng_states.has_states(folder, recorded.rank, recorded.start, 0)
        newest.order |= {"kind": "walk", "position": -1} if is_stream else {}
    else:
        is_newest = end is not None and end.micro == newest.micro and last > newest.number
        waited = end is not None and (end.phase == "data" or last_batch_failed(recorded.workers, newest.time))
        if not (is_newest and waited):
            return []
    if newest.order.get("kind") == "walk":  # the batch after the last one, if there is one
        order = {**newest.order, "position": int(newest.order["position"]) + 1, "pending": True}
        return [Step(newest.number + 1, newest.micro + 1, newest.epoch, newest.walk, order=order)]
    done = {str(step.order.get("indices")) for step in recorded.steps}
    waiting = [w for w in recorded.workers if w.loader == 0 and w.order.get("indices") and w.loaded]
    waiting = [w for w in waiting if w.order["indices"] not in done or w.failed]
    waiting.sort(key=lambda worker: not worker.failed)
    return [
        Step(newest.number + 1, newest.micro + 1 + i, newest.epoch, newest.walk, order=w.order, loaded=w.loaded)
        for i, w in enumerate(waiting)
    ]
