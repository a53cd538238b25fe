"""A data set under observation: what its page says, and that nobody who asks it notices a difference."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from ocrlab.debug.flight_record import worker_status
from ocrlab.debug.recorder import rng_state
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.sample_recorder import BatchRequest, SampleRecorder, StatusLocation


class Data(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.ones(2)


class Listed(Data):
    samples = tuple((f"{i}.png", i) for i in range(90))  # the others have none

    def __len__(self):
        return 100


class Paths(Data):
    files = tuple(Path("a/b", f"{i}.png") for i in range(100))


class Strange(Data):
    files = ["ä.png", 'q"uo\\te\n.png', "", "x" * 300, "\udcff.png", "\U0001f600"] * 20


class Own(Data):
    def sample_name(self, index):
        if index % 3 == 0:
            raise KeyError(index)
        return f"page {index}"


LOADED = {
    "numbers": (Data, [[1, 2], [3], [4, 5], [10**30, 2]]),
    "no plain numbers": (Data, [[np.int64(3), 4], [True, 2], [(1, 2), (3, 4)], [5, 6], torch.tensor([7, 8]), (9, 1)]),
    "a list of names": (Listed, [[1, 2], [95, -1], [3, 4]]),
    "paths": (Paths, [[1, 2], [3, 4], [5, 6]]),
    "strange names": (Strange, [[0, 1], [2, 3], [4, 5]]),
    "names of its own": (Own, [[1, 2], [3, 4], [5, 6]]),
    "a part": (lambda: Subset(Listed(), range(50, 80)), [[1, 2], [29, 7]]),
    "nothing": (Data, [[], [1], []]),
    "very many": (Data, [list(range(30_000)), [1, 2]]),
    "an order": (Data, [[1, 2], BatchRequest([3, 4], {}), [5, 6]]),
}


def opened(folder: Path, dataset, *, workers: int = 0) -> SampleRecorder:
    """Return a watched data set that has its page."""
    folder.mkdir(exist_ok=True)
    looked = SampleRecorder(dataset, StatusLocation(folder), workers)
    looked.open()
    return looked


@pytest.mark.parametrize("case", LOADED)
def test_each_batch_is_in_the_page_while_it_is_loaded(case, tmp_path):
    make, batches = LOADED[case]
    looked = opened(tmp_path, make())
    for batch in batches:
        torch.rand(7)
        before = rng_state.take(cuda=False)
        looked.is_first = True
        wanted = batch.indices if isinstance(batch, BatchRequest) else batch
        assert len(looked.load_batch(batch)) == len(wanted) and looked.is_first is False
        (worker,) = worker_status.read_workers(tmp_path, 0, 0)
        if looked.origin.base:
            assert worker.order in (looked.origin.base, {"left_out": True})
            assert [*looked.origin.base] == ["kind", "single", "workers", "worker", "indices"]
            assert looked.origin.states == before == worker.loaded


def test_a_stream_is_noted(tmp_path):
    looked = opened(tmp_path, [torch.rand(3) for _ in range(7)], workers=2)
    for _ in looked.stream():
        looked.is_first = looked.position % 3 == 0
    assert looked.origin.base == {"kind": "walk", "single": True, "workers": 2, "worker": None, "first": 6}
    assert looked.name == "sample 7 of the stream", "which was asked for, and was not there"


class Bad(Data):
    def __init__(self, error):
        self.error = error

    def __getitem__(self, index):
        if index == 5:
            raise self.error
        return torch.zeros(1)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), StopIteration("x"), SystemExit(3)])
def test_the_sample_that_could_not_be_loaded_stays(tmp_path, error):
    looked = opened(tmp_path / "a", Bad(error))
    looked.load_batch([1, 2])
    with pytest.raises(type(error)) as raised:
        looked.load_batch([3, 5, 4])
    assert raised.value is error
    looked.load_batch([6, 7])
    (worker,) = worker_status.read_workers(tmp_path / "a", 0, 0)
    assert worker.failed == ("" if isinstance(error, StopIteration) else "5")
    assert worker.order["indices"] == ("[6, 7]" if isinstance(error, StopIteration) else "[3, 5, 4]")
    assert worker.sample == "7"


class Interrupted(Data):
    def sample_name(self, index):
        raise KeyboardInterrupt


def test_an_interrupt_while_a_name_is_asked_for_is_not_lost(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path / "a", Interrupted()).load_batch([1, 2])


class Emptying(Data):
    asked: list[int]

    def __getitem__(self, index):
        self.asked.clear()
        return index

    def sample_name(self, index):
        return "x"


def test_a_data_set_that_changes_the_list_of_indices_ends_nobody(tmp_path):
    looked = opened(tmp_path / "a", data := Emptying())
    for _ in range(3):
        data.asked = [1, 2, 3]
        assert looked.load_batch(data.asked) == [1]


def test_the_copy_of_a_forked_process_writes_into_a_page_of_its_own(tmp_path):
    looked = opened(tmp_path / "a", Data())
    looked.load_batch([1, 2])
    if (child := os.fork()) == 0:
        looked.location = StatusLocation(tmp_path / "a", loader=1)
        looked.load_batch([5, 6])
        os._exit(0)
    os.waitpid(child, 0)
    orders = {worker.pid: worker.order["indices"] for worker in worker_status.read_workers(tmp_path / "a", 0, 0)}
    assert orders == {os.getpid(): "[1, 2]", child: "[5, 6]"}


class Sharded(IterableDataset):
    """Takes its part in a worker_init_fn, as torch's documentation shows."""

    def __init__(self):
        self.first, self.last, self.name = 0, 12, "mine"

    def open(self):
        return "opened"

    def __iter__(self):
        return iter(range(self.first, self.last))


def take_a_part(number):
    data = get_worker_info().dataset
    assert isinstance(data, Sharded) and isinstance(data, IterableDataset)
    assert (data.open(), data.name) == ("opened", "mine")
    data.first, data.last = 6 * number, 6 * number + 6


def test_a_worker_finds_its_data_set_and_what_it_writes_to_it_counts(tmp_path):
    loader = DataLoader(Sharded(), 3, num_workers=2, worker_init_fn=take_a_part)
    net = nn.Linear(1, 1)
    with recording(tmp_path, net) as rec:
        batches = [batch.tolist() for batch in rec.batches(loader)]
    assert sorted(index for batch in batches for index in batch) == list(range(12))
    assert loader.dataset.first == 0 and not vars(loader).keys() & {"_get_iterator"}
