"""Where the flight record of a run ends, in one line: what is known after SIGKILL, when nothing else was written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.flight_record.ring_reader import Flight
from ocrlab.errors import DataError

RANKS, SAMPLES, WORKERS = 4, 4, 8  # that are named
LONGEST = 120  # characters of a name


def position_text(run: Path) -> str:
    """Return where each rank of the last start was: step, phase, samples, what its workers loaded; '' for no record."""
    flights = last_flights(run)
    if len(flights) < 2:
        return f"the record ends at {flight_position(flights[0])}" if flights else ""
    others = [f"that of rank {flight.rank} at {flight_position(flight)}" for flight in flights[1:RANKS]]
    others += [f"and {len(flights) - RANKS} more ranks"] if len(flights) > RANKS else []
    return "; ".join([f"the record of rank {flights[0].rank} ends at {flight_position(flights[0])}", *others])


def last_flights(run: Path) -> list[Flight]:
    """Return the records of the last start of a run that have a step, by rank."""
    paths = ring_reader.find_rings(run)
    flights = []
    for path in paths:
        if ring_reader.parse_name(path)[1] == ring_reader.parse_name(paths[0])[1]:
            try:
                flight = ring_reader.read_ring(path)
            except DataError:
                continue
            if flight.now is not None:
                flights.append(flight)
    return flights


def has_live_process(run: Path) -> bool:
    """Tell whether a process has the number of one that has recorded; a reused number counts, too."""
    return any(Path(f"/proc/{flight.pid}").exists() for flight in last_flights(run))


def flight_position(flight: Flight) -> str:
    """Return where a record ends, without the beginning of the sentence."""
    now = flight.now
    assert now is not None, "only records with a step have a position"
    phase, samples = now.phase, f"sample{'s' if len(now.samples) > 1 else ''} {_few(now.samples)}"
    if phase == "data":  # the samples are those of the batch before
        phase, samples = "data (the next batch was being loaded)", f"the batch before: {_few(now.samples)}"
    elif phase == "validation":
        samples = _short(flight.sample)  # "validation batch 3: ..."
    elif phase == "forward" and now.stage:
        phase = f"forward, {_short(now.stage)}"
    parts = [f"step {now.number}, {phase}".rstrip(", ")]
    parts += [samples] if samples and not samples.endswith(" ") else []  # without a sample there is nothing to report
    of = [worker for worker in flight.workers if worker.sample and (worker.loader == 0) == (now.phase != "validation")]
    own = [worker for worker in of if worker.pid == flight.pid]  # what the process loads itself
    if own and now.phase == "data":
        parts.append(f"the process itself on {_short(own[0].sample)}")
    of = [worker for worker in of if worker.pid != flight.pid]
    parts += [", ".join(f"worker {worker.worker} on {_short(worker.sample)}" for worker in of[:WORKERS])] if of else []
    return "; ".join(parts) + (f" and {len(of) - WORKERS} more workers" if len(of) > WORKERS else "")


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - SAMPLES} more" if len(names) > SAMPLES else ""
    return ", ".join(map(_short, names[:SAMPLES])) + more


def _short(name: str) -> str:
    """Return a name on one line; a path stays one, so that it is redacted as one."""
    name = " ".join(name.split()).replace("`", "'")
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def rank_positions(run: Path) -> dict[int, dict[str, Any]]:
    """Return where each process of a run was when its flight record stopped, by pid: {"step", "phase", "sample"}."""
    positions: dict[int, dict[str, Any]] = {}
    for path in ring_reader.find_rings(run):
        with suppress(DataError):
            ring = ring_reader.read_ring(path)
            if ring.now is not None:
                phase, samples = ring.now.phase, ", ".join(ring.now.samples[:2])
                sample = {"validation": ring.sample, "data": ""}.get(phase, samples)  # of data it is the batch before
                positions.setdefault(ring.pid, {"step": ring.now.number, "phase": phase, "sample": sample})
    return positions
