"""What a recorded training noticed about itself and ended without an error all the same, one sentence each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.errors import DataError
from ocrlab.records import from_json
from ocrlab.run_folder.atomic_files import write_json

NAME = re.compile(r"learned-(\d+)\.json")


def write(
    folder: Path,
    rank: int,
    start: int,
    lines: Sequence[str],
    weights: Mapping[int, int],
    *,
    cut: bool,
    end: Mapping[str, Any] | None = None,
) -> None:
    """Write the sentences of one rank into its flight/; `weights` are sums of all bits by micro-batch, `cut` tells that
    the program ended itself in the middle, `end` how the training did: {"how", "error"}. Raises OSError."""
    told = {"schema": 1, "start": start, "lines": list(lines), "weights": {str(k): v for k, v in weights.items()}}
    write_json(folder / f"learned-{rank}.json", {**told, "cut": cut, "end": end}, private=True)


def delete(folder: Path, rank: int) -> None:
    """Remove what an earlier start has written into a flight/; raises OSError."""
    (folder / f"learned-{rank}.json").unlink(missing_ok=True)


def read(run_folder: Path) -> list[str] | None:
    """Return the sentences of all ranks of the last start, None where nothing was recorded."""
    found = _ranks(run_folder)
    if not found:
        return None
    lines: list[str] = []
    for rank, told in sorted(found.items()):
        new = [str(line) for line in told["lines"]]
        lines += [
            line if len(found) == 1 else f"rank {rank}: {line}"
            for line in new
            if not _reported_before(line, found, rank)
        ]
    return _diverged_ranks(found) + lines


def ended_early(run_folder: Path) -> bool:
    """Tell whether the program was seen to end itself, without an error, in the middle of its training."""
    return any(bool(told.get("cut")) for told in _ranks(run_folder).values())


def training_end(run_folder: Path, rank: int) -> dict[str, Any] | None:
    """Return how the training of a rank ended, {"how": "success" or "failed", "error"}; None where nobody said it."""
    told = _ranks(run_folder).get(rank, {}).get("end")
    return dict(told) if isinstance(told, dict) else None


def _reported_before(line: str, found: Mapping[int, Mapping[str, Any]], rank: int) -> bool:
    return any(line in told["lines"] for other, told in found.items() if other < rank)


def _ranks(run_folder: Path) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for file in sorted((run_folder / "flight").glob("learned-*.json")):
        match = NAME.fullmatch(file.name)
        try:
            told = from_json(file.read_bytes(), source=str(file)) if match else {}
        except (OSError, DataError):
            continue
        if match and isinstance(told.get("lines"), list) and isinstance(told.get("weights"), dict):
            found[int(match[1])] = told
    return found


def _diverged_ranks(found: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return that the ranks hold different weights after the same micro-batch."""
    if len(found) < 2:
        return []
    same = set.intersection(*(set(told["weights"]) for told in found.values()))
    for micro in sorted(same, key=int):
        values = {told["weights"][micro] for told in found.values()}
        if len(values) > 1:
            return [
                f"the {len(found)} ranks hold different weights after micro-batch {micro}: their gradients are not "
                "averaged. Call the wrapped model (DistributedDataParallel), not model.module, in the training step"
            ]
    return []
