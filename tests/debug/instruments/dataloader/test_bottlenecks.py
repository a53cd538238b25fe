"""Why data come late, in words: slow samples, too few cores, workers that start again."""

import statistics
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, get_worker_info

from ocrlab.debug.instruments.dataloader import loader_watch
from ocrlab.debug.instruments.dataloader.bottlenecks import Loading
from ocrlab.debug.instruments.dataloader.worker_log import Log, Look, Sample


class Files(Dataset[Any]):
    """Samples with names that take `seconds`."""

    def __init__(self, count: int, seconds: float = 0.0, bad: int | None = None) -> None:
        self.files = [f"scan_{i:02d}.png" for i in range(count)]
        self.seconds, self.bad = seconds, bad

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise OSError("image file is truncated")
        time.sleep(self.seconds)
        return index


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
    assert findings[0].startswith("The first batch of each of 3 epochs takes 500 ms")
    assert "persistent_workers=True" in findings[0]
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


class Stream(IterableDataset[Any]):
    """Rows of 0 to 39: all of them in each worker, its share, random ones, or 40 that are equal."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Any:
        info = get_worker_info()
        own, of = (info.id, info.num_workers) if info is not None else (0, 1)
        if self.kind == "shared":
            yield from ({"x": torch.full((2,), i), "name": str(i)} for i in range(own, 40, of))
        elif self.kind == "random":
            yield from (torch.rand(3) for _ in range(40))
        else:
            yield from ({"x": torch.full((2,), i if self.kind == "whole" else 7), "n": "a"} for i in range(40))


def findings_of(kind: str, workers: int) -> str:
    source = DataLoader(Stream(kind), batch_size=4, num_workers=workers, multiprocessing_context="fork")
    with loader_watch.watch(source) as report:
        for _ in source:
            pass
    return str(report)


def test_a_stream_that_each_worker_yields_whole_comes_first() -> None:
    findings = findings_of("whole", 2)
    assert findings.startswith("All 2 workers yield the same samples") and "comes 2 times an epoch" in findings


@pytest.mark.parametrize("kind", ["shared", "random", "equal"])
def test_other_streams_are_no_such_thing(kind: str) -> None:
    assert "the same samples" not in findings_of(kind, 2)


def test_what_makes_batches_is_named_where_it_fails() -> None:
    def fails(items: Any) -> Any:
        raise RuntimeError("stack expects each tensor to be of equal size")

    source = DataLoader(Stream("shared"), batch_size=4, collate_fn=fails)
    with pytest.raises(RuntimeError), loader_watch.watch(source) as report:
        next(iter(source))
    assert report.finding() == "Loading failed with RuntimeError in collate_fn, which makes batches of the samples"
