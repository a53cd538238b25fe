import contextlib
import queue
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.sample_recorder import SampleRecorder, StatusLocation, copy_with_recorder, find_uncollatable
from tests.debug.recorder.recorded_runs import Ended, newest, replay
from tests.debug.recorder.test_loop_recorder import Bad, Noisy, train

SMALL, LARGE = torch.ones(2), torch.ones(3)


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        ([SMALL, SMALL, LARGE, SMALL], [2]), ([LARGE, SMALL, SMALL, SMALL], [0]),
        ([LARGE, SMALL, LARGE, SMALL, SMALL], [0, 2]), ([SMALL, None, SMALL], [1]), ([SMALL, LARGE], []),
        ([LARGE, SMALL, LARGE, SMALL], []), ([None, None], []), ([SMALL, SMALL], []),
    ],
)  # fmt: skip
def test_the_samples_that_fit_to_no_majority_are_blamed(samples, wanted):
    assert find_uncollatable(default_collate, samples) == wanted


def test_what_draws_is_tried_with_the_same_numbers():
    def collate(samples):
        if torch.rand(()) < 0.5 or len({len(sample) for sample in samples}) > 1:
            raise ValueError
        return torch.stack(samples)

    seed = next(seed for seed in range(99) if torch.manual_seed(seed) and torch.rand(()) > 0.5)
    torch.manual_seed(seed)
    assert find_uncollatable(collate, [SMALL, LARGE, SMALL]) == [1]


class Stream(IterableDataset):
    def __init__(self, is_named):
        self.is_named = is_named

    def __iter__(self):
        for number in range(20):
            yield {"x": SMALL if number != 13 else LARGE} | ({"id": f"line-{number}"} if self.is_named else {})


@pytest.mark.parametrize(("is_named", "wanted"), [(True, "line-13"), (False, "sample 13 of the stream")])
def test_of_a_stream_the_sample_that_fits_to_no_other_is_named(tmp_path, is_named, wanted):
    for replayed, name in ((False, "batch of sample 12 of the stream and the 3 after it"), (True, wanted)):
        loader = DataLoader(Stream(is_named), 4)
        watched, origin = SampleRecorder(loader.dataset, StatusLocation(tmp_path), 0, replayed=replayed), []
        watched.note_failure = origin.append
        with pytest.raises(RuntimeError, match="equal size"):
            list(copy_with_recorder(loader, watched))
        assert origin == [name]


class AtOnce(Noisy):
    def __getitems__(self, indices):
        if 13 in indices:
            raise ValueError("page 13 is broken")
        return [self[index] for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
def test_replay_names_the_broken_sample_of_a_batch_read_at_once(tmp_path, monkeypatch, workers):
    again = lambda: train(tmp_path, AtOnce(), workers=workers, snapshot_every=2)  # noqa: E731
    with pytest.raises(ValueError, match="13 is broken"):
        again()
    flight = newest(tmp_path)
    assert [w.failed.startswith("batch of ") for w in flight.workers if w.failed] == [True]
    replay(tmp_path, monkeypatch, again, last=flight.now.number + 1)
    statuses = ring_reader.read_ring(tmp_path / "replay" / "ring.bin").workers
    assert [worker.failed for worker in statuses if worker.failed] == ["13"]


def in_a_thread(folder: Path) -> None:
    """A program whose thread fetches, and dies of a sample without a word; its loop gives up waiting."""
    torch.manual_seed(0)
    net, fetched = nn.Linear(8, 3), queue.Queue()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(folder, net, optimizer) as rec:

        def fetch():
            with contextlib.suppress(ValueError, Ended):
                for batch in rec.batches(DataLoader(Bad(), 4)):
                    fetched.put(batch)

        thread = threading.Thread(target=fetch)
        thread.start()
        thread.join()
        while not fetched.empty():
            rec.loss(net(fetched.get()["x"]).mean()).backward()
            optimizer.step()


def test_a_thread_that_dies_of_a_sample_is_replayed_up_to_it(tmp_path, monkeypatch):
    in_a_thread(tmp_path)
    flight = newest(tmp_path)
    assert len(flight.steps) == 3 and flight.now.phase == "optimiser"
    result = replay(tmp_path, monkeypatch, lambda: in_a_thread(tmp_path), last=flight.now.number + 1)
    assert "page 13 is broken" in result["error"]["message"] and not result["ahead"]
