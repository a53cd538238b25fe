"""Which steps and batches of a record a replay makes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.flight_record.ring_reader import Flight
from ocrlab.debug.flight_record.worker_status import WorkerStatus
from ocrlab.debug.replay.child import batch_feed
from ocrlab.errors import DataError


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
    assert [(batch.number, batch.micro, batch.order["indices"]) for batch in batches] == [
        (4, 4, "[5]"),
        (4, 5, "[4]"),
    ]
    assert batch_feed.pending_batches(waiting, waiting.steps, 3, Path()) == [], "a step before that was asked for"
    computing = flight(step(2), step(3), workers=workers[:1])
    assert batch_feed.pending_batches(computing, computing.steps, 4, Path()) == []


def test_of_a_stream_the_next_batch_is_asked_for() -> None:
    newest = Step(3, 3, phase="data", order={"kind": "walk", "position": 3})
    (batches,) = batch_feed.pending_batches(flight(newest), [newest], 4, Path())
    assert (batches.micro, batches.order) == (4, {"kind": "walk", "position": 4, "pending": True})
