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
    return [
        flight
        for flight in map(_read, paths)
        if flight is not None and flight.now is not None and flight.start == ring_reader.parse_name(paths[0])[1]
    ]


def _read(path: Path) -> Flight | None:
    with suppress(DataError):
        return ring_reader.read_ring(path)
    return None


def has_live_process(run: Path) -> bool:
    """Return whether a process has the number of one that has recorded; a reused number counts, too."""
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
    workers = [w for w in flight.workers if w.sample and (w.loader == 0) == (now.phase != "validation")]
    own = [worker for worker in workers if worker.pid == flight.pid]  # what the process loads itself
    if own and now.phase == "data":
        parts.append(f"the process itself on {_short(own[0].sample)}")
    others = [f"worker {w.worker} on {_short(w.sample)}" for w in workers if w.pid != flight.pid]
    parts += [", ".join(others[:WORKERS])] if others else []
    return "; ".join(parts) + (f" and {len(others) - WORKERS} more workers" if len(others) > WORKERS else "")


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
    for flight in map(_read, ring_reader.find_rings(run)):
        if flight is not None and flight.now is not None:
            now = flight.now
            samples = {"validation": flight.sample, "data": ""}  # of data it is the batch before
            sample = samples.get(now.phase, ", ".join(now.samples[:2]))
            positions.setdefault(flight.pid, {"step": now.number, "phase": now.phase, "sample": sample})
    return positions
