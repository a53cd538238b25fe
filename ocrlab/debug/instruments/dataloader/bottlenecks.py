"""What a training waits for, and why, in sentences: from the logs of a watched loader."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from typing import Any

from ocrlab.debug.instruments.dataloader.worker_log import COLLATE, Death, LockStats, Log, Look, Sample, Step
from ocrlab.debug.instruments.sample_names import index_text

LITTLE = 0.05  # of the step; below it the loader keeps up
ALIKE = 4  # items of a stream, different ones, that must be the same in all workers
SLOW = 5.0  # times the median sample that make a sample slow
NEARLY_ALL = 0.95  # of the time of slow samples: the others are left out
SLICE = 0.02  # seconds; a sample may be off its core for as long because others ran, which is not its fault
STARVED = 0.25  # of the time without a core, from which on it is reported
UNEVEN = 3.0  # times the others' time for a sample, from which on a worker is slow
BUSY, IDLE = 0.8, 0.6  # of its time, for a worker that the others wait for, and at most of theirs
ASLEEP = 0.5  # of a sample's time on a processor; below it the sample waits for something else
LOOKS = 4  # at the memory of the training process, from which on they say whether it goes on growing
GROWN = 64e6  # bytes of a worker's own memory, and 20 % of it
MB = 1e6
OPENMP = re.compile(r"lib(gomp|iomp5|omp)[-.\w]*\.so")


def process_row(log: Log, deaths: Sequence[Death] = ()) -> dict[str, Any]:
    """Return the figures of one process that loads; memory in MB, shares 0 to 1, None for what is not known."""
    lived = max(log.last - log.began, 1e-9)
    looks = log.looks
    measured = [look for look in looks if look.memory.private]
    spent = looks[-1].time - looks[0].time if len(looks) > 1 else 0.0
    last = measured[-1].memory if measured else None
    ended = next((death.how for death in deaths if death.pid == log.pid), "")
    return {
        "worker": "main" if log.worker < 0 else log.worker,
        "pid": log.pid,
        "samples": log.count,
        "batches": log.batches,
        "samples_per_second": log.count / log.seconds if log.seconds else None,
        "busy": min(1.0, (log.seconds + log.collating) / lived) if log.count else None,
        "on_cpu": min(1.0, log.cpu / log.seconds) if log.seconds else None,
        "without_core": (looks[-1].delay - looks[0].delay) / spent if spent else None,
        "threads": threads(looks),
        "rss_mb": max((look.memory.rss for look in looks), default=0) / MB or None,
        "pss_mb": last.pss / MB if last else None,
        "private_mb": last.private / MB if last else None,
        "growth_mb": memory_growth(log) / MB if len(measured) > 1 else None,
        "ended": ended,
    }


def threads(looks: Sequence[Look]) -> int:
    """Return how many threads a process uses for one operation of torch or OpenCV, whichever is more."""
    return max((max(look.torch_threads, look.cv2_threads) for look in looks), default=0) or 1


def memory_growth(log: Log) -> int:
    """Return the bytes by which a process's own memory grew while it loaded."""
    own = [look.memory.private for look in log.looks if look.memory.private]
    return own[-1] - own[0] if len(own) > 1 else 0


def slowest_samples(logs: Sequence[Log], count: int) -> list[dict[str, Any]]:
    """Return the samples that took longest, each once, with what they did meanwhile."""
    every = [sample for log in logs for sample in log.samples]
    typical = median(every)
    samples: dict[tuple[str, str], Sample] = {}
    for sample in sorted(every, key=lambda candidate: -candidate.seconds / candidate.of):
        samples.setdefault((sample.name, sample.index if sample.name.startswith("index ") else ""), sample)
        if len(samples) >= count:
            break
    return [
        {
            "sample": sample.name,
            "seconds": sample.seconds / sample.of,
            "times": sample.seconds / sample.of / typical if typical else 1.0,
            "doing": "computes" if sample.cpu >= ASLEEP * sample.seconds else "waits (disk, network, lock, or a core)",
            "worker": "main" if sample.worker < 0 else sample.worker,
            "index": sample.index,
        }
        for sample in samples.values()
    ]


def table_text(table: Any) -> str:
    """Return the figures of the processes that load as text, those that people ask for."""
    if not len(table):
        return "No process that loads was looked into"
    wanted = ["worker", "samples", "samples_per_second", "busy", "on_cpu", "private_mb", "growth_mb", "ended"]
    shown = table[wanted].astype(object)
    return str(shown.where(shown.notna(), "").to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def median(samples: Sequence[Sample]) -> float:
    """Return the median seconds of a sample, 0 where there are none."""
    return statistics.median([sample.seconds / sample.of for sample in samples]) if samples else 0.0


def warm_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that have ended, without the first of each epoch where there are others."""
    whole = [step for step in steps if step.compute is not None]
    return [step for step in whole if not step.first] or whole


def waiting_share(steps: Sequence[Step]) -> float:
    """Return the share of waiting in all steps, 0 to 1; the first of each epoch is the start of the workers."""
    used = warm_steps(steps)
    waited = sum(step.wait for step in used)
    total = waited + sum(step.compute or 0.0 for step in used)
    return waited / total if total else 0.0


def findings(
    steps: Sequence[Step],
    logs: Sequence[Log],
    deaths: Sequence[Death],
    workers: int,
    error: BaseException | None,
    locks: LockStats | None = None,
    *,
    persistent: bool = False,
) -> list[str]:
    """Return what was found in sentences, the most important first; there is always one."""
    texts = [
        f"Worker {death.worker} (process {death.pid}) died of {death.how} "
        + (f"while it loaded {death.sample}" if death.sample else "between two samples")
        + f", after {death.samples} samples"
        for death in deaths
    ]
    if error is not None and not deaths:
        texts.append(f"Loading failed with {type(error).__name__}{_failed(logs, error)}")
    texts += _same(logs)
    waits = [_waits(steps, logs, workers, locks or LockStats())] if warm_steps(steps) else []
    start = _start(steps, workers, persistent)
    most = sum(step.wait for step in steps if step.first) > sum(step.wait for step in steps if not step.first)
    texts += [*start, *waits] if most else [*waits, *start]
    if not texts:
        texts.append("No step was seen from its batch to the next one")
    return [*texts, *_crowded(steps, logs, workers), *_memory(logs)]


def _same(logs: Sequence[Log]) -> list[str]:
    """Return that workers yield the same items: each goes through the whole stream."""
    marks = {log.worker: log.marks for log in logs if log.worker >= 0 and len(log.marks) >= ALIKE}
    if len(marks) < 2:
        return []
    count = min(len(mark) for mark in marks.values())
    beginnings = {tuple(mark[:count]) for mark in marks.values()}
    if len(beginnings) > 1 or len(set(beginnings.pop())) < ALIKE:
        return []
    return [
        f"All {len(marks)} workers yield the same samples, as far as was looked ({count} of each): the stream is not "
        f"shared out, so that each sample comes {len(marks)} times an epoch, or their random numbers begin alike; take "
        "in __iter__ only the part of get_worker_info().id"
    ]


def _failed(logs: Sequence[Log], error: BaseException) -> str:
    """Return at which sample loading failed, where it is known; torch tells the worker in its message."""
    worker = re.search(r"DataLoader worker process (\d+)", str(error))
    mine = [log for log in logs if worker is None or log.worker == int(worker[1])]
    at = [log.failed for log in mine if log.failed] or [index_text(None, log.now) for log in mine if log.now]
    if COLLATE in at:
        return f" in {COLLATE}, which makes batches of the samples"
    return f" at sample {at[0]}" if len(at) == 1 else ""


def _waits(steps: Sequence[Step], logs: Sequence[Log], workers: int, locks: LockStats) -> str:
    used, share = warm_steps(steps), waiting_share(steps)
    compute = statistics.fmean(step.compute or 0.0 for step in used)
    wait = statistics.fmean(step.wait for step in used)
    figures = f"{100 * share:.0f} % of the step ({ms(wait)} of waiting, {ms(compute)} of computing)"
    idle = [step.idle for step in used if step.idle is not None]
    device = f"; the device had run dry in {100 * sum(idle) / len(idle):.0f} % of the steps" if idle else ""
    if share < LITTLE:
        return f"The loader keeps up: waiting for data is {figures}{device}"
    return f"Waiting for data is {figures}{device}: {_why(steps, logs, workers, locks)}"


def _most_of(slow: Sequence[Sample]) -> list[Sample]:
    """Return the first of some samples, the slowest first, that hold nearly all of their time: the rest is noise."""
    whole, slowest, seconds = sum(sample.seconds for sample in slow), [], 0.0
    for sample in slow:
        if seconds >= NEARLY_ALL * whole:
            break
        slowest.append(sample)
        seconds += sample.seconds
    return slowest


def _why(steps: Sequence[Step], logs: Sequence[Log], workers: int, locks: LockStats) -> str:
    """Return the reason for which data come late."""
    every = [sample for log in logs for sample in log.samples]
    seconds = sum(log.seconds for log in logs)
    if not every:
        why = "workers older than the watch, another watch inside of this one, or a data set of its own make"
        return f"what happens in loading is not known ({why})"
    typical = median(every)
    slow = sorted(
        (s for s in every if s.seconds / s.of > SLOW * typical and not _preempted(s)), key=lambda s: -s.seconds
    )
    slow = _most_of(slow)
    lost, waited = sum(sample.seconds for sample in slow), sum(step.wait for step in steps)
    collating = sum(log.collating for log in logs)
    if workers == 0 and seconds + collating < 0.5 * waited:
        part = f"only {100 * (seconds + collating) / waited:.0f} % of that is samples and collate_fn"
        return f"the training process loads in line, and {part}: the rest is what the loader does around each of them"
    locked = locks.shared and _on(logs) < ASLEEP  # then a sample is slow where its worker did not get the lock
    if slow and lost > 0.25 * max(seconds, waited) and not locked:
        times = slow[0].seconds / slow[0].of / (typical or 1e-9)
        which = f"the slowest is {slow[0].name}, {ms(slow[0].seconds)}, {times:.0f} times the median"
        return f"{100 * lost / seconds:.0f} % of loading is {len(slow)} of {len(every)} samples; {which}"
    if collating > seconds:
        return f"making batches of the samples (collate_fn) takes longer than loading them, {ms(collating)} in all"
    behind = _behind(logs)
    if behind:
        return behind
    busy = statistics.fmean(share for log in logs if (share := process_row(log)["busy"]) is not None)
    doing = _doing(steps, logs, locked)
    if workers == 0:
        return f"the training process loads in line, {ms(typical)} a sample, and {doing}"
    who = "the worker is" if workers == 1 else f"all {workers} workers are"
    if busy < 0.6:
        return f"{who} busy for {100 * busy:.0f} % only: the time goes into handing batches over, not into loading"
    return f"{who} busy ({ms(typical)} a sample), and {doing}"


def _behind(logs: Sequence[Log]) -> str:
    """Return that one worker is far slower than the others, which wait for it: batches come in turn."""
    loading = [log for log in logs if log.worker >= 0 and log.count]
    if len(loading) < 2:
        return ""
    slow = max(loading, key=lambda log: log.seconds / log.count)
    others = [log for log in loading if log.worker != slow.worker]
    if not others:
        return ""
    each, theirs = slow.seconds / slow.count, statistics.median(log.seconds / log.count for log in others)
    idle = statistics.fmean(process_row(log)["busy"] or 0.0 for log in others)
    if each < UNEVEN * theirs or (process_row(slow)["busy"] or 0.0) < BUSY or idle > IDLE:
        return ""
    return (
        f"worker {slow.worker} takes {ms(each)} a sample, the other{'s' * (len(others) > 1)} {ms(theirs)} and "
        f"{'are' if len(others) > 1 else 'is'} busy for {100 * idle:.0f} % only: batches come in turn, so that all "
        "wait for that one; look at what it has for itself: samples, files, a disk, worker_init_fn"
    )


def _preempted(sample: Sample) -> bool:
    """Tell whether a sample may have taken its time because another process had the core."""
    return sample.seconds <= SLICE and sample.cpu < ASLEEP * sample.seconds


def _on(logs: Sequence[Log]) -> float:
    """Return the share of loading that is spent on a core."""
    return sum(log.cpu for log in logs) / (sum(log.seconds for log in logs) or 1e-9)


def _doing(steps: Sequence[Step], logs: Sequence[Log], locked: bool) -> str:
    without = [value for log in logs if (value := process_row(log)["without_core"]) is not None]
    starved = bool(without) and statistics.fmean(without) > STARVED
    lacking = f"without a core for {100 * statistics.fmean(without):.0f} % of the time; {_usable()}" if starved else ""
    on = _on(logs)
    if locked:  # one who holds it and has no core holds up the others as well
        what = "waiting for a lock that another worker holds: one of them loads at a time, and more workers do not help"
        return f"{100 * (1 - on):.0f} % of that is {what}" + (f"; they are {lacking}" if lacking else "")
    if lacking:
        return lacking
    if on < ASLEEP:
        what = (
            "waiting for disk or network, which more workers overlap, or for a lock that all share, which they do not"
        )
        return f"{100 * (1 - on):.0f} % of that is {what}"
    room = _room(_cores_of(steps), len({log.worker for log in logs if log.worker >= 0}))
    return f"{100 * min(on, 1):.0f} % of that is computing, {room}"


def _cores_of(steps: Sequence[Step]) -> int:
    """Return how many cores computing keeps busy in the training process, 1 at least."""
    computing = sum(step.compute or 0.0 for step in warm_steps(steps))
    return max(1, round(sum(step.cpu for step in warm_steps(steps)) / computing)) if computing else 1


def _room(step: int, workers: int) -> str:
    """Return whether more workers have a core to compute on, beside those that the step itself keeps busy."""
    busy = step + workers
    if busy < cores():
        return f"which more workers share: {busy} of {cores()} cores {'is' if busy == 1 else 'are'} in use"
    return (
        f"and more workers have no core of their own: computing ({step} core{'' if step == 1 else 's'})"
        + (f" and {workers} worker{'' if workers == 1 else 's'} fill" if workers else " fills")
        + f" the {cores()} core{'' if cores() == 1 else 's'}; "
        "ocrlab.debug.instruments.dataloader.tune_workers.measure says what is fastest"
    )


def _start(steps: Sequence[Step], workers: int, persistent: bool) -> list[str]:
    first = [step.wait for step in steps if step.first]
    total = sum(step.wait + (step.compute or 0.0) for step in steps)
    if len(first) > 1 and sum(first) > 0.1 * total:
        share, each = 100 * sum(first) / total, ms(statistics.fmean(first))
        anew = ": the workers start anew each time, and persistent_workers=True keeps them"
        why = anew if workers and not persistent else ""
        return [f"The first batch of each of {len(first)} epochs takes {each}, {share:.0f} % of all time{why}"]
    return []


def _crowded(steps: Sequence[Step], logs: Sequence[Log], workers: int) -> list[str]:
    """Return a sentence where more threads want to run than there are cores, and waited for one."""
    texts = []
    used = warm_steps(steps)
    computing = sum(step.compute or 0.0 for step in used)
    delay = sum(step.delay for step in used)
    inside = max((threads(log.looks) for log in logs if log.worker >= 0), default=1)
    pools, others = openmp_runtimes(), f", {workers} worker{'s' * (workers > 1)}" if workers else ""
    if computing and delay > STARVED * computing:
        texts.append(
            f"The step itself was without a core for {100 * delay / computing:.0f} % of its computing: it shares "
            f"{cores()} core{'s' * (cores() > 1)} with its own further threads{others}, and whatever else runs here"
            + (
                f"; {len(pools)} OpenMP runtimes are loaded ({', '.join(pools)}), whose idle threads spin"
                * (len(pools) > 1)
            )
        )
    if workers and inside > 1:
        texts.append(
            f"Each worker uses {inside} threads for one operation, {workers * inside} in all on {cores()} cores: "
            "cv2.setNumThreads(0) in worker_init_fn keeps it to one"
        )
    return texts


def _memory(logs: Sequence[Log]) -> list[str]:
    grown = [
        log for log in logs if memory_growth(log) > GROWN and memory_growth(log) > 0.2 * _own(log) and _goes_on(log)
    ]
    if not grown:
        return []
    worst = max(grown, key=memory_growth)
    seconds = max(worst.last - worst.began, 1e-9)
    resident = worst.looks[-1].memory.rss - worst.looks[0].memory.rss
    cause = (
        "what it holds grows: a cache, or a leak"
        if resident > 0.5 * memory_growth(worst) or worst.worker < 0
        else "its pages were the training process's and are copied as they are touched: counting references to many "
        "Python objects does that, and NumPy arrays in their place do not"
    )
    who = "The training process" if worst.worker < 0 else f"Worker {worst.worker}"
    return [f"{who} took {memory_growth(worst) / MB:.0f} MB of its own in {seconds:.0f} s; {cause}"]


def _goes_on(log: Log) -> bool:
    """Tell whether memory grows to the end; that of the training process grows in its first steps by itself."""
    own = [look.memory.private for look in log.looks if look.memory.private]
    return log.worker >= 0 or (len(own) >= LOOKS and own[-1] - own[len(own) // 2] > 0.3 * memory_growth(log))


def _own(log: Log) -> int:
    return next((look.memory.private for look in log.looks if look.memory.private), 0)


def openmp_runtimes() -> list[str]:
    """Return the OpenMP runtimes that are loaded in this process; each has threads of its own."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            names = {line.rstrip().rpartition("/")[2] for line in file if "/lib" in line and "omp" in line}
    except OSError:
        return []
    return sorted(name for name in names if OPENMP.match(name))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _usable() -> str:
    return "1 core is usable" if cores() == 1 else f"{cores()} cores are usable"


def ms(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
