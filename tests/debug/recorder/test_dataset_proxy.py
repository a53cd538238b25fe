"""What C notes of batches and samples in a worker's page is what Python notes there, byte for byte."""

from __future__ import annotations

import gc
import os
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from ocrlab.debug.flight_record import worker_status
from ocrlab.debug.recorder import rng_state, sample_names
from ocrlab.debug.recorder.dataset_proxy import Loaded, Order, Place, Watched

pytestmark = pytest.mark.skipif(
    rng_state.quick is None, reason="the recorder's part in C was not built: make setup, with cc"
)
TIMES = [*range(24, 32)]  # of the page's beginning; and of each sample
for _side in (0, 1):
    _at = worker_status.SAMPLE_AT + 8 + _side * worker_status.SAMPLE.size
    TIMES += range(_at, _at + 8)


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
    "an order": (Data, [[1, 2], Order([3, 4], {}), [5, 6]]),
}


def opened(folder: Path, dataset, *, quick: bool = True, workers: int = 0) -> Watched:
    """Return a watched data set, which notes in C or in Python."""
    folder.mkdir()
    looked = Watched(dataset, Place(folder), workers)
    with pytest.MonkeyPatch.context() as patched:
        if not quick:
            patched.setattr(rng_state, "quick", None)
        looked.open()
    assert (looked.notes is not None) is quick
    return looked


def page_of(looked: Watched) -> bytes:
    """Return the bytes of a page but for the times in it."""
    page = bytearray(looked.page.page)
    for place in TIMES:
        page[place] = 0
    return bytes(page)


@pytest.mark.parametrize("draws", ["nothing", "torch", "much of torch", "NumPy"])
@pytest.mark.parametrize("case", LOADED)
def test_the_same_bytes_lie_in_the_page(case, draws, tmp_path):
    make, batches = LOADED[case]
    in_c, in_python = opened(tmp_path / "c", make()), opened(tmp_path / "python", make(), quick=False)
    for batch in batches * 3:
        torch.rand({"torch": 20, "much of torch": 700}.get(draws, 0))
        np.random.rand(int(draws == "NumPy"))  # noqa: NPY002
        for looked in (in_c, in_python):
            looked.fresh = True
            assert len(looked.__getitems__(batch)) == len(batch.indices if isinstance(batch, Order) else batch)
            assert looked.fresh is False
        assert in_c.told == in_python.told
        assert in_c.told.base == {} or [*in_c.told.base] == ["kind", "single", "workers", "worker", "indices"]
        a, b = page_of(in_c), page_of(in_python)
        assert [i for i in range(len(a)) if a[i] != b[i]] == []
    (found,) = worker_status.workers(tmp_path / "c", 0, 0)
    assert found.order in (in_c.told.base, {"left_out": True})


def test_usual_batches_are_done_in_c(tmp_path, monkeypatch):
    calls, real = [], Watched.load
    monkeypatch.setattr(Watched, "load", lambda self, indices: calls.append(1) or real(self, indices))
    looked = opened(tmp_path / "a", Listed())
    for i in range(50):
        torch.rand(100 * i)
        looked.__getitems__([1, 2])
    assert len(calls) <= 1, "the first one, at the most"


def test_a_stream_is_noted_alike(tmp_path):
    data = [torch.rand(3) for _ in range(7)]
    both = [opened(tmp_path / str(quick), data, quick=quick, workers=2) for quick in (True, False)]
    for _ in zip(*both, strict=True):
        assert both[0].told == both[1].told and both[0].name == both[1].name
        assert page_of(both[0]) == page_of(both[1])
        torch.rand(5)
        for looked in both:
            looked.fresh = looked.position % 3 == 0
    assert both[0].told.base == {"kind": "walk", "single": True, "workers": 2, "worker": None, "first": 6}


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
    looked.__getitems__([1, 2])
    with pytest.raises(type(error)) as raised:
        looked.__getitems__([3, 5, 4])
    assert raised.value is error
    looked.__getitems__([6, 7])
    (found,) = worker_status.workers(tmp_path / "a", 0, 0)
    assert found.failed == ("" if isinstance(error, StopIteration) else "5")
    assert found.order["indices"] == ("[6, 7]" if isinstance(error, StopIteration) else "[3, 5, 4]")
    assert found.sample == "7"


class Interrupted(Data):
    def sample_name(self, index):
        raise KeyboardInterrupt


def test_an_interrupt_while_a_name_is_asked_for_is_not_lost(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path / "a", Interrupted()).__getitems__([1, 2])


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
        assert looked.__getitems__(data.asked) == [1]


def test_it_goes_with_its_iterator_and_can_be_sent_to_a_worker(tmp_path):
    looked = opened(tmp_path / "a", Listed())
    looked.__getitems__([1, 2])
    (copy,) = pickle.loads(pickle.dumps([looked]))
    assert copy.page is None and copy.notes is None and "__getitems__" not in vars(copy)
    copy.place = Place(tmp_path / "a", loader=1)
    copy.__getitems__([4])
    assert {worker.sample for worker in worker_status.workers(tmp_path / "a", 0, 0)} == {"2.png", "4.png"}
    gone, was_on = weakref.ref(looked), gc.isenabled()
    gc.disable()
    try:
        del looked
        assert gone() is None, "no cycle keeps a page and a data set"
    finally:
        if was_on:
            gc.enable()


def test_the_copy_of_a_forked_process_writes_into_a_page_of_its_own(tmp_path):
    looked = opened(tmp_path / "a", Data())
    looked.__getitems__([1, 2])
    if (child := os.fork()) == 0:
        looked.place = Place(tmp_path / "a", loader=1)
        looked.__getitems__([5, 6])
        os._exit(0)
    os.waitpid(child, 0)
    found = {worker.pid: worker.order["indices"] for worker in worker_status.workers(tmp_path / "a", 0, 0)}
    assert found == {os.getpid(): "[1, 2]", child: "[5, 6]"}


def test_wrong_arguments_are_refused():
    marks, kinds = rng_state.MARKS, (type(rng_state.MARKS), rng_state.MARKS)
    known = (*kinds, Loaded, str, None, None, lambda: None, [])
    with pytest.raises(ValueError, match="too small"):
        rng_state.quick.Notes(bytearray(1000), worker_status.PLACES, *known)
    with pytest.raises(TypeError, match="no Marks"):
        rng_state.quick.Notes(bytearray(worker_status.SIZE), worker_status.PLACES, type(marks), 5, *known[2:])
    with pytest.raises(BufferError):
        rng_state.quick.Notes(bytes(worker_status.SIZE), worker_status.PLACES, *known)
    notes = rng_state.quick.Notes(bytearray(worker_status.SIZE), worker_status.PLACES, *known)
    assert notes.begin([1, 2]) is None, "nobody has said what batches have in common"
    for wrong in ((2, {}, ""), (0, [], ""), (0, {}, 5)):
        with pytest.raises((ValueError, TypeError)):
            notes.know(*wrong)
    with pytest.raises(ValueError, match="two sides"):
        notes.wrote(2, {}, 0, 0)
    notes.know(0, {}, "")
    for odd in ([], [None], [1.5], "ab", None, [1, "a"], (1, 2), {}):
        assert notes.begin(odd) is None
    notes.sample(5), notes.sample("\udcff" * 400)
    del notes
    bare = rng_state.quick.Notes.__new__(rng_state.quick.Notes)
    assert bare.begin([1]) is None and bare.sample("a") is None
    with pytest.raises(RuntimeError):
        bare.fetch([1])


def test_a_loader_gives_what_it_gave(tmp_path):
    assert (
        sample_names.source(sample_names.naming(Listed())) is Listed.samples
        and sample_names.source(sample_names.naming(Data())) is None
    )
    copied = DataLoader(looked := Watched(Listed(), Place(tmp_path), 0), 4, collate_fn=list)
    assert [len(batch) for batch in copied] == [4] * 25 and looked.told.samples == ["96", "97", "98", "99"]
