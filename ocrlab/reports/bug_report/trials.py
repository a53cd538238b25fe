"""What was tried on a failure: replays, bisects, runs again; and the runs beside it that failed in the same way."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ocrlab.errors import OcrlabError
from ocrlab.reports.bug_report.inputs import Sources, number
from ocrlab.reports.bug_report.markdown import Block, Paragraph, Table, code
from ocrlab.reports.run_history import fingerprint

BESIDE = 300  # runs that are looked at
SHOWN = 12  # rows of one table
AS_IT_WAS = "as it was"
REMEDIES = ("fp32", "one thread", "mkldnn off", "CUDA_LAUNCH_BLOCKING=1", "cuDNN off", "no caching allocator")


def blocks(sources: Sources, verification: Mapping[str, Any]) -> list[Block]:
    """Return what was run, each with what came of it; and the command of what was not."""
    content: list[Block] = []
    for name, record in sources.replays:
        content.append(Paragraph(f"{code(name)}: {code(_text(record.get('answer')))}"))
        rows = [[code(row.get("cell")), code(_cell(row)), _seconds(row)] for row in _rows(record.get("cells"))]
        content += [Table(["cell", "what came of it", "s"], rows[:SHOWN])] if rows else []
    for name, record in sources.bisects:
        content.append(Paragraph(f"{code(name)}: {code(_text(record.get('sentence')))}"))
        rows = [
            [code(", ".join(map(str, row.get("flipped") or ["nothing"]))), code(_text(row.get("ended"))), _seconds(row)]
            for row in _rows(record.get("table"))
        ]
        content += [Table(["flipped", "how it ended", "s"], rows[:SHOWN])] if rows else []
    if verification.get("runs"):
        content.append(
            Paragraph(
                f"Run again: {verification['same']} of {len(verification['runs'])} failed in the same way, see above."
            )
        )
    left = []
    if sources.recorded and not sources.replays:
        left.append(f"{code(f'ocrlab replay {sources.path.name}')} (which module, operator and sample)")
    if sources.config and not sources.bisects:
        left.append(f"{code(f'ocrlab bisect {sources.path.name}')} (which setting makes it fail)")
    left += [f"{code('ocrlab doctor')} (what is broken on this machine)"]
    return [*content, Paragraph(f"Not run: {', '.join(left)}.")]


def hypotheses(sources: Sources) -> list[list[str]]:
    """Return what a bisect has found as rows: hypothesis, status, confidence, evidence."""
    return [
        [
            f"Setting {code(culprit)}",
            "supported",
            _probability(record),
            f"{code(name)} {code(_text(record.get('sentence')))}",
        ]
        for name, record in sources.bisects
        if record.get("status") == "found"
        for culprit in _list(record.get("culprits"))
    ]


def refuted(sources: Sources) -> list[list[str]]:
    """Return the settings with which it fails whatever they are, as rows: cause, status, why."""
    rows = []
    for name, record in sources.bisects:
        culprits = {str(name_) for name_ in _list(record.get("culprits"))}
        if record.get("status") in ("found", "none"):
            names = [
                str(row.get("name")) for row in _rows(record.get("factors")) if str(row.get("name")) not in culprits
            ]
            rows += [
                [f"Setting {code(name_)}", "refuted", f"{code(name)}: the answer needs no change of it"]
                for name_ in names
            ]
    return rows


def until_mended(sources: Sources) -> list[tuple[str, str, str]]:
    """Return the record that shows what makes the failure go away, that, and how its runs with it ended in words."""
    workarounds = []
    for name, record in sources.bisects:
        if record.get("until_mended"):
            culprits = set(map(str, _list(record.get("culprits"))))
            needed = 1 if record.get("kind") == "all" else len(culprits)  # of several together one is enough
            ends = [
                row.get("ended")
                for row in _rows(record.get("table"))
                if culprits and len(culprits & set(map(str, _list(row.get("flipped"))))) >= needed
            ]
            ran = f", where {ends.count('passed')} of {len(ends)} runs with it passed" if ends else ""
            workarounds.append((name, str(record["until_mended"]), ran))
    return workarounds


def helped(sources: Sources) -> list[tuple[str, str]]:
    """Return the settings under which a replay had no fault, though it had one as it was, each with its record."""
    variants = []
    for name, record in sources.replays:
        rows = [row for row in _rows(record.get("cells")) if not row.get("not_done") and not row.get("alone")]
        if any(row.get("cell") == AS_IT_WAS and isinstance(row.get("fault"), Mapping) for row in rows):
            variants += [
                (name, str(row["cell"])) for row in rows if row.get("cell") in REMEDIES and not row.get("fault")
            ]
    return variants


def siblings(sources: Sources) -> tuple[int, int]:
    """Return how many of the runs beside this one failed in the same way, and how many there are."""
    if sources.kind != "run" or sources.record is None:
        return 0, 0
    same = count = 0
    mine = sources.path.resolve()
    for path in sorted(mine.parent.glob("*/"))[-BESIDE:]:
        if path == mine or not any((path / name).is_file() for name in (".FAILURE", ".SUCCESS", ".RUNNING")):
            continue
        count += 1
        with contextlib.suppress(OcrlabError, OSError):
            other = fingerprint.run_fingerprint(path)
            same += other is not None and other.id == sources.name.id
    return same, count


def _cell(row: Mapping[str, Any]) -> str:
    if row.get("not_done"):
        return f"not done: {row['not_done']}"
    fault = row.get("fault")
    if isinstance(fault, Mapping):
        what = next((fault[key] for key in ("exception", "signal", "value", "kind") if fault.get(key)), "a fault")
        place = fault.get("path") or fault.get("module") or fault.get("line") or ""
        return f"{str(what).strip().splitlines()[0][:120]} {f'in {place}' if place else ''}".strip()
    return "one sample after the other" if row.get("alone") else "no fault"


def _seconds(row: Mapping[str, Any]) -> str:
    seconds = number(row.get("seconds"))
    return "" if seconds is None else f"{seconds:.1f}"


def _probability(record: Mapping[str, Any]) -> str:
    value = number(record.get("posterior"))
    return "unknown" if value is None else f"{value:.2f}"


def _text(value: object) -> str:
    return str(value)[:600] if value else "no answer"


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in _list(value) if isinstance(row, Mapping)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
