"""What a training waits for, and why, in sentences: from the logs of a watched loader."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ocrlab.debug.instruments.dataloader.worker_log import COLLATE, Death, Log, Sample, Step
from ocrlab.debug.instruments.sample_names import index_text

LITTLE = 0.05  # of the step; below it the loader keeps up
ALIKE = 4  # items of a stream, different ones, that must be the same in all workers
SLOW = 5.0  # times the median sample that make a sample slow
NEARLY_ALL = 0.95  # of the time of slow samples: the others are left out
SLICE = 0.02  # seconds; a sample may be off its core for as long because others ran, which is not its fault
STARVED = 0.25  # of the time without a core, from which on it is reported
ASLEEP = 0.5  # of a sample's time on a processor; below it the sample waits for something else
LOOKS = 4  # readings of the memory of the training process, from which on they say whether it goes on growing
GROWN = 64e6  # bytes of a worker's own memory, and 20 % of it
MB = 1e6


def process_row(log: Log, deaths: Sequence[Death] = ()) -> dict[str, Any]:
    """Return the figures of one process that loads; memory in MB, shares 0 to 1, None for what is not known."""
    measured = [look for look in log.looks if look.private]
    return {
        "worker": "main" if log.worker < 0 else log.worker,
        "pid": log.pid,
        "samples": log.count,
        "batches": log.batches,
        "samples_per_second": log.count / log.seconds if log.seconds else None,
        "busy": _busy_share(log),
        "on_cpu": min(1.0, log.cpu / log.seconds) if log.seconds else None,
        "without_core": _share_without_core(log),
        "threads": _threads(log),
        "rss_mb": max((look.rss for look in log.looks), default=0) / MB or None,
        "pss_mb": measured[-1].pss / MB if measured else None,
        "private_mb": measured[-1].private / MB if measured else None,
        "growth_mb": (measured[-1].private - measured[0].private) / MB if len(measured) > 1 else None,
        "ended": next((death.how for death in deaths if death.pid == log.pid), ""),
    }


def _busy_share(log: Log) -> float | None:
    return min(1.0, (log.seconds + log.collating) / max(log.last - log.began, 1e-9)) if log.count else None


def _share_without_core(log: Log) -> float | None:
    spent = log.looks[-1].time - log.looks[0].time if log.looks else 0.0
    return (log.looks[-1].delay - log.looks[0].delay) / spent if spent else None


def _threads(log: Log) -> int:
    """Return how many threads a process uses for one operation of torch or OpenCV, whichever is more."""
    return max((max(look.torch_threads, look.cv2_threads) for look in log.looks), default=0) or 1


def slowest_samples(logs: Sequence[Log], count: int) -> list[dict[str, Any]]:
    """Return the samples that took longest, each once, with what they did meanwhile."""
    every = [sample for log in logs for sample in log.samples]
    typical = median(every)
    samples: dict[tuple[str, str], Sample] = {}
    for sample in sorted(every, key=lambda candidate: -candidate.seconds / candidate.of):
        samples.setdefault((sample.name, sample.index if sample.name.startswith("index ") else ""), sample)
    return [
        {
            "sample": sample.name,
            "seconds": sample.seconds / sample.of,
            "times": sample.seconds / sample.of / typical if typical else 1.0,
            "doing": "computes" if sample.cpu >= ASLEEP * sample.seconds else "waits (disk, network, lock, or a core)",
            "worker": "main" if sample.worker < 0 else sample.worker,
            "index": sample.index,
        }
        for sample in list(samples.values())[:count]
    ]


def table_text(table: Any) -> str:
    """Return the figures of the processes that load as text, those that people ask for."""
    if not len(table):
        return "No process that loads was watched"
    wanted = ["worker", "samples", "samples_per_second", "busy", "on_cpu", "private_mb", "growth_mb", "ended"]
    shown = table[wanted].astype(object)
    return str(shown.where(shown.notna(), "").to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def median(samples: Sequence[Sample]) -> float:
    """Return the median seconds of a sample, 0 where there are none."""
    return statistics.median([sample.seconds / sample.of for sample in samples]) if samples else 0.0


@dataclass
class Loading:
    """What was measured of a loader: `findings` says in sentences what the training waits for, and why."""

    steps: Sequence[Step]
    logs: Sequence[Log] = ()
    deaths: Sequence[Death] = ()
    workers: int = 0
    error: BaseException | None = None
    persistent: bool = False

    @property
    def warm_steps(self) -> list[Step]:
        """The steps that have ended, without the first of each epoch where there are others."""
        ended = [step for step in self.steps if step.compute is not None]
        return [step for step in ended if not step.first] or ended

    @property
    def computing(self) -> float:
        """Seconds of computing in the warm steps."""
        return sum(step.compute or 0.0 for step in self.warm_steps)

    @property
    def waiting_share(self) -> float:
        """The share of waiting in the warm steps, 0 to 1; the first of each epoch is the start of the workers."""
        waited = sum(step.wait for step in self.warm_steps)
        total = waited + self.computing
        return waited / total if total else 0.0

    @property
    def worker_logs(self) -> list[Log]:
        """The logs of the workers, without that of the training process."""
        return [log for log in self.logs if log.worker >= 0]

    @property
    def on_cpu(self) -> float:
        """The share of loading that is spent on a core."""
        return sum(log.cpu for log in self.logs) / (sum(log.seconds for log in self.logs) or 1e-9)

    def findings(self) -> list[str]:
        """Return the sentences, the most important first; there is always one."""
        texts = [
            f"Worker {death.worker} (process {death.pid}) died of {death.how} "
            + (f"while it loaded {death.sample}" if death.sample else "between two samples")
            + f", after {death.samples} samples"
            for death in self.deaths
        ]
        if self.error is not None and not self.deaths:
            texts.append(f"Loading failed with {type(self.error).__name__}{self._failed_sample(self.error)}")
        texts += self._equal_streams()
        waits = [self._waiting()] if self.warm_steps else []
        first = sum(step.wait for step in self.steps if step.first)
        starts_dominate = first > sum(step.wait for step in self.steps if not step.first)
        texts += [*self._starts(), *waits] if starts_dominate else [*waits, *self._starts()]
        return [
            *(texts or ["No step was seen from its batch to the next one"]),
            *self._too_many_threads(),
            *self._memory(),
        ]

    def _equal_streams(self) -> list[str]:
        """Return that workers yield the same items: each goes through the whole stream."""
        marks = [log.marks for log in self.worker_logs if len(log.marks) >= ALIKE]
        if len(marks) < 2:
            return []
        count = min(map(len, marks))
        beginnings = {tuple(mark[:count]) for mark in marks}
        if len(beginnings) > 1 or len(set(beginnings.pop())) < ALIKE:
            return []
        return [
            f"All {len(marks)} workers yield the same samples, as far as was compared ({count} of each): the stream is "
            f"not shared out, so that each sample comes {len(marks)} times an epoch, or their random numbers begin "
            "alike; take in __iter__ only the part of get_worker_info().id"
        ]

    def _failed_sample(self, error: BaseException) -> str:
        """Return at which sample loading failed, where it is known; torch names the worker in its message."""
        worker = re.search(r"DataLoader worker process (\d+)", str(error))
        logs = [log for log in self.logs if worker is None or log.worker == int(worker[1])]
        at = [log.failed for log in logs if log.failed] or [index_text(None, log.now) for log in logs if log.now]
        if COLLATE in at:
            return f" in {COLLATE}, which makes batches of the samples"
        return f" at sample {at[0]}" if len(at) == 1 else ""

    def _waiting(self) -> str:
        used, share = self.warm_steps, self.waiting_share
        wait, compute = statistics.fmean(step.wait for step in used), self.computing / len(used)
        figures = f"{100 * share:.0f} % of the step ({ms(wait)} of waiting, {ms(compute)} of computing)"
        idle = [step.idle for step in used if step.idle is not None]
        device = f"; the device had run dry in {100 * sum(idle) / len(idle):.0f} % of the steps" if idle else ""
        if share < LITTLE:
            return f"The loader keeps up: waiting for data is {figures}{device}"
        return f"Waiting for data is {figures}{device}: {self._reason()}"

    def _reason(self) -> str:
        """Return the reason for which data come late."""
        every = [sample for log in self.logs for sample in log.samples]
        if not every:
            why = "workers older than the watch, another watch inside of this one, or a data set of its own make"
            return f"what happens in loading is not known ({why})"
        seconds, typical = sum(log.seconds for log in self.logs), median(every)
        waited, collating = sum(step.wait for step in self.steps), sum(log.collating for log in self.logs)
        if self.workers == 0 and seconds + collating < 0.5 * waited:
            part = f"only {100 * (seconds + collating) / waited:.0f} % of that is samples and collate_fn"
            return f"the training process loads in line, and {part}: the rest is what the loader does around each"
        slow = slow_samples(every)
        lost = sum(sample.seconds for sample in slow)
        if slow and lost > 0.25 * max(seconds, waited):
            times = slow[0].seconds / slow[0].of / (typical or 1e-9)
            which = f"the slowest is {slow[0].name}, {ms(slow[0].seconds)}, {times:.0f} times the median"
            return f"{100 * lost / seconds:.0f} % of loading is {len(slow)} of {len(every)} samples; {which}"
        if collating > seconds:
            return f"making batches of the samples (collate_fn) takes longer than loading them, {ms(collating)} in all"
        busy = statistics.fmean(share for log in self.logs if (share := _busy_share(log)) is not None)
        doing = self._doing()
        if self.workers == 0:
            return f"the training process loads in line, {ms(typical)} a sample, and {doing}"
        who = "the worker is" if self.workers == 1 else f"all {self.workers} workers are"
        if busy < 0.6:
            return f"{who} busy for {100 * busy:.0f} % only: the time goes into handing batches over, not into loading"
        return f"{who} busy ({ms(typical)} a sample), and {doing}"

    def _doing(self) -> str:
        without = [share for log in self.logs if (share := _share_without_core(log)) is not None]
        lacking = statistics.fmean(without) if without else 0.0
        usable = "1 core is usable" if cores() == 1 else f"{cores()} cores are usable"
        if lacking > STARVED:
            return f"without a core for {100 * lacking:.0f} % of the time; {usable}"
        if self.on_cpu < ASLEEP:
            waits = "disk or network, which more workers overlap, or for a lock that all share, which they do not"
            return f"{100 * (1 - self.on_cpu):.0f} % of that is waiting for {waits}"
        room = spare_cores(self.busy_cores(), len({log.worker for log in self.worker_logs}))
        return f"{100 * min(self.on_cpu, 1):.0f} % of that is computing, {room}"

    def busy_cores(self) -> int:
        """Return how many cores computing keeps busy in the training process, 1 at least."""
        return max(1, round(sum(step.cpu for step in self.warm_steps) / self.computing)) if self.computing else 1

    def _starts(self) -> list[str]:
        first = [step.wait for step in self.steps if step.first]
        total = sum(step.wait + (step.compute or 0.0) for step in self.steps)
        if len(first) < 2 or sum(first) <= 0.1 * total:
            return []
        why = ": the workers start again each time; persistent_workers=True keeps them"
        why = why if self.workers and not self.persistent else ""
        share, each = 100 * sum(first) / total, ms(statistics.fmean(first))
        return [f"The first batch of each of {len(first)} epochs takes {each}, {share:.0f} % of all time{why}"]

    def _too_many_threads(self) -> list[str]:
        """Return a sentence where more threads want to run than there are cores, and waited for one."""
        texts, workers = [], self.workers
        delay = sum(step.delay for step in self.warm_steps)
        if self.computing and delay > STARVED * self.computing:
            others = f", {workers} worker{'s' * (workers > 1)}" if workers else ""
            texts.append(
                f"The step itself was without a core for {100 * delay / self.computing:.0f} % of its computing: it "
                f"shares {cores()} core{'s' * (cores() > 1)} with its own further threads{others}, and whatever else "
                "runs here"
            )
        inside = max(map(_threads, self.worker_logs), default=1)
        if workers and inside > 1:
            texts.append(
                f"Each worker uses {inside} threads for one operation, {workers * inside} in all on {cores()} cores: "
                "cv2.setNumThreads(0) in worker_init_fn keeps it to one"
            )
        return texts

    def _memory(self) -> list[str]:
        """Return how much memory of its own a process took, if that goes on growing."""
        grown: list[tuple[int, Log]] = []
        for log in self.logs:
            own = [look.private for look in log.looks if look.private]
            growth = own[-1] - own[0] if own else 0
            goes_on = log.worker >= 0 or (len(own) >= LOOKS and own[-1] - own[len(own) // 2] > 0.3 * growth)
            if growth > GROWN and growth > 0.2 * own[0] and goes_on:  # the training process grows in its first steps
                grown.append((growth, log))
        if not grown:
            return []
        growth, worst = max(grown, key=lambda pair: pair[0])
        cause = (
            "what it holds grows: a cache, or a leak"
            if worst.looks[-1].rss - worst.looks[0].rss > 0.5 * growth or worst.worker < 0
            else "its pages were the training process's and are copied as they are touched: counting references to "
            "many Python objects does that, and NumPy arrays in their place do not"
        )
        who = "The training process" if worst.worker < 0 else f"Worker {worst.worker}"
        seconds = max(worst.last - worst.began, 1e-9)
        return [f"{who} took {growth / MB:.0f} MB of its own in {seconds:.0f} s; {cause}"]


def slow_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the slow samples, the slowest first, that hold nearly all of the time of such: the rest is noise.

    A sample that may have taken its time because another process had the core is not slow.
    """
    typical = median(samples)
    slow = [
        s for s in samples if s.seconds / s.of > SLOW * typical and (s.seconds > SLICE or s.cpu >= ASLEEP * s.seconds)
    ]
    slow.sort(key=lambda sample: -sample.seconds)
    total, seconds = sum(sample.seconds for sample in slow), 0.0
    for count, sample in enumerate(slow):
        if seconds >= NEARLY_ALL * total:
            return slow[:count]
        seconds += sample.seconds
    return slow


def spare_cores(step: int, workers: int) -> str:
    """Return whether more workers have a core to compute on, besides those that the step itself keeps busy."""
    busy = step + workers
    if busy < cores():
        return f"which more workers share: {busy} of {cores()} cores {'is' if busy == 1 else 'are'} in use"
    return (
        f"and more workers have no core of their own: computing ({step} core{'' if step == 1 else 's'})"
        + (f" and {workers} worker{'' if workers == 1 else 's'} fill" if workers else " fills")
        + f" the {cores()} core{'' if cores() == 1 else 's'}"
    )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def ms(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
