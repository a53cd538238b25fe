"""The random states that a program had when it imported the recorder: what it draws from then on, a replay draws again.

Nobody need have seeded them: torch, Python and NumPy each begin with other numbers in every process.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ocrlab.errors import OcrlabError
from ocrlab.flight import aside, record_program
from ocrlab.recording import executed, generators, walks

AT_IMPORT: dict[str, Any] = {}


def imported() -> None:
    """Keep the states of now, at the end of an import; in a replay put them to those of the run where it noted them."""
    with contextlib.suppress(OcrlabError, OSError, KeyError, ValueError):  # a replay says later what is wrong with it
        if (job := record_program.job()) is not None:
            aside.begin()  # of a Python that reads no PYTHONPATH
            generators.put(walks.noted(Path(job["run"], "flight"), int(job["rank"]), job["start"], walks.IMPORT))
    AT_IMPORT["states"] = generators.take(cuda=False)


def note(folder: Path, rank: int, start: int) -> None:
    """Write down those states, those of now, and the cells of a notebook, where the recorder begins; raises OSError."""
    walks.note(folder, rank, start, walks.IMPORT, AT_IMPORT.get("states"))
    walks.note(folder, rank, start, walks.BEGINNING)
    executed.note(folder, rank)


def put(folder: Path, rank: int, start: int) -> None:
    """Put the random states to those with which the recorder began, where they were noted."""
    with contextlib.suppress(OcrlabError):
        generators.put(walks.noted(folder, rank, start, walks.BEGINNING))
