"""What of a record is made again by a replay: steps without a gap, and batches that were on their way at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.flight_record.ring_reader import Flight
from ocrlab.debug.flight_record.worker_status import last_batch_failed
from ocrlab.debug.recorder import saved_rng_states
from ocrlab.errors import DataError


def check(steps: Sequence[Step], pending: Sequence[Step], first: int) -> None:
    """Raise DataError where the record has gaps between the snapshot, before micro-batch `first`, and the last step."""
    if not steps and not pending:
        raise DataError("There is nothing to replay", got=f"no recorded step between micro-batch {first} and the last")
    if [step.micro for step in steps] != list(range(first, first + len(steps))):
        raise DataError(
            "The record does not reach back to the snapshot",
            got=f"micro-batches {steps[0].micro} to {steps[-1].micro}",
            need=f"all from {first} on",
            do="Keep more steps: recorder.steps, or Recorder(steps=...)",
        )


def pending(recorded: Flight, steps: Sequence[Step], last: int, folder: Path) -> list[Step]:
    """Return the batches that were being loaded when the run ended while it waited for data: one of them failed.

    `steps` are those to be made again, up to number `last`; `folder` is the flight/ of the run.
    """
    end = recorded.now
    newest = steps[-1] if steps else Step(-1, -1, phase="data")
    if end is None and not recorded.steps:  # it failed at its very first batch
        is_stream = saved_rng_states.has_states(folder, recorded.rank, recorded.start, 0)
        newest.order |= {"kind": "walk", "position": -1} if is_stream else {}
    elif end is None or end.micro != newest.micro or last <= newest.number or not _ended_loading(recorded, end, newest):
        return []
    if newest.order.get("kind") == "walk":  # the batch behind the last one, if there is any
        order = {**newest.order, "position": int(newest.order["position"]) + 1, "pending": True}
        return [Step(newest.number + 1, newest.micro + 1, newest.epoch, newest.walk, order=order)]
    done = {str(step.order.get("indices")) for step in recorded.steps}
    waiting = [w for w in recorded.workers if w.loader == 0 and w.order.get("indices") and w.loaded]
    waiting = [w for w in waiting if w.order["indices"] not in done or w.failed]
    waiting.sort(key=lambda worker: not worker.failed)
    return [
        Step(newest.number + 1, newest.micro + 1 + i, newest.epoch, newest.walk, order=w.order, loaded=w.loaded)
        for i, w in enumerate(waiting)
    ]


def _ended_loading(recorded: Flight, end: Step, newest: Step) -> bool:
    """Tell whether the run ended while it waited for a batch, or after one that could not be loaded."""
    return end.phase == "data" or last_batch_failed(recorded.workers, newest.time)
