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

IDEAL = {1: 1, 2: 2, 4: 4, 8: 8, 16: 16}  # bytes a thread -> sectors a request of 32 neighbours
WORST = 32
TOTALS = {  # what is moved -> (sectors or wavefronts, requests)
    "global loads": (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    ),
    "global stores": (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    ),
    "local loads (spills)": (
        "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
        "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
    ),
}
RATIOS = {  # the same, divided by Nsight Compute
    "global loads": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "global stores": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
}
BANKS = {
    "shared loads": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        "smsp__inst_executed_op_shared_ld.sum",
    ),
    "shared stores": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
        "smsp__inst_executed_op_shared_st.sum",
    ),
}
USED_BYTES = {
    "global loads": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "global stores": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
}


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
        raise DataError(
            "This is no CSV of Nsight Compute",
            need='a table that begins with "ID"',
            do="ncu --csv --page raw ... > FILE",
        )
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
    wanted = ",".join([*RATIOS.values(), *(name for pair in BANKS.values() for name in pair)])
    return [f"No memory metric is in this table; collect them with: ncu --csv --page raw --metrics {wanted} PROGRAM"]


def _sectors(metrics: dict[str, float]) -> Iterator[str]:
    for what, (sectors, requests) in TOTALS.items():
        ratio = metrics.get(RATIOS.get(what, ""))
        if ratio is None and metrics.get(requests):
            ratio = metrics.get(sectors, 0.0) / metrics[requests]
        if not ratio:
            continue
        share = metrics.get(USED_BYTES.get(what, ""))
        yield f"{what}: {ratio:.1f} sectors per request, {_meaning(ratio, share)}"


def _meaning(ratio: float, used: float | None) -> str:
    """Say what a ratio means; the share of used bytes tells wide loads (float4: 16 sectors) from scattered ones."""
    share = f" ({used:.0f} % of the bytes are used)" if used is not None else ""
    if used is not None and used >= 90 and ratio > IDEAL[4]:
        return f"coalesced: wide elements, nothing is fetched in vain{share}."
    if ratio <= IDEAL[4] * 1.1:
        return (
            f"coalesced{share}: 4 is what 32 threads with neighbouring 4-byte elements need, less is shared addresses."
        )
    if ratio <= 16.5:
        wide = ", or 8- and 16-byte elements, whose ideal is 8 and 16" if used is None else ""
        return f"strided or misaligned{wide}{share}; let neighbouring threads touch neighbouring addresses."
    return (
        f"scattered{share}: at {WORST} each thread fetches its own sector; transpose, or stage through shared memory."
    )


def _banks(metrics: dict[str, float]) -> Iterator[str]:
    for what, (conflicts, instructions) in BANKS.items():
        if not metrics.get(instructions) or conflicts not in metrics:
            continue
        each = metrics[conflicts] / metrics[instructions]
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
