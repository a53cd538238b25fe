"""Batches of a replay: which of a record are made again, of single samples, of streams, and without a loader."""

import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.flight_record.ring_reader import Flight
from ocrlab.debug.flight_record.worker_status import WorkerStatus
from ocrlab.debug.recorder import rng_state
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.replay.child import batch_feed
from ocrlab.debug.replay.child.batch_feed import parts
from ocrlab.errors import DataError
from tests.debug.recorder.recorded_runs import replay
from tests.debug.recorder.test_loop_recorder import Stream


class RandomRows(Dataset):
    """Rows that are drawn when they are asked for; one is broken."""

    def __init__(self, bad: int = -1) -> None:
        self.bad, self.names = bad, [f"row{index}" for index in range(12)]

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.bad:
            raise OSError("a torn row")
        return torch.rand(8) + random.random()


def by_size(rows):
    if len(rows) == 1:
        raise ValueError("one row is not a batch")
    return torch.stack(sorted(rows, key=lambda row: float(row.sum()))) + torch.rand(())


def test_a_batch_is_put_together_of_its_samples_as_they_were():
    states = rng_state.take(cuda=False)
    loader = DataLoader(RandomRows(), 3, collate_fn=by_size)
    whole = by_size([loader.dataset[index] for index in (7, 2, 5)])
    before = rng_state.take(cuda=False)
    called, make = parts(loader, {"single": False, "indices": "[7, 2, 5]"}, states)
    assert called == ["row7", "row2", "row5"] and torch.equal(make([0, 1, 2]), whole)
    assert torch.equal(make([1, 2]), make([2, 1])), "what it draws is drawn again"
    assert rng_state.take(cuda=False) == before, "nothing was drawn"
    assert parts(loader, {"single": True, "indices": "7"}, states) is None
    assert parts(loader, {"kind": "walk", "position": 3}, states) is None


def train(folder, loader, behind=lambda net: None):
    torch.manual_seed(0)
    random.seed(0)
    net = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(folder, net, optimizer, snapshot_every=2) as rec:
        for _ in rec.epochs(2):
            for row in rec.batches(loader):
                row = row[0] if isinstance(row, list | tuple) else row["x"] if isinstance(row, dict) else row
                rec.loss(net(row).square().mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
            behind(net)


@pytest.mark.parametrize("stream", [False, True])
def test_what_failed_behind_a_walk_fails_again(tmp_path, monkeypatch, stream):
    def behind(net):
        raise ZeroDivisionError("a metric of nothing")

    again = lambda: train(tmp_path, DataLoader(Stream() if stream else RandomRows(), 4), behind)  # noqa: E731
    with pytest.raises(ZeroDivisionError):
        again()
    flight = ring_reader.read_ring(ring_reader.find_rings(tmp_path)[0])
    with pytest.raises(ZeroDivisionError):
        replay(tmp_path, monkeypatch, again, last=flight.now.number + 1)
    result = json.loads((tmp_path / "replay" / "result.json").read_text())
    assert result["behind"] and result["error"]["message"] == "a metric of nothing"
    assert [step["equal"] for step in result["steps"]] == [True] * len(result["steps"])


def test_a_walk_that_was_cut_off_is_not_gone_on_from(tmp_path, monkeypatch):
    class Cut(torch.utils.data.Sampler):
        def __iter__(self):
            yield from ([0, 1], [2, 3])
            raise ValueError("of the sampler")

        def __len__(self):
            return 6

    def behind(net):
        raise AssertionError("half a walk is none")

    again = lambda: train(tmp_path, DataLoader(RandomRows(), batch_sampler=Cut()), behind)  # noqa: E731
    with pytest.raises(ValueError, match="sampler"):
        again()
    assert replay(tmp_path, monkeypatch, again, last=2)["finished"]


class Torn(IterableDataset):
    def __iter__(self):
        raise OSError("a torn row")


@pytest.mark.parametrize(("data", "workers"), [(RandomRows(bad=1), 0), (RandomRows(bad=1), 2), (Torn(), 0)])
def test_a_first_batch_that_cannot_be_loaded_is_loaded_again(tmp_path, monkeypatch, data, workers):
    again = lambda: train(tmp_path, DataLoader(data, 4, num_workers=workers))  # noqa: E731
    with pytest.raises(OSError, match="torn"):
        again()
    assert not ring_reader.read_ring(ring_reader.find_rings(tmp_path)[0]).steps
    result = replay(tmp_path, monkeypatch, again, last=0)
    assert "a torn row" in result["error"]["message"] and not result["steps"]
    failed = [
        worker.failed for worker in ring_reader.read_ring(tmp_path / "replay" / "ring.bin").workers if worker.failed
    ]
    assert failed == (["row1"] if isinstance(data, RandomRows) else []), "this stream breaks before its first sample"


def flight(*steps: Step, workers: list[WorkerStatus] | None = None) -> Flight:
    return Flight(
        Path("ring"), 1, 0, 0, 0.0, steps=list(steps), now=steps[-1] if steps else None, workers=workers or []
    )


def step(micro: int, phase: str = "forward") -> Step:
    return Step(micro, micro, phase=phase, order={"kind": "map", "indices": f"[{micro}]"})


def test_a_gap_in_the_record_is_refused() -> None:
    batch_feed.check_steps([step(3), step(4)], [], 3)
    batch_feed.check_steps([], [step(0)], 0)
    with pytest.raises(DataError, match="Nothing to replay"):
        batch_feed.check_steps([], [], 0)
    with pytest.raises(DataError, match="does not reach back.*micro-batches 4 to 5"):
        batch_feed.check_steps([step(4), step(5)], [], 3)


def test_batches_on_their_way_are_those_that_no_step_got_the_rank_that_failed_first() -> None:
    workers = [
        WorkerStatus(7, 0, "a", 0.0, order={"indices": "[4]"}, loaded={"torch": b""}),
        WorkerStatus(8, 1, "b", 0.0, order={"indices": "[5]"}, loaded={"torch": b""}, failed="b", failed_at=9.0),
        WorkerStatus(9, 2, "c", 0.0, order={"indices": "[3]"}, loaded={"torch": b""}),  # a step has got it
        WorkerStatus(9, 2, "d", 0.0, order={"indices": "[6]"}, loaded={"torch": b""}, loader=1),  # of a validation
    ]
    waiting = flight(step(2), step(3, "data"), workers=workers)
    batches = batch_feed.pending_batches(waiting, waiting.steps, 4, Path())
    assert [(batch.number, batch.micro, batch.order["indices"]) for batch in batches] == [(4, 4, "[5]"), (4, 5, "[4]")]
    assert batch_feed.pending_batches(waiting, waiting.steps, 3, Path()) == [], "a step before that was asked for"
    computing = flight(step(2), step(3), workers=workers[:1])
    assert batch_feed.pending_batches(computing, computing.steps, 4, Path()) == []


def test_of_a_stream_the_next_batch_is_asked_for() -> None:
    newest = Step(3, 3, phase="data", order={"kind": "walk", "position": 3})
    (batches,) = batch_feed.pending_batches(flight(newest), [newest], 4, Path())
    assert (batches.micro, batches.order) == (4, {"kind": "walk", "position": 4, "pending": True})
