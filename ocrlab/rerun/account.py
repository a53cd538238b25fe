"""What a bisect has found, in one sentence, a table, and a record for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ocrlab.records import SCHEMA
from ocrlab.rerun import search
from ocrlab.rerun.bisect import Hunt, Outcome
from ocrlab.rerun.factors import Factor

SHOWN = 5  # answers with their probability


def plan(factors: Sequence[Factor], runs: int, seconds: float | None, timeout: float) -> str:
    """Return what is going to happen: the factors, how many runs, and about how long; `seconds` is a known run's."""
    single = math.ceil(math.log2(max(1, len(factors)))) + 2
    lines = [f"{len(factors)} factors: {', '.join(f'{one.name} ({one.bad} -> {one.good})' for one in factors)}"]
    told = f"{min(single, runs)} runs where one of them always makes it fail, more for pairs and where it fails now and"
    lines.append(f"{told} then; at most {runs}")
    each = f"a run about {seconds:.0f} s (that is how long it took to fail), " if seconds else ""
    longest = f"at most {timeout:g} s each" if each else f"a run takes at most {timeout:g} s"
    total = f"; about {_minutes(min(single, runs) * seconds)} in all" if seconds else ""
    return "\n".join([*lines, f"{each}{longest}{total}; at most {_minutes(runs * timeout)}"])


def line(number: int, row: dict[str, Any]) -> str:
    """Return one run in words, as it ends."""
    kept = ", ".join(row["as it was"]) or "nothing"
    kept = "everything" if not row["flipped"] else kept
    pages = "" if row["pages"] is None else f", {len(row['pages'])} pages"
    told = "" if row["ended"] == "passed" else f" ({row['told']})"
    known = ", known already" if row["known"] else f", {row['seconds']:.1f} s"
    return f"run {number}: {row['ended']}{told} with {kept} as it was{pages}{known}"


def sentence(job: Hunt, outcome: Outcome, pages: Sequence[Sequence[str]] = ()) -> str:
    """Return what was found in one sentence: culprit, evidence, what to set until it is mended, how sure."""
    best, tried = outcome.found, len(outcome.search.runs)
    what = job.told or "the failure"
    if outcome.status == "otherwise":
        last = job.rows[-1]["told"] if job.rows else "nothing was run"
        if job.rows and job.rows[-1]["flipped"]:
            return f"Stopped after {tried} {_runs(tried)}: all others fail in another way; other_failures says how."
        return f"Stopped: with everything as it was the run was neither well nor failed in the way looked for ({last})."
    if outcome.status == "never":
        rarest = 1 - 0.05 ** (1 / max(1, tried))
        told = f"It did not fail in {tried} {_runs(tried)} with everything as it was"
        return f"{told}: it is gone, or happens in fewer than {100 * rarest:.0f} of 100 runs."
    if outcome.status == "none":
        told = f"None of these: {what} happens whatever of the {len(job.factors)} factors is flipped"
        return f"{told}; probability {best.posterior:.2f}, {tried} runs."
    if outcome.status == "misfit":
        told = f"No one, two or three of the factors explain which runs failed with {what}"
        return f"{told}: more is involved, or something that was not flipped; {tried} runs."
    if outcome.status == "undecided":
        told = f"Not enough runs: after {tried} the best answer is {_guess(job, best)}, which is no answer yet"
        return f"{told}. {_more(job)}"
    cure, names = _cure(job, best), [job.factors[index] for index in best.factors]
    told = f"{_what(what, names, best, pages)}: {_evidence(job, outcome)}; probability {best.posterior:.2f}"
    often = f", it fails in about {100 * best.rate:.0f} of 100 runs" if best.rate < 0.9 else ""
    sure = "" if outcome.search.flaky else " It is taken to fail always; if it does not, --rate 0.5 makes more runs."
    return f"{told}{often}. Until it is mended: {cure}.{sure}"


def table(job: Hunt) -> list[list[str]]:
    """Return one row a run, under a header: which factors were flipped, how it ended, in how many seconds."""
    rows = [["run", *(factor.name for factor in job.factors), "pages", "ended", "s", "failure"]]
    for number, row in enumerate(job.rows, 1):
        marks = ["as it was" if row["run"] >> index & 1 else "-" for index in range(len(job.factors))]
        pages = "all" if row["pages"] is None else str(len(row["pages"]))
        told = "" if row["ended"] == "passed" else row["told"][:60]
        rows.append([str(number), *marks, pages, row["ended"], f"{row['seconds']:.1f}", told])
    return rows


def record(job: Hunt, outcome: Outcome, pages: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, Any]:
    """Return everything that was found, ready for JSON; `names` are those of all pages."""
    best = outcome.found
    others = sorted({row["told"] for row in job.rows if row["ended"] in ("otherwise", "not done")})
    best_answers = search.ranked(outcome.search, SHOWN)
    made = [_row(row, names) for row in job.rows]
    suspicion = zip(job.factors, job.suspicion, strict=True)
    return {
        "schema": SCHEMA,
        "status": outcome.status,
        "sentence": sentence(job, outcome, pages),
        "failure": {"fingerprint": job.wanted, "told": job.told},
        "kind": best.kind,
        "culprits": [job.factors[index].name for index in best.factors] if outcome.status == "found" else [],
        "pages": [list(group) for group in pages],
        "posterior": round(best.posterior, 4),
        "error": job.limits.error,
        "rate": round(best.rate, 2),
        "until_mended": _cure(job, best) if outcome.status == "found" else None,
        "answers": [{"answer": _words(job, one), "posterior": round(one.posterior, 4)} for one in best_answers],
        "runs": {"used": job.used, "known_before": len(job.rows) - job.used, "at_most": job.limits.runs},
        "seconds": round(sum(row["seconds"] for row in job.rows), 1),
        "factors": [
            {"name": one.name, "bad": one.bad, "good": one.good, "suspicion": round(much, 2)} for one, much in suspicion
        ],
        "table": made,
        "other_failures": others,
        "notes": job.notes,
    }


def _row(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    pages = row["pages"]
    named = None if pages is None else [names[index] if index < len(names) else str(index) for index in pages]
    return {**{name: value for name, value in row.items() if name != "run"}, "pages": named}


def _what(what: str, names: Sequence[Factor], best: search.Found, pages: Sequence[Sequence[str]]) -> str:
    """Return what makes it fail: one factor, several together, or any of several; pages by their names."""
    told = [f"{one.name} ({one.bad})" for one in names]
    if pages:
        groups = [" with ".join(group[:8]) for group in pages]
        told = [f"the page {', and the page '.join(groups)}" if one.name == "data" else text
                for one, text in zip(names, told, strict=True)]  # fmt: skip
    if len(told) == 1:
        return f"{what} comes from {told[0]}"
    if best.kind == "all":
        return f"{what} needs {' and '.join(told)} together"
    return f"{what} comes from {' as well as from '.join(told)}, each alone"


def _evidence(job: Hunt, outcome: Outcome) -> str:
    """Return how often it failed where the answer expects it, and passed where it does not."""
    best, known = outcome.found, outcome.search
    mask = sum(1 << index for index in best.factors)
    answer = search.Answer(mask, best.kind == "all")
    on = [failed for run, failed in known.runs if answer.expects(run)]
    off = [failed for run, failed in known.runs if not answer.expects(run)]
    flips = [mask] if best.kind == "any" else [1 << index for index in best.factors]
    alone = any((known.whole ^ flip, False) in known.runs for flip in flips)
    told = f"it failed in {sum(on)} of {len(on)} {_runs(len(on))} with, in {sum(off)} of {len(off)} without"
    return told + (", and passed with nothing else flipped" if alone else "")


def _cure(job: Hunt, best: search.Found) -> str:
    """Return what to set until it is mended; of several that are needed together one is enough."""
    told = [job.factors[index].good for index in best.factors]
    named = [f"{job.factors[index].name}={good}" if "=" not in good else good
             for index, good in zip(best.factors, told, strict=True)]  # fmt: skip
    return (" or " if best.kind == "all" else " and ").join(named)


def _guess(job: Hunt, best: search.Found) -> str:
    return f"`{_words(job, best)}` with probability {best.posterior:.2f}"


def _words(job: Hunt, best: search.Found) -> str:
    names = [job.factors[index].name for index in best.factors]
    plain = {"always": "none of these", "never": "it does not fail", "other": "something more involved"}
    return plain.get(best.kind) or (" and " if best.kind == "all" else " or ").join(names)


def _more(job: Hunt) -> str:
    if job.used < job.limits.runs:
        return "The time is up; the same command goes on from here."
    return f"The same command with --runs {2 * job.limits.runs} goes on from here."


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
