"""A watched loader gives the same batches, and says what it waits for: slow samples, deaths, memory, odd loaders."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from ocrlab.debug.instruments.dataloader import bottlenecks, loader_watch, tune_workers, worker_log
from ocrlab.debug.instruments.dataloader.tune_workers import Setting, measure
from ocrlab.errors import ConfigError
from ocrlab.run_folder import fail_safe


class Pages(Dataset[Any]):
    """Pages with names; each draws from every generator, so that a disturbed one shows."""

    def __init__(self, count: int = 24, slow: int | None = None, fatal: int | None = None) -> None:
        self.files = [f"page_{i:03d}.png" for i in range(count)]
        self.slow, self.fatal = slow, fatal

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        if index == self.slow:
            time.sleep(0.2)
        if index == self.fatal:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        return index, float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002


class Stream(IterableDataset[Any]):
    """Names without a length, shared out between the workers."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        for i in range(info.id if info else 0, 20, info.num_workers if info else 1):
            yield {"name": f"row{i}", "value": torch.tensor(i)}


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - what users' data sets still use


def batches(source: Any) -> list[str]:
    seed(3)
    return [repr(batch) for _ in range(2) for batch in source] + [repr(torch.rand(2)), str(random.random())]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["batch_sampler", "single", "stream", "persistent"])
def test_batches_order_and_random_states_are_those_of_the_loader_alone(kind: str, workers: int) -> None:
    def make() -> DataLoader[Any]:
        several = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
        if kind == "batch_sampler":
            return DataLoader(Pages(), batch_sampler=BatchSampler(range(24), 5, False), **several)
        if kind == "single":
            return DataLoader(Pages(), batch_size=None, shuffle=True, **several)
        if kind == "stream":
            return DataLoader(Stream(), batch_size=3, **several)
        return DataLoader(Pages(), batch_size=4, shuffle=True, persistent_workers=workers > 0, **several)

    plain, source = make(), make()
    alone, again = batches(plain), batches(plain)
    attributes = dict(source.__dict__)
    with loader_watch.watch(source) as report:
        assert batches(report) == alone
    for name in ("worker_init_fn", "collate_fn", "dataset", "sampler"):
        assert source.__dict__[name] is attributes[name]
    assert type(source) is DataLoader
    assert type(source.dataset) in (Pages, Stream)
    assert batches(source) == again  # a persistent worker goes on without the instrument
    assert not Path(report.folder).exists()
    assert report.table()["samples"].sum() == 2 * (20 if kind == "stream" else 24)
    assert report.epochs == 2 and report.finding()


def test_the_slow_sample_is_named_with_its_worker() -> None:
    with loader_watch.watch(
        DataLoader(Pages(slow=9), batch_size=4, num_workers=2, multiprocessing_context="fork")
    ) as report:
        assert len(report) == 6 and report.batch_size == 4
        for _ in report:
            pass
    row = report.slowest(1).iloc[0]
    assert row["sample"] == "page_009.png" and row["times"] > 5 and row["worker"] == 0
    assert row["seconds"] >= 0.2 and row["doing"].startswith("waits")
    assert list(report.table()["worker"]) == [0, 1]
    assert (report.table()["rss_mb"] > 10).all() and (report.table()["private_mb"] > 0).all()


def test_a_dead_worker_is_reported_with_its_sample() -> None:
    source = DataLoader(Pages(fatal=9), batch_size=4, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="exited unexpectedly"), loader_watch.watch(source) as report:
        for _ in report:
            pass
    [death] = report.deaths
    assert (death.worker, death.how, death.sample, death.samples) == (0, "SIGKILL", "page_009.png (index 9)", 5)
    assert "died of SIGKILL while it loaded" in report.finding()
    assert "SIGKILL" in report.table()["ended"].tolist()


@pytest.mark.slow
def test_a_spawned_worker_is_watched() -> None:
    source = DataLoader(Stream(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    with loader_watch.watch(source) as report:
        assert sum(1 for _ in report) == 10
    assert report.table()["samples"].tolist() == [20]
    assert report.slowest(1)["sample"].iloc[0].startswith("row")


def test_pages_copied_by_reference_counts_are_distinguished_from_a_leak() -> None:
    """A forked worker that touches its parent's objects: what it has alone grows, what is resident does not."""
    log = worker_log.Log(1, 0, began=0.0, last=10.0)
    for at, own in ((0, 10), (5, 200), (10, 400)):
        log.looks.append(worker_log.Look(float(at), rss=900_000_000, private=own * 1_000_000))
    [_, finding] = bottlenecks.Loading([], [log]).findings()
    assert "390 MB of its own in 10 s" in finding and "counting references" in finding


def test_anything_that_is_iterated_over_can_be_watched() -> None:
    with loader_watch.watch(["a", "b", "c"]) as report:
        assert list(report) == ["a", "b", "c"]
    assert len(report.steps()) == 3 and report.table().empty and report.slowest().empty
    with loader_watch.watch(iter(range(0))) as report:
        assert list(report) == []
    assert report.finding() == "No step was seen from its batch to the next one"


def state(source: DataLoader[Any]) -> list[Any]:
    """Return what a loader and its data sets are, for a comparison."""
    parts = [source, source.dataset, source.dataset.datasets[0], source.dataset.datasets[0].dataset]  # type: ignore[attr-defined]
    attributes = [{name: value for name, value in vars(part).items() if name != "_iterator"} for part in parts]
    return [[*map(type, parts)], attributes, [part.__reduce_ex__(4)[:2] for part in parts[1:]]]


@pytest.mark.parametrize("ends", ["whole", "raises"])
@pytest.mark.parametrize("workers", [0, 1])
def test_loader_and_data_sets_are_as_before(workers: int, ends: str) -> None:
    def begin(worker: int) -> None:
        pass

    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    pages = ConcatDataset([Subset(Pages(), range(20))])
    source = DataLoader(pages, batch_size=4, persistent_workers=workers > 0, worker_init_fn=begin, **options)
    before = state(source)
    with contextlib.suppress(KeyError), loader_watch.watch(source) as report:
        assert source.dataset is pages and type(source) is DataLoader
        for _ in source:
            if ends == "raises":
                raise KeyError
    assert state(source) == before
    iterator = source._iterator
    assert type(iterator).__module__ == "torch.utils.data.dataloader" if workers else iterator is None
    if workers:
        assert iterator._dataset is pages and iterator._collate_fn is source.collate_fn
        assert iterator._worker_init_fn is begin
    assert len(list(source)) == 5 and len(report.steps()) == (5 if ends == "whole" else 1)


def test_workers_that_are_there_already_are_left_and_waits_for_them_are_timed() -> None:
    source = DataLoader(Pages(), batch_size=4, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    assert len(list(source)) == 6
    iterator = source._iterator
    with loader_watch.watch(source) as report:
        assert len(list(source)) == 6 and len(list(report)) == 6
    assert source._iterator is iterator and len(list(source)) == 6
    assert len(report.steps()) == 12 and report.epochs == 2 and report.steps()["first"].sum() == 2


class Endless(DataLoader[Any]):
    """It keeps an iterator of its own, as those that never let their workers end do."""

    def __iter__(self) -> Any:
        yield from self.__dict__.setdefault("own", DataLoader(self.dataset, 4))


class Through(DataLoader[Any]):
    """It passes on what the loader of torch gives."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


@pytest.mark.parametrize("kind", [Endless, Through])
def test_loaders_with_an_iterator_of_their_own_are_counted_once(kind: Any) -> None:
    with loader_watch.watch(kind(Pages(), batch_size=4)) as report:
        assert [len(list(report)) for _ in range(2)] == [6, 6]
    assert len(report.steps()) == 12 and report.epochs == 2 and report.steps()["first"].sum() == 2


def test_what_a_signal_handler_raises_belongs_to_the_program() -> None:
    """torch tells a dead worker from its handler, wherever the main thread is; the instrument must not keep it."""

    def handler(_number: int, _frame: Any) -> None:
        raise TimeoutError("the user's")

    class Interrupted(loader_watch.LoaderReport):
        def batch_came(self, *_: Any) -> None:
            signal.raise_signal(signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        report = Interrupted([1, 2], Path("nowhere"))
        with pytest.raises(TimeoutError, match="the user's"):
            list(report)
        assert not fail_safe.raised_by_signal(ValueError())
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_full_disk_ends_the_journal_and_not_the_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_file = worker_log.WorkerLog(tmp_path, 0)
    os.close(log_file.lines or 0)
    log_file.write(["sample"])
    assert log_file.lines is None and "the log of a loader ends" in capsys.readouterr().err
    log_file.write(["sample"])


def test_measuring_recommends_what_is_clearly_faster() -> None:
    class Sleepy(Pages):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.03)
            return index

    make = lambda workers: DataLoader(Sleepy(8), batch_size=2, shuffle=True, num_workers=workers)  # noqa: E731
    measured = measure(make, id, (0, 2), (1,), used=Setting(0, 1), seconds=0.3, turns=1)
    assert measured.best is not None and measured.now is not None
    assert [trial.setting.workers for trial in measured.trials] == [0, 2]
    assert measured.trials[0].waiting[0] > 0.8
    assert all(trial.steps >= 2 and not trial.error for trial in measured.trials)
    assert measured.table()["step_ms"].notna().all()


def test_what_seems_better_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Luck that does not come twice recommends nothing."""

    def turn(trial: tune_workers.Trial, *_: Any) -> None:
        lucky = trial.setting.workers == 2 and len(trial.seconds) < 3
        trial.seconds.append(0.5 if lucky else 1.0)

    monkeypatch.setattr(tune_workers, "_turn", turn)
    events: list[dict[str, Any]] = []
    measured = measure(lambda workers: [], id, (0, 2, 4), (1,), used=Setting(0, 1), progress=events.append)
    assert [len(trial.seconds) for trial in measured.trials] == [6, 6, 3]
    assert measured.best is measured.now
    assert [each["step"] for each in events] == list(range(1, 16)) and all(
        each["step"] <= each["total"] for each in events
    )


def test_a_failed_setting_is_reported_and_never_recommended() -> None:
    def make(workers: int) -> Any:
        if workers:
            raise ValueError("no workers today")
        return DataLoader(Pages(), batch_size=4)

    measured = measure(make, id, (0, 1), (1,), used=Setting(0, 1), seconds=0.05, turns=2)
    assert measured.best is measured.trials[0]
    assert measured.trials[1].error == "ValueError: no workers today"
    nothing = measure(lambda workers: [], id, (0,), (1,), used=Setting(0, 1), seconds=0.05, turns=1)
    assert nothing.best is None and "no batch" in nothing.finding()


def test_measuring_refuses_what_cannot_be_tried() -> None:
    for workers, threads in (((), (1,)), ((-1,), (1,)), ((0,), (0,))):
        with pytest.raises(ConfigError, match="cannot be measured"):
            measure(lambda workers: [], id, workers, threads, used=Setting(0, 1))
