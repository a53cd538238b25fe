"""What a recorded training noticed about itself and ended without an error all the same, one sentence each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.errors import DataError
from ocrlab.records import from_json
from ocrlab.run_folder.atomic_files import write_json

LOST = re.compile(r"the loss is (?:nan|-?inf)[, ]")  # `nonfinite_text` of the training's health
NAME = re.compile(r"learned-(\d+)\.json")


def write(
    folder: Path,
    rank: int,
    start: int,
    lines: Sequence[str],
    weights: Mapping[int, int],
    *,
    batches: Sequence[int] = (),
    cut: bool,
    end: Mapping[str, Any] | None = None,
) -> None:
    """Write the sentences of one rank into its flight/; `weights` are sums of all bits by micro-batch, `batches` those
    of the batches that were looked at, `cut` tells that the program ended itself in the middle, `end` how the training
    did: {"how", "error"}. Those of a start after which another one has begun are set aside. Raises OSError."""
    if any(int(ring.stem.rpartition("-")[2]) > start for ring in folder.glob(f"ring-{rank}-*[0-9].bin")):
        folder = folder / f"start-{start}"
        folder.mkdir(mode=0o700, exist_ok=True)
    content = {"schema": 1, "start": start, "lines": list(lines), "weights": {str(k): v for k, v in weights.items()}}
    content["batches"] = list(batches)
    write_json(folder / f"learned-{rank}.json", {**content, "cut": cut, "end": end}, private=True)


def set_aside(folder: Path, rank: int, start: int) -> None:
    """Move what was found out about an earlier start into `start-N/` of a flight/; raises OSError.

    Those are its findings and, with rank 0, the answers of its replays: they say nothing about the start at hand.
    """
    stale = {f"learned-{rank}.json": folder / f"learned-{rank}.json"}
    if rank == 0:
        stale |= {path.name: path for path in folder.glob("replay*.json")}
        stale |= {f"incident-{path.name}": path for path in (folder.parent / "incident").glob("replay*.json")}
    for name, path in stale.items():
        if path.is_file():
            place = folder / f"start-{max(0, start - 1)}"
            place.mkdir(mode=0o700, exist_ok=True)
            path.replace(place / name)


def read(run_folder: Path) -> list[str] | None:
    """Return the sentences of all ranks of the last start, None where nothing was recorded."""
    ranks = _ranks(run_folder)
    if not ranks:
        return None
    lines, reported = diverged_ranks(run_folder), set[str]()
    for rank, content in sorted(ranks.items()):
        prefix = "" if len(ranks) == 1 else f"rank {rank}: "
        lines += [f"{prefix}{line}" for line in content["lines"] if line not in reported]
        reported.update(content["lines"])
    return lines


def lost_loss(lines: object) -> str:
    """Return the one of a rank's sentences that says that the loss is NaN or Inf to the end, empty without one."""
    texts = [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
    return next(filter(LOST.match, texts), "").partition(". ")[0]


def ended_early(run_folder: Path) -> bool:
    """Return whether the program ended itself, without an error, in the middle of its training."""
    return any(bool(content.get("cut")) for content in _ranks(run_folder).values())


def training_end(run_folder: Path, rank: int) -> dict[str, Any] | None:
    """Return how the training of a rank ended, {"how": "success" or "failed", "error"}; None where it is unknown."""
    end = _ranks(run_folder).get(rank, {}).get("end")
    return dict(end) if isinstance(end, dict) else None


def _ranks(run_folder: Path) -> dict[int, dict[str, Any]]:
    ranks: dict[int, dict[str, Any]] = {}
    for file in sorted((run_folder / "flight").glob("learned-*.json")):
        match = NAME.fullmatch(file.name)
        try:
            content = from_json(safe_read.read(file), source=str(file)) if match else {}
        except (OSError, DataError):
            continue
        if match and isinstance(content.get("lines"), list) and isinstance(content.get("weights"), dict):
            ranks[int(match[1])] = content
    return ranks


def diverged_ranks(run_folder: Path) -> list[str]:
    """Return that the ranks that have ended hold different weights after a micro-batch, or drew the same data."""
    ranks = _ranks(run_folder)
    if len(ranks) < 2:
        return []
    same = set.intersection(*(set(content["weights"]) for content in ranks.values()))
    for micro in sorted(same, key=int):
        values = {content["weights"][micro] for content in ranks.values()}
        if len(values) > 1:
            return [
                f"the {len(ranks)} ranks hold different weights from micro-batch {micro} on: the replicas diverge."
                " Either their gradients are not averaged (the step calls model.module, or the bare model, and not the"
                " DistributedDataParallel wrapper), or averaged gradients are lost on the way to a rank (compare a"
                " gradient of both ranks after backward; try NCCL_P2P_DISABLE=1)"
            ]
    first, *others = (content.get("batches") for content in ranks.values())
    if isinstance(first, list) and len({*map(str, first)}) >= 3 and all(batches == first for batches in others):
        return [
            f"the {len(ranks)} ranks trained on the same batches, to the last bit, in all {len(first)} looks: each one"
            " counts as often as there are ranks, and other samples are never drawn. Use a DistributedSampler with the"
            " number of ranks and the rank, or another seed and part of the data for each rank"
        ]
    return []
