"""The random states that a program had when it imported the recorder: what it draws from then on, a replay draws again.

Nobody need have seeded them: torch, Python and NumPy each begin with other numbers in every process.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ocrlab.errors import OcrlabError
from ocrlab.flight import aside, record_program
from ocrlab.recording import executed, generators, one_rank, walks

AT_IMPORT: dict[str, Any] = {}
STARTED = time.monotonic()
began: Counter[int | None] = Counter()  # recordings, by the cell of a notebook; those of a program together


def imported() -> None:
    """Keep the states of now, at the end of an import; in a replay put them to those of the run where it noted them."""
    with contextlib.suppress(OcrlabError, OSError, KeyError, ValueError):  # a replay says later what is wrong with it
        if (job := record_program.job()) is not None:
            aside.begin()  # of a Python that reads no PYTHONPATH
            one_rank.begin(job)
            generators.put(walks.noted(Path(job["run"], "flight"), int(job["rank"]), job["start"], walks.IMPORT))
    AT_IMPORT["states"] = generators.take(cuda=False)


def counted() -> int:
    """Return how many recordings began before this one, in this program or this cell of a notebook; a replay leaves as
    many alone.
    """
    cell = executed.cell()
    began[cell] += 1
    return began[cell] - 1


def told() -> dict[str, Any]:
    """Return what a replay must know: how many recordings came before this one, and the seconds until it began."""
    return {"nth": counted(), "after": time.monotonic() - STARTED}


def note(folder: Path, rank: int, start: int) -> None:
    """Write down those states, those of now, and the cells of a notebook, where the recorder begins; raises OSError."""
    walks.note(folder, rank, start, walks.IMPORT, AT_IMPORT.get("states"))
    walks.note(folder, rank, start, walks.BEGINNING)
    executed.note(folder, rank)


def put(folder: Path, rank: int, start: int) -> None:
    """Put the random states to those with which the recorder began, where they were noted."""
    with contextlib.suppress(OcrlabError):
        generators.put(walks.noted(folder, rank, start, walks.BEGINNING))
