"""A pasted nvidia-smi table: memory that is in use while no process of it is shown."""

from __future__ import annotations

import re
from dataclasses import dataclass

MEMORY = re.compile(r"(\d{1,7})Mi?B\s*/\s*(\d{2,7})Mi?B")
PROCESSES = re.compile(r"\|\s*Processes:")
ROW = re.compile(r"^\|\s*\d+\s+(?:N/A\s+N/A\s+)?\d+\s+[CG+]+\s", re.MULTILINE)
IN_USE = 0.1  # of the card; a desktop and contexts take less


@dataclass(frozen=True)
class Orphan:
    """Memory of a card that nobody in the table holds, in MiB, and where the table says so."""

    used: int
    total: int
    offset: int


def orphan(text: str) -> Orphan | None:
    """Return the first card of a table whose memory is in use while the table lists no process; None otherwise."""
    table = PROCESSES.search(text)
    if table is None or ROW.search(text, table.end()):
        return None
    for card in MEMORY.finditer(text, 0, table.start()):
        used, total = int(card[1]), int(card[2])
        if used > IN_USE * total:
            return Orphan(used, total, card.start())
    return None
