"""The part of a kernel's stack that the author of a notebook wrote, in the author's words: cell [5], line 3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

CELL_FILE = re.compile(r"[^\s\"(]*ipykernel_\d+/(?P<code>\d+)\.py")  # how ipykernel names the code of a cell
BLOCK = re.compile(r"(?m)^(?=(?:Current t|T)hread |Fatal Python error|Process \d+)")


def own(stack: str, cells: Sequence[Any] = ()) -> str:
    """Return the frames from the newest down to the cell; other threads and ipykernel's own frames say nothing.

    Takes what faulthandler and py-spy write; a stack in which no cell is found is returned whole.
    """
    frames: list[str] = []
    names = _names(cells)
    for block in BLOCK.split(stack):
        lines = block.rstrip().splitlines()
        last = max((n for n, line in enumerate(lines) if CELL_FILE.search(line)), default=None)
        if last is not None:
            frames += [_named(line, names) for line in lines[: last + 1]]
        elif block.startswith("Fatal Python error"):
            frames += lines[:1]
    return "\n".join(frames) or stack.strip()


def _named(line: str, names: dict[str, str]) -> str:
    return CELL_FILE.sub(lambda match: names.get(match["code"], "a cell"), line)


def _names(cells: Sequence[Any]) -> dict[str, str]:
    """Return `cell [5]` by the name under which ipykernel compiles it; empty where ipykernel does it otherwise."""
    try:
        from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86

        seed = get_tmp_hash_seed()
        ran = [cell for cell in cells if cell.cell_type == "code" and cell.execution_count is not None]
        return {str(murmur2_x86(cell.source, seed)): f"cell [{cell.execution_count}]" for cell in ran}
    except (ImportError, AttributeError, TypeError):
        return {}
