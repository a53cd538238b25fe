"""What a training waits for, and why, in sentences: from the logs of a watched loader."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ocrlab.debug.instruments.dataloader.worker_log import COLLATE, Death, Log, Sample, Step
from ocrlab.debug.instruments.sample_names import index_text
from ocrlab.hardware.host import cores

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
SHOWN = ("worker", "samples", "samples_per_second", "busy", "on_cpu", "private_mb", "growth_mb", "ended")  # printed


def process_row(log: Log, deaths: Sequence[Death] = ()) -> dict[str, Any]:
    """Return the figures of one process that loads; memory in MB, shares 0 to 1, None for what is not known."""
    private = [look.private for look in log.looks if look.private]
    return {
        "worker": "main" if log.worker < 0 else log.worker,
        "pid": log.pid,
        "samples": log.count,
        "batches": log.batches,
        "samples_per_second": log.count / log.seconds if log.seconds else None,
        "busy": log.busy,
        "on_cpu": min(1.0, log.cpu / log.seconds) if log.seconds else None,
        "without_core": log.without_core,
        "threads": log.threads,
        "rss_mb": max((look.rss for look in log.looks), default=0) / MB or None,
        "private_mb": private[-1] / MB if private else None,
        "growth_mb": (private[-1] - private[0]) / MB if len(private) > 1 else None,
        "ended": next((death.how for death in deaths if death.pid == log.pid), ""),
    }


def slowest_samples(logs: Sequence[Log], count: int) -> list[dict[str, Any]]:
    """Return the samples that took longest, each once, with what they did meanwhile."""
    every = [sample for log in logs for sample in log.samples]
    typical = median(every)
    samples: dict[tuple[str, str], Sample] = {}
    for sample in sorted(every, key=lambda candidate: -candidate.seconds):
        samples.setdefault((sample.name, sample.index if sample.name.startswith("index ") else ""), sample)
    return [
        {
            "sample": sample.name,
            "seconds": sample.seconds,
            "times": sample.seconds / typical if typical else 1.0,
            "doing": "waits (disk, network, lock, or a core)" if _is_asleep(sample) else "computes",
            "worker": "main" if sample.worker < 0 else sample.worker,
            "index": sample.index,
        }
        for sample in list(samples.values())[:count]
    ]


def table_text(table: Any) -> str:
    """Return the figures of the processes that load as text, those that people ask for."""
    if not len(table):
        return "No process that loads was watched"
    shown = table[list(SHOWN)].astype(object)
    return str(shown.where(shown.notna(), "").to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def median(samples: Sequence[Sample]) -> float:
    """Return the median seconds of a sample, 0 where there are none."""
    return statistics.median([sample.seconds for sample in samples]) if samples else 0.0


def _is_asleep(sample: Sample) -> bool:
    return sample.cpu < ASLEEP * sample.all_seconds


@dataclass
class Loading:
    """What was measured of a loader: `findings` says in sentences what the training waits for, and why."""

    steps: Sequence[Step]
    logs: Sequence[Log] = ()
    deaths: Sequence[Death] = ()
    workers: int = 0
    error: BaseException | None = None
    persistent: bool = False

    def __post_init__(self) -> None:
        """Choose the steps that have ended, without the first of each epoch, whose wait is the start of the workers."""
        ended = [step for step in self.steps if step.compute is not None]
        self.warm_steps = [step for step in ended if not step.first] or ended
        self.computing = sum(step.compute or 0.0 for step in self.warm_steps)  # seconds
        self.worker_logs = [log for log in self.logs if log.worker >= 0]

    @property
    def waiting_share(self) -> float:
        """The share of waiting in the warm steps, 0 to 1."""
        waited = sum(step.wait for step in self.warm_steps)
        total = waited + self.computing
        return waited / total if total else 0.0

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
        waits = [self._waiting()] if self.warm_steps else []
        first = sum(step.wait for step in self.steps if step.first)
        if first > sum(step.wait for step in self.steps if not step.first):
            waits = [*self._starts(), *waits]
        else:
            waits += self._starts()
        texts += [*self._equal_streams(), *waits]
        return [*(texts or ["No step was seen from its batch to the next one"]), *self._threads(), *self._memory()]

    def _equal_streams(self) -> list[str]:
        """Return that workers yield the same items: each goes through the whole stream."""
        marks = [log.marks for log in self.worker_logs if len(log.marks) >= ALIKE]
        count = min(map(len, marks), default=0)
        beginnings = {tuple(mark[:count]) for mark in marks}
        if len(marks) < 2 or len(beginnings) > 1 or len(set(beginnings.pop())) < ALIKE:
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
        figures += f"; the device had run dry in {100 * sum(idle) / len(idle):.0f} % of the steps" if idle else ""
        if share < LITTLE:
            return f"The loader keeps up: waiting for data is {figures}"
        return f"Waiting for data is {figures}: {self._reason()}"

    def _reason(self) -> str:
        """Return the reason for which data come late."""
        every = [sample for log in self.logs for sample in log.samples]
        if not every:
            return (
                "what happens in loading was not seen: the workers are older than the watch, or load in their own way"
            )
        seconds, collating = sum(log.seconds for log in self.logs), sum(log.collating for log in self.logs)
        typical, waited = median(every), sum(step.wait for step in self.steps)
        if self.workers == 0 and seconds + collating < 0.5 * waited:
            part = f"only {100 * (seconds + collating) / waited:.0f} % of that is samples and collate_fn"
            return f"the training process loads in line, and {part}: the rest is what the loader does around each"
        slow = slow_samples(every)
        lost = sum(sample.all_seconds for sample in slow)
        if slow and lost > 0.25 * max(seconds, waited):
            times = slow[0].seconds / (typical or 1e-9)
            which = f"the slowest is {slow[0].name}, {ms(slow[0].all_seconds)}, {times:.0f} times the median"
            return f"{100 * lost / seconds:.0f} % of loading is {len(slow)} of {len(every)} samples; {which}"
        if collating > seconds:
            return f"making batches of the samples (collate_fn) takes longer than loading them, {ms(collating)} in all"
        busy = statistics.fmean(log.busy for log in self.logs if log.busy is not None)
        who = "the training process loads in line" if self.workers == 0 else f"{self.workers} workers load"
        if self.workers and busy < 0.6:
            return f"{who}, busy for {100 * busy:.0f} % only: the time goes into handing batches over, not into loading"
        return f"{who}, {ms(typical)} a sample, {self._doing()}"

    def _doing(self) -> str:
        """Return what loading does in its time, and whether more workers would have a core."""
        on_cpu = sum(log.cpu for log in self.logs) / (sum(log.seconds for log in self.logs) or 1e-9)
        lacking = statistics.fmean([log.without_core for log in self.logs if log.without_core is not None] or [0.0])
        if lacking > STARVED:
            return f"without a core for {100 * lacking:.0f} % of the time, with {cores()} that can be used"
        if on_cpu < ASLEEP:
            waits = "disk or network, which more workers overlap, or for a lock that all share, which they do not"
            return f"and {100 * (1 - on_cpu):.0f} % of that is waiting for {waits}"
        spent = sum(step.cpu for step in self.warm_steps)
        step = max(1, round(spent / self.computing)) if self.computing else 1
        busy = step + len({log.worker for log in self.worker_logs})
        room = "more workers share the rest" if busy < cores() else "more workers have no core of their own"
        in_use = f"{min(busy, cores())} of {cores()} cores in use"
        return f"and {100 * min(on_cpu, 1):.0f} % of that is computing: {in_use}, {room}"

    def _starts(self) -> list[str]:
        first = [step.wait for step in self.steps if step.first]
        total = sum(step.wait + (step.compute or 0.0) for step in self.steps)
        if len(first) < 2 or sum(first) <= 0.1 * total:
            return []
        why = ": the workers start again each time; persistent_workers=True keeps them"
        why = why if self.workers and not self.persistent else ""
        share, each = 100 * sum(first) / total, ms(statistics.fmean(first))
        return [f"The first batch of each of {len(first)} epochs takes {each}, {share:.0f} % of all time{why}"]

    def _threads(self) -> list[str]:
        """Return a sentence where more threads want to run than there are cores, and waited for one."""
        texts = []
        delay = sum(step.delay for step in self.warm_steps)
        if self.computing and delay > STARVED * self.computing:
            texts.append(
                f"The step itself was without a core for {100 * delay / self.computing:.0f} % of its computing; "
                f"usable cores: {cores()}, loader workers: {self.workers}"
            )
        inside = max((log.threads for log in self.worker_logs), default=1)
        if self.workers and inside > 1:
            texts.append(
                f"Each worker uses {inside} threads for one operation, {self.workers * inside} in all on {cores()} "
                "cores: cv2.setNumThreads(0) in worker_init_fn keeps it to one"
            )
        return texts

    def _memory(self) -> list[str]:
        """Return how much memory of its own a process took, if that goes on growing."""
        grown: list[tuple[int, int, Log]] = []
        for log in self.logs:
            own = [look.private for look in log.looks if look.private]
            growth = own[-1] - own[0] if own else 0
            goes_on = log.worker >= 0 or (len(own) >= LOOKS and own[-1] - own[len(own) // 2] > 0.3 * growth)
            if growth > GROWN and growth > 0.2 * own[0] and goes_on:  # the training process grows in its first steps
                grown.append((growth, log.pid, log))
        if not grown:
            return []
        growth, _, worst = max(grown)
        if worst.looks[-1].rss - worst.looks[0].rss > 0.5 * growth or worst.worker < 0:
            cause = "what it holds grows: a cache, or a leak"
        else:
            cause = "its pages were the training process's and are copied as they are touched: counting references to "
            cause += "many Python objects does that, and NumPy arrays in their place do not"
        who = "The training process" if worst.worker < 0 else f"Worker {worst.worker}"
        return [f"{who} took {growth / MB:.0f} MB of its own in {worst.last - worst.began:.0f} s; {cause}"]


def slow_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the slow samples, the slowest first, that hold nearly all of the time of such: the rest is noise.

    A sample that may have taken its time because another process had the core is not slow.
    """
    least = SLOW * median(samples)
    slow = [s for s in samples if s.seconds > least and (s.all_seconds > SLICE or not _is_asleep(s))]
    slow.sort(key=lambda sample: -sample.all_seconds)
    total, seconds = sum(sample.all_seconds for sample in slow), 0.0
    for count, sample in enumerate(slow):
        if seconds >= NEARLY_ALL * total:
            return slow[:count]
        seconds += sample.all_seconds
    return slow


def ms(seconds: float) -> str:
    """Return seconds as people say them."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
