"""Why data come late, in words: one worker slower than the others, workers at one lock, workers that start again."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, get_worker_info

from ocrlab.debug.instruments.dataloader import bottlenecks, loader_watch
from ocrlab.debug.instruments.dataloader.bottlenecks import Loading
from ocrlab.debug.instruments.dataloader.worker_log import FUTEX, RUNNING, LockStats, Log, Look, Sample


class Files(Dataset[Any]):
    """Samples with names that take `seconds`; under a lock that all workers share, if one is given."""

    def __init__(self, count: int, seconds: float = 0.0, lock: Any = None, bad: int | None = None) -> None:
        self.files = [f"scan_{i:02d}.png" for i in range(count)]
        self.seconds, self.lock, self.bad = seconds, lock, bad

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise OSError("image file is truncated")
        if self.lock is not None:
            with self.lock:
                time.sleep(self.seconds)
        else:
            time.sleep(self.seconds)
        return index


def last_is_slow(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    if worker == info.num_workers - 1:
        info.dataset.seconds = 0.03  # type: ignore[attr-defined]


def watch(dataset: Any, **options: Any) -> loader_watch.LoaderReport:
    if options.get("num_workers"):
        options["multiprocessing_context"] = "fork"
    source = DataLoader(dataset, batch_size=2, **options)
    with loader_watch.watch(source) as report:
        for _ in report:
            pass
    return report


def test_a_worker_that_is_far_behind_the_others_is_named() -> None:
    [findings] = [
        text for text in watch(Files(64), num_workers=2, worker_init_fn=last_is_slow).findings() if "worker 1" in text
    ]
    assert "so that all wait for that one" in findings
    even = watch(Files(64, 0.005), num_workers=2).finding()
    assert "so that all wait" not in even and "all 2 workers are busy" in even


def test_workers_waiting_for_a_shared_lock_are_reported_and_more_are_not_recommended() -> None:
    report = watch(Files(64, 0.01, multiprocessing.Lock()), num_workers=2)
    if not report.locks.moments:
        pytest.skip("the kernel does not say in which system call a process is")
    # What workers wait for is sampled, so that a machine that does something else too needs another look.
    again = (watch(Files(64, 0.01, multiprocessing.Lock()), num_workers=2).finding() for _ in range(3))
    assert any("more workers do not help" in text for text in (report.finding(), *again))
    free = (watch(Files(64, 0.01), num_workers=2).finding() for _ in range(4))
    assert any("which more workers overlap" in text for text in free)


@pytest.mark.skipif(not FUTEX, reason="the number of the system call is not known on this machine")
def test_a_worker_that_wants_a_core_says_nothing_about_a_lock() -> None:
    locks = LockStats()
    for calls in ([RUNNING, "230"], [RUNNING, RUNNING], [RUNNING], [FUTEX], []):
        locks.add(calls)
    assert locks == LockStats(0, 0, 0)
    for calls in ([FUTEX, "230"], [FUTEX, RUNNING], [FUTEX, FUTEX], ["230", "230"]):
        locks.add(calls)
    assert locks == LockStats(4, 2, 1)


def test_a_sample_that_did_not_get_the_lock_is_not_blamed_nor_is_the_lack_of_cores() -> None:
    logs = []
    for worker in (0, 1):
        samples = [Sample(worker, i / 10, 0.5 if i == 3 else 0.02, 1e-5, str(i), f"index {i}") for i in range(12)]
        log = Log(worker, worker, 0.0, samples, count=12, seconds=sum(s.seconds for s in samples), cpu=1e-4, last=1.0)
        log.looks = [Look(at, 0, delay=0.4 * at) for at in (0.0, 1.0)]
        logs.append(log)
    waits = [loader_watch.Step(0.0, 0.05, 0.001, False) for _ in range(12)]
    findings = Loading(waits, logs, workers=2, locks=LockStats(30, 20, 0)).findings()[0]
    assert "more workers do not help" in findings and "without a core for 40 % of the time" in findings
    assert "the slowest is index 3" in Loading(waits, logs, workers=2, locks=LockStats(30, 0, 0)).findings()[0]


def test_a_sample_that_cannot_be_loaded_is_named_also_with_workers() -> None:
    source = DataLoader(Files(24, bad=13), batch_size=2, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(OSError, match="truncated"), loader_watch.watch(source) as report:
        for _ in report:
            pass
    assert report.finding() == "Loading failed with OSError at sample scan_13.png (index 13)"
    here = DataLoader(Subset(Files(24, bad=13), range(10, 20)), batch_size=2)
    with pytest.raises(OSError, match="truncated"), loader_watch.watch(here) as report:
        for _ in report:
            pass
    assert "scan_13.png" in report.finding()


def steps(first: float, epochs: int = 3) -> list[loader_watch.Step]:
    every = [first, 0.001, 0.001, 0.001]
    return [loader_watch.Step(0.0, wait, 0.02, number == 0) for _ in range(epochs) for number, wait in enumerate(every)]


def test_restarted_workers_come_first_where_they_cost_most() -> None:
    findings = Loading(steps(0.5), workers=2).findings()
    assert (
        findings[0].startswith("The first batch of each of 3 epochs takes 500 ms")
        and "persistent_workers=True" in findings[0]
    )
    assert "persistent_workers" not in Loading(steps(0.5), workers=2, persistent=True).findings()[0]
    assert Loading(steps(0.002), workers=2).findings()[0].startswith("The loader keeps up")


def test_samples_that_are_not_what_takes_the_time_are_not_blamed() -> None:
    samples = [Sample(-1, 0.0, (s := 0.001 if i == 3 else 1e-5), s, str(i), f"index {i}") for i in range(12)]
    log = Log(1, -1, 0.0, samples, count=12, seconds=sum(s.seconds for s in samples), cpu=1e-4, last=1.0)
    long = [loader_watch.Step(0.0, 0.01, 0.02, False) for _ in range(3)]
    assert "is samples and collate_fn" in Loading(long, [log]).findings()[0]
    short = [loader_watch.Step(0.0, 0.0005, 0.001, False) for _ in range(3)]
    assert "1 of 12 samples; the slowest is index 3" in Loading(short, [log]).findings()[0]


def test_the_time_that_timing_takes_is_not_waiting() -> None:
    data = DataLoader(TensorDataset(torch.zeros(2048, 3)), batch_size=64)
    every = []
    with loader_watch.watch(data) as report:
        batches = iter(report)
        for _ in range(len(data)):
            began = time.perf_counter()
            next(batches)
            every.append(time.perf_counter() - began)
    # Of medians: a machine that stands still for 10 s in one step decides nothing. Most of the rest is the journal.
    assert report.steps()["wait"].median() < 0.7 * statistics.median(every)


def test_cores_that_the_step_does_not_use_are_free() -> None:
    steps = [loader_watch.Step(0.0, 0.02, 0.02, False, cpu=0.02) for _ in range(3)]
    assert Loading(steps).busy_cores() == 1 and Loading([]).busy_cores() == 1
    for step in steps:
        step.cpu = 0.06
    assert Loading(steps).busy_cores() == 3
    assert "which more workers share" in bottlenecks.spare_cores(0, 0) or bottlenecks.cores() == 1


def test_the_report_prints_as_text() -> None:
    text = str(watch(Files(8), num_workers=0))
    assert "samples_per_second" in text and "object at" not in text and "None" not in text and "NaN" not in text
    with loader_watch.watch([1, 2]) as plain:
        list(plain)
    assert "No process that loads was watched" in str(plain)


class Adapter:
    """As accelerate wraps a DataLoader: it says that it is one, and is none."""

    def __init__(self, inner: DataLoader[Any]) -> None:
        self.base_dataloader = inner

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    @property
    def __class__(self) -> Any:
        return self.base_dataloader.__class__

    def __iter__(self) -> Any:
        yield from self.base_dataloader


@pytest.mark.parametrize("workers", [0, 1])
def test_a_wrapper_that_says_that_it_is_a_loader(workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    inner = DataLoader(Files(8), batch_size=2, num_workers=workers)
    source: Any = Adapter(inner)
    with loader_watch.watch(source) as report:
        assert sum(1 for _ in source) == 4
    assert report.table()["samples"].tolist() == [8] and len(report.steps()) == 4
    assert type(source) is Adapter and inner.worker_init_fn is None and type(inner.dataset) is Files
    assert capsys.readouterr().err == ""


def test_memory_that_the_training_process_takes_at_first_is_no_leak() -> None:
    def memory_findings(worker: int, *megabytes: int) -> list[str]:
        log = Log(1, worker, began=0.0, last=10.0)
        for at, own in enumerate(megabytes):
            log.looks.append(Look(float(at), rss=own * 1_000_000, private=own * 1_000_000))
        return Loading([], [log]).findings()[1:]

    assert memory_findings(-1, 50, 320) == memory_findings(-1, 50, 300, 310, 315, 320) == []
    assert "The training process took 400 MB" in memory_findings(-1, 50, 150, 250, 350, 450)[0]
    assert "Worker 0 took 270 MB" in memory_findings(0, 50, 320)[0]


def test_of_slow_samples_those_are_counted_that_hold_the_time() -> None:
    samples = [Sample(0, 0.0, 0.004, 0.004, "", f"page_{i}") for i in range(3)]
    samples.append(Sample(0, 0.0, 0.5, 0.1, "", "large"))
    assert [sample.name for sample in bottlenecks.slow_samples(samples)] == ["large"]
    samples += [Sample(0, 0.0, 0.025, 0.025, "", "little")]
    assert [sample.name for sample in bottlenecks.slow_samples(samples)] == ["large"]
    assert bottlenecks.slow_samples([Sample(0, 0.0, 0.1, 0.1, "", "even")] * 4) == bottlenecks.slow_samples([]) == []
