"""How many runs does a bisect of eight factors take, and how often is it wrong? Rows of flight.py.

Real programs that really die, through `ocrlab bisect`, and many simulated ones through its search.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import bisect_search
import flight_replays
from flight_buggy import BAD, GOOD

PROGRAM = Path(__file__).with_name("flight_buggy.py")
HOW = ("segfault", "raise", "exit")
ERROR = 0.05
PLANS = (("one culprit", 1, 1.0, 5), ("a pair", 2, 1.0, 12), ("fails with probability 0.3", 1, 0.3, None))
Result = tuple[str, int]  # right, wrong or not settled; runs


def rows(options: argparse.Namespace, _details: list[str]) -> list[tuple[str, str, str, bool | None]]:
    """Return the rows of the table."""
    table_rows: list[tuple[str, str, str, bool | None]] = []
    dice = random.Random(0)
    for name, size, rate, limit in PLANS:
        groups = list(itertools.combinations(BAD, size))
        count = 1 if options.smoke else {1: 24, 2: 6}[size] if rate == 1.0 else 20
        outcomes = [
            once(groups[i // 3] if count == 24 else dice.choice(groups), HOW[i % 3], rate) for i in range(count)
        ]
        real, proofs = [outcome[:2] for outcome in outcomes], max(outcome[2] for outcome in outcomes)
        draws = 10 if options.smoke else 100 if limit else 300
        case = bisect_search.Case(len(BAD), "all", size, rate)
        simulated = [bisect_search.search_failure(case, dice) for _ in range(draws)]
        for kind, results in (("real programs", real), ("simulated", simulated)):
            runs = [used for _, used in results]
            ends = Counter(end for end, _ in results)
            wrong = len(results) - ends["right"] - ends["not settled"]
            text = f"{statistics.median(runs):.0f} runs, at most {max(runs)}; wrong {wrong} of {len(results)}"
            text += f"; and at most {proofs} made again to be sure" if kind == "real programs" and limit else ""
            text += f", not settled {ends['not settled']}" if ends["not settled"] else ""
            met = (max(runs) <= limit and ends["right"] == len(results)) if limit else wrong <= ERROR * len(results)
            must = f"{limit} runs" if limit else "5 % wrong"
            table_rows.append((f"bisect over 8 factors, {name}, {kind}", must, text, met))
    return table_rows


def once(needed: Sequence[str], how: str, rate: float) -> tuple[str, int, int]:
    """Bisect one real program; returns how that ended, how many runs it took, and how many more to be sure."""
    factors = [word for name in BAD for word in ("--factor", f"{name}={BAD[name]}:{GOOD[name]}")]
    program = [sys.executable, str(PROGRAM), ",".join(needed), how, str(rate), *(f"{n}={{{n}}}" for n in BAD)]
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        command = [*flight_replays.COMMAND, "bisect", "--json", "--runs", "100", *factors, "--", *program]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=folder,
            env=flight_replays.environment(),
            timeout=280,
            check=False,
        )
    record = {}
    with contextlib.suppress(ValueError):
        record = json.loads(done.stdout)
    culprits = record.get("culprits") or []
    if sorted(culprits) != sorted(needed):
        print(f"bisect {needed} {how} {rate}: {done.stdout[-600:]}{done.stderr[-600:]}", file=sys.stderr)
    end = (
        "right"
        if sorted(culprits) == sorted(needed)
        else "not settled"
        if record.get("status") == "undecided"
        else "wrong"
    )
    runs = record.get("runs", {})
    return end, int(runs.get("used", 0)), int(runs.get("to_make_sure", 0))
