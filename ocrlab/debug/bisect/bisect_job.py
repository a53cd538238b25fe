"""Narrow a failure down to the settings that make it: run after run, each in a watched child, until one answer stands.

Each run leaves some factors as they were and flips the rest; search.py says which. Only the same failure counts: a run
that fails otherwise tells nothing, and is reported apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ocrlab.debug.bisect import factors, next_run, posterior
from ocrlab.debug.bisect.factors import Factor
from ocrlab.debug.bisect.posterior import Found, Search
from ocrlab.debug.trials import trial
from ocrlab.debug.trials.trial import Start
from ocrlab.errors import RunError
from ocrlab.records import Cause, Verdict

SHORT = 20.0  # seconds of a run that is made again for certainty's sake
LEDGER = "runs.jsonl"  # what was run already, so that it is not run again


@dataclass(frozen=True)
class Limits:
    """At most so many runs, of so many seconds each and in all; `error` is how often the answer may be wrong.

    An answer that seems to hold always is put to the proof `again` times more, where runs are short.
    """

    runs: int = 60
    error: float = 0.05
    timeout: float = 300.0
    seconds: float | None = None
    rate: float | None = None  # how often the failure happens, where that is known
    again: int = 0


@dataclass
class Hunt:
    """What is bisected: factors, how a run of some of them is started, where it is kept, and the failure looked for.

    `start(run, pages, place)` returns the command of a run whose bits are the factors left as they were, of some pages
    or all (None); `key` changes with all that a run depends on.
    """

    factors: Sequence[Factor]
    suspicion: Sequence[float]
    start: Start
    folder: Path
    limits: Limits
    key: str
    wanted: str | None = None  # fingerprint; None takes the first failure as it was
    told: str = ""  # the wanted failure in words
    rows: list[dict[str, Any]] = field(default_factory=list)  # one a run, in order
    used: int = 0  # runs made now; the others were known
    began: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)
    before: Sequence[Path] = ()  # folders of earlier, unfinished bisects, whose runs count where they have the same key
    unit: str = "page"  # what a sample is called
    names: Sequence[str] = ()  # of the samples, where they are known before the first run
    proofs: int = 0  # runs made again since an answer seemed to hold always
    stood: int = 0  # runs after which that answer stood first, 0 for none or one that fell
    guided: bool = False  # a verdict has said what is suspected; else that of the first run that fails does


@dataclass(frozen=True)
class Outcome:
    """How a hunt ended: `status` found, none, never, misfit, undecided, otherwise or interrupted; the answer so far."""

    status: str
    found: Found
    search: Search


class Spent(Exception):
    """The runs or the time that were allowed are used up."""


def hunt(job: Hunt, say: Callable[[dict[str, Any]], None]) -> Outcome:
    """Run until one answer is sure enough or what is allowed is spent; `say` is told each run as it ends."""
    known = posterior.begin(job.suspicion, job.limits.rate)
    old = ledger(job)
    while True:
        best = posterior.found(known)
        settled = posterior.settled(known, job.limits.error)
        job.stood = 0 if known.flaky else job.stood or (len(job.rows) if settled else 0)
        proof = _proof(job, known, best) if settled else None
        if settled and proof is None:
            return Outcome(STATUS.get(best.kind, "found"), best, known)
        run = next_run.choose(known, job.limits.error) if proof is None else proof
        if run in known.barred:
            return Outcome("otherwise", best, known)
        try:
            row = made(job, run, old)
        except Spent:
            return Outcome(STATUS.get(best.kind, "found") if settled else "undecided", best, known)
        job.proofs += proof is not None
        say(row)
        if row["ended"] in ("failed", "passed"):
            posterior.learn(known, run, row["ended"] == "failed")
            known = _guided(job, known, row)
        else:
            posterior.bar(known, run)
            if run == known.whole:
                return Outcome("otherwise", best, known)


def _proof(job: Hunt, known: Search, best: Found) -> int | None:
    """Return a run to make again before an answer is given that seems to hold always, None where it is proved enough.

    In turn it is the one nearest to how it was that passed, and the one furthest from it that failed: of a failure that
    comes now and then, whatever is set, both went that way by chance.
    """
    taken = sorted(row["seconds"] for row in job.rows)
    if job.proofs >= job.limits.again or known.flaky or best.kind not in ("all", "any") or job.used >= job.limits.runs:
        return None
    if not taken or taken[len(taken) // 2] > SHORT:
        return None
    if any(job.factors[place].name == factors.DATA for place in best.factors):
        return None  # halving its pages proves more
    passed, failed = known.ends(False), known.ends(True)
    return max(passed, key=int.bit_count) if job.proofs % 2 == 0 else min(failed, key=int.bit_count)


def _guided(job: Hunt, known: Search, row: dict[str, Any]) -> Search:
    """Return the search as the verdict of the first failure orders it, where no verdict has done that before."""
    if job.guided or row["ended"] != "failed":
        return known
    job.guided = True
    causes = [Cause(str(name), float(sure)) for name, sure in row.get("causes") or ()]
    job.suspicion = factors.suspicion(job.factors, Verdict(causes=causes))
    again = posterior.begin(job.suspicion, job.limits.rate)
    for run, failed in known.runs:
        posterior.learn(again, run, failed)
    for run in known.barred:
        posterior.bar(again, run)
    return again


STATUS = {"always": "none", "never": "never", "other": "misfit"}


def made(job: Hunt, run: int, old: list[dict[str, Any]], pages: list[int] | None = None) -> dict[str, Any]:
    """Make one run, of some pages only where they are given, or take it from those known; raises Spent, OSError."""
    mark = {"run": run, "pages": pages}
    again = next((row for row in old if all(row.get(name) == value for name, value in mark.items())), None)
    if again is not None:
        old.remove(again)
        row = {**again, "known": True}
        _judge(job, row, run)
        job.rows.append(row)
        return row
    limit = _allowed(job)
    stamp = f"{int(time.time())}-{len(job.rows) + 1:03}"
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 10_000)))  # another bisect of the same second
    place = next(job.folder / name for name in names if not (job.folder / name).exists())
    done = trial.run_trial(partial(job.start, run, pages), place, limit)
    if limit < job.limits.timeout and done.fingerprint in (trial.SLOW, trial.HANG):
        raise Spent("time")  # it was not given the time that the others had
    job.used += 1
    row = {
        **mark,
        "what": done.fingerprint,
        "told": done.description,
        "seconds": round(done.seconds, 2),
        "place": place.name,
    }
    row["causes"] = [list(cause) for cause in done.causes]
    with (job.folder / LEDGER).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": job.key, **row}, ensure_ascii=False) + "\n")
    row["known"] = False
    _judge(job, row, run)
    job.rows.append(row)
    return row


def _judge(job: Hunt, row: dict[str, Any], run: int) -> None:
    """Say of a run whether it failed in the way that is looked for; the first failure as it was may be that."""
    what, whole = row["what"], run == (1 << len(job.factors)) - 1
    if what and what != trial.SLOW and whole and (job.wanted is None or not trial.is_same_failure(what, job.wanted)):
        first = not any(other["ended"] == "failed" for other in job.rows)
        if first and job.wanted is not None:
            job.notes.append(f"as it was it failed in another way than recorded ({job.told}); that one is looked for")
        if first:
            job.wanted, job.told = what, row["told"]
    if not what:
        row["ended"] = "passed"
    elif what == trial.SLOW:
        row["ended"] = "not done"
    else:
        row["ended"] = "failed" if job.wanted is not None and trial.is_same_failure(what, job.wanted) else "otherwise"
    names = [factor.name for factor in job.factors]
    row["as it was"] = [name for place, name in enumerate(names) if run >> place & 1]
    row["flipped"] = [name for place, name in enumerate(names) if not run >> place & 1]


def _allowed(job: Hunt) -> float:
    """Return how many seconds the next run may take; raises Spent where there is none left."""
    if job.used >= job.limits.runs:
        raise Spent("runs")
    if job.limits.seconds is None:
        return job.limits.timeout
    left = job.limits.seconds - (time.monotonic() - job.began)
    if left < 1:
        raise Spent("time")
    return min(job.limits.timeout, left)


def ledger(job: Hunt) -> list[dict[str, Any]]:
    """Return the runs that earlier, unfinished bisects of the same have made; raises RunError."""
    try:
        job.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = _rows(job.folder / LEDGER, job.key)
    except OSError as error:
        raise RunError(f"{job.folder} cannot be used", got=str(error), need="a folder that can be written") from error
    for folder in job.before:
        with contextlib.suppress(OSError):
            found += _rows(folder / LEDGER, job.key)
    return found


def _rows(file: Path, wanted: str) -> list[dict[str, Any]]:
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # torn by what interrupted it
            continue
        if isinstance(row, dict) and row.pop("key", None) == wanted and isinstance(row.get("run"), int):
            found.append(row)
    return found


def stamps(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return what tells whether files have changed, those in folders too: name, size and time of each that there is."""
    found = []
    for path in paths:
        walked = (Path(top, name) for top, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
        for one in walked:
            with contextlib.suppress(OSError, ValueError):
                stat = one.stat()
                found.append((str(one), stat.st_size, stat.st_mtime_ns))
    return sorted(found)


def key(*parts: object) -> str:
    """Return what tells one bisect's runs from those of another: a digest of all that they depend on."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
