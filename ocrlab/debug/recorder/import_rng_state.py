"""The random states that a program had when it imported the recorder: what it draws from then on, a replay draws again.

Nobody need have seeded them: torch, Python and NumPy each begin with other numbers in every process.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ocrlab.debug.flight_record import notebook_cells, program_info
from ocrlab.debug.recorder import iteration_log, replay_registration, rng_state
from ocrlab.errors import OcrlabError

AT_IMPORT: dict[str, Any] = {}
STARTED = time.monotonic()
recordings: Counter[int | None] = Counter()  # recordings, by the cell of a notebook; those of a program together


def record_import() -> None:
    """Keep the states of now, at the end of an import; in a replay put them to those of the run where it noted them."""
    with contextlib.suppress(OcrlabError, OSError, KeyError, ValueError):  # a replay says later what is wrong with it
        if (job := program_info.job()) is not None:
            replay_registration.prepare(job)
            rng_state.restore(
                iteration_log.load_states(
                    Path(job["run"], "flight"), int(job["rank"]), job["start"], iteration_log.IMPORT
                )
            )
    AT_IMPORT["states"] = rng_state.take(cuda=False)


def count_recording() -> int:
    """Return how many recordings began before this one, in this program or this cell of a notebook; a replay leaves as
    many alone.
    """
    cell = notebook_cells.current_cell()
    recordings[cell] += 1
    return recordings[cell] - 1


def program_facts() -> dict[str, Any]:
    """Return what a replay must know: how many recordings came before this one, and the seconds until it began."""
    return {"nth": count_recording(), "after": time.monotonic() - STARTED}


def save_states(folder: Path, rank: int, start: int) -> None:
    """Write down those states, those of now, and the cells of a notebook, where the recorder begins; raises OSError."""
    iteration_log.save_states(folder, rank, start, iteration_log.IMPORT, AT_IMPORT.get("states"))
    iteration_log.save_states(folder, rank, start, iteration_log.BEGINNING)
    notebook_cells.save_cells(folder, rank)


def restore_states(folder: Path, rank: int, start: int) -> None:
    """Put the random states to those with which the recorder began, where they were noted."""
    with contextlib.suppress(OcrlabError):
        rng_state.restore(iteration_log.load_states(folder, rank, start, iteration_log.BEGINNING))
