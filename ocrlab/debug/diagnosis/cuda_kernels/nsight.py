"""Nsight Compute's memory metrics in words: `ncu --csv` with `--page raw` or `--page details`.

One request is one warp's load or store; a sector is 32 bytes of global memory. 32 threads that read 4 bytes each, side
by side, touch 4 sectors; 32 threads that each touch a sector of their own need 32 (Nsight Compute, Kernel Profiling
Guide: memory tables).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ocrlab.errors import DataError

IDEAL = 4  # sectors a request of 32 neighbouring elements of 4 bytes
WORST = 32
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_{}.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_{}.sum"
RATIO = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_{}.ratio"  # the same, divided by Nsight Compute
USED_BYTES = "smsp__sass_average_data_bytes_per_sector_mem_{}.pct"
MOVES = {"global loads": "global_op_ld", "global stores": "global_op_st", "local loads (spills)": "local_op_ld"}
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
INSTRUCTIONS = "smsp__inst_executed_op_shared_{}.sum"
SHARED = {"shared loads": "ld", "shared stores": "st"}


@dataclass
class Profile:
    """One profiled launch: the kernel's name and its metrics by name."""

    kernel: str
    metrics: dict[str, float] = field(default_factory=dict)


def read(text: str) -> list[Profile]:
    """Return every launch of a CSV that ncu printed; raises DataError where there is none."""
    lines = text.lstrip("\ufeff").splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if line.startswith(('"ID"', "ID,"))), None)
    if start is None:
        do = "ncu --csv --page raw ... > FILE"
        raise DataError("This is not a CSV of Nsight Compute", need='a table that begins with "ID"', do=do)
    rows = list(csv.DictReader(io.StringIO("".join(lines[start:]), newline="")))
    profiles: dict[str, Profile] = {}
    for row in rows:
        if not (row.get("ID") or "").strip():
            continue  # the second line of the raw page holds units
        profile = profiles.setdefault(row["ID"], Profile(row.get("Kernel Name") or "?"))
        cells = [(row["Metric Name"], row.get("Metric Value"))] if row.get("Metric Name") else list(row.items())
        for name, value in cells:
            number = _number(value)
            if name and number is not None:
                profile.metrics[name] = number
    return list(profiles.values())


def describe(profile: Profile) -> list[str]:
    """Return what the metrics say, a sentence each; one that names the metrics to collect where they are missing."""
    sentences = [*_sectors(profile.metrics), *_banks(profile.metrics)]
    if sentences:
        return sentences
    names = [RATIO.format(kind) for kind in ("global_op_ld", "global_op_st")]
    names += [name.format(kind) for kind in SHARED.values() for name in (CONFLICTS, INSTRUCTIONS)]
    command = f"ncu --csv --page raw --metrics {','.join(names)} PROGRAM"
    return [f"No memory metric is in this table; collect them with: {command}"]


def _sectors(metrics: dict[str, float]) -> Iterator[str]:
    for what, kind in MOVES.items():
        ratio, requests = metrics.get(RATIO.format(kind)), metrics.get(REQUESTS.format(kind))
        if ratio is None and requests:
            ratio = metrics.get(SECTORS.format(kind), 0.0) / requests
        if ratio:
            share = metrics.get(USED_BYTES.format(kind))
            yield f"{what}: {ratio:.1f} sectors per request, {_meaning(ratio, share)}"


def _meaning(ratio: float, used: float | None) -> str:
    """Say what a ratio means; the share of used bytes tells wide loads (float4: 16 sectors) from scattered ones."""
    share = f" ({used:.0f} % of the bytes are used)" if used is not None else ""
    if used is not None and used >= 90 and ratio > IDEAL:
        return f"coalesced: wide elements, no byte is fetched without use{share}."
    if ratio <= IDEAL * 1.1:
        need = "4 is what 32 threads with neighbouring 4-byte elements need, less is shared addresses"
        return f"coalesced{share}: {need}."
    if ratio <= 16.5:
        wide = ", or 8- and 16-byte elements, whose ideal is 8 and 16" if used is None else ""
        return f"strided or misaligned{wide}{share}; let neighbouring threads touch neighbouring addresses."
    own = f"at {WORST} each thread fetches its own sector"
    return f"scattered{share}: {own}; transpose, or stage through shared memory."


def _banks(metrics: dict[str, float]) -> Iterator[str]:
    for what, kind in SHARED.items():
        conflicts, instructions = metrics.get(CONFLICTS.format(kind)), metrics.get(INSTRUCTIONS.format(kind))
        if instructions and conflicts is not None:
            each = conflicts / instructions
            meaning = "no bank conflicts" if each < 0.05 else "bank conflicts: pad the rows by one element, or swizzle"
            yield f"{what}: {each:.2f} extra wavefronts an instruction, {meaning}."


def _number(value: str | None) -> float | None:
    """Return a metric as a number: ncu groups thousands by the locale (1,234.5 or 1.234,5)."""
    text = (value or "").strip()
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    elif re.fullmatch(r"-?\d{1,3}(\.\d{3})+,\d+", text) or re.fullmatch(r"-?\d+,\d+", text):
        text = text.replace(".", "").replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return None
