"""Random states in files of a flight folder: at the import of the recorder, at its start, and before passes over data.

A program need not seed its generators: torch, Python and NumPy begin with other numbers in every process. A replay
draws again what the program drew from the import on. Of a loader without indices it goes through a pass again.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ocrlab import safe_read
from ocrlab.debug.flight_record import notebook_cells, program_info
from ocrlab.debug.recorder import replay_registration, rng_state
from ocrlab.errors import DataError, OcrlabError
from ocrlab.records import from_json
from ocrlab.run_folder.atomic_files import write_json

STORED_PASSES = 32  # the last passes whose states are stored
BEGINNING, IMPORT = -1, -2  # in place of the number of a pass
NAMES = {BEGINNING: "beginning", IMPORT: "import"}
AT_IMPORT: dict[str, bytes] = {}
STARTED = time.monotonic()
recordings: Counter[int | None] = Counter()  # by the cell of a notebook; those of a program together


def save_states(folder: Path, rank: int, start: int, number: int, states: Mapping[str, bytes] | None = None) -> None:
    """Write the random states before a pass, by default the present ones; raises OSError."""
    texts = {name: state.hex() for name, state in (states or rng_state.take(cuda=False)).items()}
    content = {"schema": 1, "start": start, "walk": number, "states": texts}
    write_json(_file(folder, rank, number), content, private=True)


def load_states(folder: Path, rank: int, start: int, number: int) -> dict[str, bytes]:
    """Return the random states before a pass; raises DataError where they are not stored."""
    path = _file(folder, rank, number)
    try:
        content = from_json(safe_read.read(path), source=str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=str(error)) from error
    if (content["start"], content["walk"]) != (start, number):
        raise DataError(f"{path} belongs to another pass over the data", got=content["walk"], need=number)
    return {name: bytes.fromhex(state) for name, state in content["states"].items()}


def has_states(folder: Path, rank: int, start: int, number: int) -> bool:
    """Return whether the random states before a pass are stored."""
    with contextlib.suppress(DataError):
        load_states(folder, rank, start, number)
        return True
    return False


def _file(folder: Path, rank: int, number: int) -> Path:
    return folder / f"walk-{rank}-{NAMES.get(number, number % STORED_PASSES)}.json"


def record_import() -> None:
    """Store the present states, at the end of an import; in a replay restore those of the run first."""
    with contextlib.suppress(OcrlabError, OSError, KeyError, ValueError):  # the replay reports later what is wrong
        if (job := program_info.job()) is not None:
            replay_registration.prepare(job)
            rng_state.restore(load_states(Path(job["run"], "flight"), int(job["rank"]), job["start"], IMPORT))
    AT_IMPORT.update(rng_state.take(cuda=False))


def count_recording() -> int:
    """Return how many recordings began before this one, in this program or this cell of a notebook; a replay skips as
    many.
    """
    cell = notebook_cells.current_cell()
    recordings[cell] += 1
    return recordings[cell] - 1


def save_start(folder: Path, rank: int, start: int) -> None:
    """Write the states at the import, the present ones, and the cells of a notebook; raises OSError."""
    save_states(folder, rank, start, IMPORT, AT_IMPORT)
    save_states(folder, rank, start, BEGINNING)
    notebook_cells.save_cells(folder, rank)


def restore_start(folder: Path, rank: int, start: int) -> None:
    """Restore the random states with which the recorder began, where they are stored."""
    with contextlib.suppress(OcrlabError):
        rng_state.restore(load_states(folder, rank, start, BEGINNING))
