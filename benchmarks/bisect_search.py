"""How many runs does `ocrlab bisect` need, and how often is it wrong? Simulated failures drawn by seed, some real ones.

A simulated program fails where one factor, two together, or either of two are as they were, now and then or always; or
whatever is set. Of each kind many are drawn. `--real` runs a small program under watch as well: seconds a run.
Must: over 8 factors one culprit in 5 runs, a pair in 12, with a failure in 3 of 10 runs 5% wrong at most.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import table

from ocrlab.debug.bisect import bisect_job, factors, program_trials
from ocrlab.debug.bisect.search import Search

LIMIT = 60  # runs
ERROR = 0.05
PROGRAM = "import sys\nif 'a=1' in sys.argv and 'f=1' in sys.argv: raise KeyError('bug')"


@dataclass(frozen=True)
class Case:
    """What is drawn: how many factors, which kind of failure, of how many factors, how often, how it is suspected."""

    count: int
    kind: str  # all, any, always, mixed (the first, and any of the others)
    size: int
    rate: float
    suspected: str = "alike"  # alike, right, wrong
    must: Callable[[list[int], Counter[str]], bool] | None = None
    limit_text: str = ""


def runs_at_most(limit: int) -> Callable[[list[int], Counter[str]], bool]:
    """Return a judge: no draw needs more runs, and none is wrong."""
    return lambda runs, ends: max(runs) <= limit and not ends["wrong"]


def wrong_at_most(share: float) -> Callable[[list[int], Counter[str]], bool]:
    """Return a judge of the share of wrong answers among all draws."""
    return lambda runs, ends: ends["wrong"] <= share * len(runs)


FLAKY = (0.1, 0.3, 0.5, 0.7, 0.9)
CASES = (
    Case(8, "all", 1, 1.0, must=runs_at_most(5), limit_text="5 runs"),
    Case(8, "all", 2, 1.0, must=runs_at_most(12), limit_text="12 runs"),
    Case(8, "any", 2, 1.0, must=runs_at_most(12), limit_text="12 runs"),
    Case(8, "always", 0, 1.0, must=wrong_at_most(ERROR), limit_text="5% wrong"),
    *(Case(8, "all", 1, rate, must=wrong_at_most(ERROR), limit_text="5% wrong") for rate in FLAKY),
    *(Case(8, "all", 2, rate, must=wrong_at_most(ERROR), limit_text="5% wrong") for rate in (0.3, 0.5, 0.7, 0.9)),
    *(Case(8, "any", 2, rate) for rate in (0.3, 0.5, 0.7, 0.9)),
    *(Case(8, "always", 0, rate) for rate in FLAKY),
    Case(8, "all", 3, 1.0),
    Case(8, "any", 3, 1.0),
    Case(8, "all", 4, 1.0),
    Case(8, "mixed", 3, 1.0),
    Case(8, "all", 1, 1.0, "right", runs_at_most(5), "5 runs"),
    Case(8, "all", 1, 1.0, "wrong", runs_at_most(5), "5 runs"),
    Case(8, "all", 2, 1.0, "wrong", runs_at_most(12), "12 runs"),
    Case(3, "all", 1, 1.0),
    Case(3, "all", 2, 1.0),
    Case(13, "all", 1, 1.0),
    Case(13, "all", 2, 1.0),
)


def main() -> int:
    """Run it and return the exit status."""
    parser = table.parser(__doc__)
    parser.add_argument("draws", type=int, nargs="?", default=200, help="of each kind (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument("--real", action="store_true", help="also bisect a real program under watch")
    options = parser.parse_args()
    rows: list[list[object]] = []
    fine = True
    for number, case in enumerate(CASES):
        row, met = judged(case, options.draws, random.Random(1000 * options.seed + number))
        print(*row, file=sys.stderr, flush=True)
        rows.append(row)
        fine &= met is not False
        what = f"{case.count} factors, fails where {row[1]}, rate {case.rate}, suspected {case.suspected}"
        table.figure(f"runs, median: {what}", row[8], "runs", limit=case.limit_text or None)
        table.figure(f"wrong: {what}", row[5] / options.draws, "share", limit=case.limit_text or None)  # type: ignore[operator]
    header = ["factors", "fails where", "rate", "suspected", "right", "wrong", "not settled", "not again"]
    header += ["runs: median", "95%", "most", "must", ""]
    body = table.markdown(header, rows)
    body += f"\n\n{options.draws} draws each; wrong: an answer that is not so; not settled: after {LIMIT} runs;"
    body += " not again: it passed so often as it was that it counts as gone. Every run counts, the one as it was too."
    body += (
        f" Seed {options.seed}.\n\nA failure that always happens must be named after 5 runs, which can end in 32 ways;"
    )
    body += (
        " 8 of them name a factor. What fails now and then, whatever is set, ends in one of those by chance: at p = 0.5"
    )
    body += " in 25 of 100, whoever chooses the runs. With --rate 0.5 more runs are made, and none is named so soon."
    if options.real:
        body += f"\n\n{real()}"
    table.publish("bisect", table.page("Bisect: runs and errors", body), options)
    return int(not fine)


def judged(case: Case, draws: int, dice: random.Random) -> tuple[list[object], bool | None]:
    """Return the row of one kind of failure, and whether it does what it must."""
    ends, runs = Counter[str](), list[int]()
    for _ in range(draws):
        end, count = search_failure(case, dice)
        ends[end] += 1
        runs.append(count)
    runs.sort()
    met = case.must(runs, ends) if case.must else None
    shown = [ends["right"], ends["wrong"], ends["not settled"], ends["not again"]]
    spread = [runs[len(runs) // 2], runs[int(0.95 * (len(runs) - 1))], runs[-1]]
    where = {"always": "whatever is set", "mixed": "one, and any of two"}.get(case.kind, f"{case.kind} of {case.size}")
    return [case.count, where, case.rate, case.suspected, *shown, *spread, case.limit_text, table.judged(met)], met


def search_failure(case: Case, dice: random.Random) -> tuple[str, int]:
    """Draw one failure, search for it, and return how that ended and after how many runs."""
    chosen = sorted(dice.sample(range(case.count), case.size))
    suspicion = [1.0] * case.count
    if case.suspected != "alike":
        others = [index for index in range(case.count) if index not in chosen]
        suspicion[chosen[0] if case.suspected == "right" else dice.choice(others)] = 6.0

    def perform(run: int) -> bool:
        if len(search.runs) >= LIMIT:
            raise bisect_job.LimitReached("runs")
        return fails(case, chosen, run) and dice.random() < case.rate

    search = Search(case.count, perform, ERROR, suspicion=suspicion)
    try:
        answer = search.find_factors()
    except bisect_job.LimitReached:
        return "not settled", len(search.runs)
    if answer.status == "never":
        return "not again", len(search.runs)
    if answer.status in ("misfit", "otherwise"):
        return "not settled", len(search.runs)
    same = answer.kind == case.kind or (case.size == 1 and answer.kind in ("all", "any"))
    return ("right" if same and list(answer.items) == chosen else "wrong"), len(search.runs)


def fails(case: Case, chosen: list[int], run: int) -> bool:
    """Return whether a run can fail."""
    on = [bool(run >> index & 1) for index in chosen]
    if case.kind == "mixed":
        return on[0] and any(on[1:])
    return any(on) if case.kind == "any" else all(on)


def real() -> str:
    """Bisect a small program of 8 factors that fails where two are as they were; returns a line."""
    flips = factors.parse_factors([f"{name}=1:0" for name in "abcdefgh"])
    words = [sys.executable, "-S", "-c", PROGRAM, *(f"{name}={{{name}}}" for name in "abcdefgh")]
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        start = program_trials.starter(words, flips)
        job = bisect_job.BisectJob(flips, [1.0] * 8, start, Path(folder, "runs"), bisect_job.Limits(timeout=60), "real")
        began = time.perf_counter()
        answer, _ = bisect_job.run_bisect(job, lambda row: None)
        seconds = time.perf_counter() - began
    named = " and ".join(flips[index].name for index in answer.items)
    right = answer.status == "found" and named == "a and f"
    text = f"A real program under watch, two of 8 together: {answer.status}, {named}, {job.used} runs, {seconds:.1f} s"
    return f"{text}. {table.judged(right)}."


if __name__ == "__main__":
    sys.exit(main())
