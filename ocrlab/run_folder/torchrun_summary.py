"""What torchrun itself says of a program that keeps no records: its summary, one block for each rank that failed."""

from __future__ import annotations

import re
from typing import Any

FAILED = re.compile(
    r"^\s*rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)",
    re.MULTILINE,
)
MARK = re.compile(r"(?m)^\[default\d+\]:")


def failures(log: str) -> list[dict[str, Any]]:
    """Return the ranks of the last summary in a log, by number: {"rank", "pid", "exit_code" (negative for a signal),
    "line"}."""
    text = MARK.sub("", log)
    ranks = {}
    for hit in FAILED.finditer(text):
        line = text.count("\n", 0, hit.start("code")) + 1
        ranks[int(hit["rank"])] = {"pid": int(hit["pid"]), "exit_code": int(hit["code"]), "line": line}
    return [{"rank": rank, **failure} for rank, failure in sorted(ranks.items())]
