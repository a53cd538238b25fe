"""Narrow a failure down to the settings that cause it, run after run in a watched child, until one answer stands.

Each run leaves some factors as they were and flips the rest; `search` chooses which. Only the same failure counts: a
run that fails in another way is not evidence and is reported separately.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.debug.bisect import factors
from ocrlab.debug.bisect.factors import Factor
from ocrlab.debug.bisect.search import Answer, FlakyFailure, Search
from ocrlab.debug.trials import trial
from ocrlab.debug.trials.trial import Start
from ocrlab.errors import RunError
from ocrlab.records import Cause, Verdict

SHORT = 20.0  # seconds of a run that is repeated to make sure
LEDGER = "runs.jsonl"  # the runs so far; a bisect that goes on does not repeat them
FAILED = {"failed": True, "passed": False, "otherwise": None, "not done": None}  # what each end of a run says


@dataclass(frozen=True)
class Limits:
    """The most runs, and seconds of a run and of all; `error` is the accepted probability of a wrong answer.

    Where runs are short, an answer that seems to hold always is confirmed by `again` more runs.
    """

    runs: int = 60
    error: float = 0.05
    timeout: float = 300.0
    seconds: float | None = None
    rate: float | None = None  # how often the failure happens, where the user knows
    again: int = 0


@dataclass
class BisectJob:
    """What is bisected: the factors, how a run is started, its folder, and the wanted failure.

    `start(run, pages, place)` returns the command of a run. The bits of `run` are the factors left as they were;
    `pages` are the samples that it uses, None for all. `digest` changes with everything that a run depends on.
    """

    factors: Sequence[Factor]
    suspicion: Sequence[float]
    start: Start
    folder: Path
    limits: Limits
    digest: str
    wanted: str | None = None  # fingerprint; None takes the first failure as it was
    failure: str = ""  # the wanted failure in words
    rows: list[dict[str, Any]] = field(default_factory=list)  # one a run, in order
    used: int = 0  # runs of this bisect; the others are of earlier ones
    began: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)
    earlier_folders: Sequence[Path] = ()  # of unfinished bisects, whose runs count if they have the same digest
    unit: str = "page"  # what a sample is called
    names: Sequence[str] = ()  # of the samples, if known before the first run
    proofs: int = 0  # runs repeated since an answer seemed to hold always
    settled_after: int = 0  # runs after which that answer stood, 0 for none
    is_ordered: bool = False  # by a verdict; else the verdict of the first failing run does it


class LimitReached(Exception):
    """The runs or the time are used up."""


def run_bisect(job: BisectJob, report: Callable[[dict[str, Any]], None]) -> tuple[Answer, Search]:
    """Run until one answer is certain enough or the limits are reached; `report` gets each row as its run ends."""
    old = read_ledger(job)

    def perform(run: int) -> bool | None:
        row = perform_run(job, run, old)
        report(row)
        if row["ended"] == "failed" and not job.is_ordered:  # by the verdict of the first failing run
            job.is_ordered = True
            causes = [Cause(str(name), float(sure)) for name, sure in row.get("causes") or ()]
            search.suspicion = job.suspicion = factors.suspicion_weights(job.factors, Verdict(causes=causes))
        return FAILED[row["ended"]]

    search = Search(len(job.factors), perform, job.limits.error, job.limits.rate, job.suspicion)
    answer = Answer("undecided")
    with contextlib.suppress(LimitReached):
        answer = search.find_factors()
        for _ in range(job.limits.again if _is_worth_a_proof(job, search, answer) else 0):
            job.settled_after = job.settled_after or len(job.rows)
            passed, failed = search.ended(False), search.ended(True)
            run = max(passed, key=int.bit_count) if job.proofs % 2 == 0 else min(failed, key=int.bit_count)
            try:
                search.run(run)
                job.proofs += 1
            except FlakyFailure:
                job.proofs, job.settled_after, answer = 0, 0, Answer("undecided")
                search.error = search.passing_error = search.error / 4  # it had deceived the search
                answer = search.find_factors()
                break
    return answer, search


def _is_worth_a_proof(job: BisectJob, search: Search, answer: Answer) -> bool:
    """Return whether an answer to a failure that seems to happen always is put to the proof by more runs.

    They repeat the passing run with the fewest flips and the failing run with the most: if the failure is flaky and
    depends on no factor, these two ended so by chance. Long runs are repeated only for several factors: that each of
    them is needed rests on few runs, and a flaky failure of a single factor may look the same.
    """
    taken = sorted(row["seconds"] for row in job.rows)
    if answer.status != "found" or search.is_flaky or (taken[len(taken) // 2] > SHORT and len(answer.items) == 1):
        return False
    return not any(job.factors[place].name == factors.DATA for place in answer.items)  # halving samples proves more


def perform_run(job: BisectJob, run: int, old: list[dict[str, Any]], pages: list[int] | None = None) -> dict[str, Any]:
    """Run the program once, with some samples or all, or reuse an earlier row; raises LimitReached, OSError."""
    mark = {"run": run, "pages": pages}
    row = next((row for row in old if all(row.get(name) == value for name, value in mark.items())), None)
    if row is not None:
        old.remove(row)
        row = {**row, "known": True}
    else:
        row = {**mark, **_run(job, run, pages)}
        with (job.folder / LEDGER).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": job.digest, **row}, ensure_ascii=False) + "\n")
        row["known"] = False
    row["ended"] = _end(job, row, is_whole=run == (1 << len(job.factors)) - 1)
    names = [factor.name for factor in job.factors]
    row["as it was"] = [name for place, name in enumerate(names) if run >> place & 1]
    row["flipped"] = [name for place, name in enumerate(names) if not run >> place & 1]
    job.rows.append(row)
    return row


def _run(job: BisectJob, run: int, pages: list[int] | None) -> dict[str, Any]:
    """Run the program once in a folder of its own, in the time that is left; raises LimitReached."""
    left = math.inf if job.limits.seconds is None else job.limits.seconds - (time.monotonic() - job.began)
    if job.used >= job.limits.runs or left < 1:
        raise LimitReached("runs" if job.used >= job.limits.runs else "time")
    limit = min(job.limits.timeout, left)
    stamp = f"{int(time.time())}-{len(job.rows) + 1:03}"
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 10_000)))  # another bisect of the same second
    place = next(job.folder / name for name in names if not (job.folder / name).exists())
    done = trial.run_trial(partial(job.start, run, pages), place, limit)
    if limit < job.limits.timeout and done.fingerprint in (trial.SLOW, trial.HANG):
        raise LimitReached("time")  # it was not given the time that the others had
    job.used += 1
    return {
        "what": done.fingerprint,
        "told": done.description,
        "seconds": round(done.seconds, 2),
        "place": place.name,
        "causes": [list(cause) for cause in done.causes],
    }


def _end(job: BisectJob, row: dict[str, Any], *, is_whole: bool) -> str:
    """Return how a run ended: did it fail in the wanted way? The first failing run with nothing flipped may set it."""
    what = row["what"]
    if not what or what == trial.SLOW:
        return "not done" if what else "passed"
    is_wanted = job.wanted is not None and trial.is_same_failure(what, job.wanted)
    if is_whole and not is_wanted and not any(other["ended"] == "failed" for other in job.rows):
        if job.wanted is not None:
            text = f"as it was it failed in another way than recorded ({job.failure}); that one is looked for"
            job.notes.append(text)
        job.wanted, job.failure, is_wanted = what, row["told"], True
    return "failed" if is_wanted else "otherwise"


def read_ledger(job: BisectJob) -> list[dict[str, Any]]:
    """Return the rows of earlier, unfinished bisects with the same digest; raises RunError."""
    texts = []
    try:
        job.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        texts += [safe_read.read_text(job.folder / LEDGER)] if (job.folder / LEDGER).exists() else []
    except OSError as error:
        raise RunError(f"{job.folder} cannot be used", got=str(error), need="a folder that can be written") from error
    for folder in job.earlier_folders:
        with contextlib.suppress(OSError):
            texts.append(safe_read.read_text(folder / LEDGER))
    rows = []
    for line in (line for text in texts for line in text.splitlines()):
        with contextlib.suppress(ValueError):  # torn by what interrupted it
            row = json.loads(line)
            is_row = isinstance(row, dict) and isinstance(row.get("run"), int)
            rows += [row] if is_row and row.pop("key", None) == job.digest else []
    return rows


def file_stamps(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return name, size and time of each file, also of those in folders, so that a change can be noticed."""
    entries = []
    for path in paths:
        walked = (Path(top, name) for top, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
        for file in walked:
            with contextlib.suppress(OSError, ValueError):
                stat = file.stat()
                entries.append((str(file), stat.st_size, stat.st_mtime_ns))
    return sorted(entries)


def digest(*parts: object) -> str:
    """Return a digest of everything that the runs of a bisect depend on."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
