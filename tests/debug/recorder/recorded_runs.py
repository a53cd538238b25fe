"""Recorded runs of these tests: the newest record of a folder, and a replay of it in this process."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ocrlab.debug.flight_record import program_info, ring_reader
from ocrlab.debug.replay import trial
from ocrlab.debug.replay.child import replay_session

FAULTS = (ValueError, TypeError, AttributeError, IndexError, RuntimeError, OSError)


class Ended(BaseException):
    """In place of the end of the process."""


def newest(folder: Path) -> ring_reader.Flight:
    """Return the record of the last start of a run."""
    return ring_reader.read_ring(ring_reader.find_rings(folder)[0])


def replay(folder, monkeypatch, again, last=None, **more):
    """Run `again` as a replay from the older snapshot, and return its result."""
    flight, out = newest(folder), folder / "replay"
    out.mkdir()
    job: dict[str, Any] = {"schema": 1, "run": str(folder), "rank": 0, "snapshot": None, "out": str(out)}
    job |= {"session": trial.SESSION, "last_step": flight.now.number if last is None and flight.now else last}
    if flight.snapshots:
        job |= {"snapshot": str(flight.snapshots[-1].path), "first_step": flight.snapshots[-1].number}
    (out / "job.json").write_text(json.dumps({**job, **more}))

    def end() -> None:
        raise Ended

    handler = signal.getsignal(signal.SIGCHLD)
    with monkeypatch.context() as patch:
        patch.setenv(program_info.REPLAY, str(out / "job.json"))
        patch.setattr(sys, "excepthook", sys.excepthook)  # the replay replaces these
        patch.setattr(torch, "save", torch.save)
        patch.setattr(replay_session, "leave", end)
        with pytest.raises((Ended, *FAULTS)):
            again()
    signal.signal(signal.SIGCHLD, handler)
    return json.loads((out / "result.json").read_text())
