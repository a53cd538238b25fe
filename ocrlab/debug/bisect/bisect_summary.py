"""What a bisect has found, in one sentence, a table, and a record for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ocrlab.debug.bisect import factors, posterior, sample_summary
from ocrlab.debug.bisect.bisect_job import Hunt, Limits, Outcome
from ocrlab.debug.bisect.factors import Factor
from ocrlab.debug.bisect.sample_search import Guilt
from ocrlab.debug.bisect.sample_summary import Told
from ocrlab.records import SCHEMA

SHOWN = 5  # answers with their probability
KEPT = "as it was"
WIDE = 66  # characters that the columns of factors may take: with all others they still fit a terminal
SURE = 0.9  # rate above which nothing is said of it


def plan(flips: Sequence[Factor], limits: Limits, samples: int = 0, unit: str = "page") -> str:
    """Return what is going to happen: the factors, how many runs, and how long at most."""
    runs, timeout = limits.runs, limits.timeout
    lines = []
    if flips:
        single, pair = needed(len(flips))
        names = ", ".join(f"{one.name} ({shown(one)})" for one in flips)
        lines.append(f"{len(flips)} factor{'s' if len(flips) > 1 else ''}: {names}")
        two = f", {min(pair, runs)} where it takes two" if len(flips) > 1 else ""
        told = f"{min(single, runs)} runs where one of them always makes it fail"
        told += ", or fewer where a verdict suspects the right one" if len(flips) & len(flips) - 1 else ""  # not of 8
        lines.append(f"{told}{two}; several times as many where it fails now and then; at most {runs}")
        lines[-1] += f" ({limits.again} of them to make sure, where a run is short)" if limits.again else ""
    if samples:
        told = f"{samples} {unit}s, which are halved{' then' if flips else ''}: up to {halvings(samples)} runs for one"
        lines.append(f"{told}, more for several and where it fails now and then; at most {runs} in all")
    whole = min(runs * timeout, limits.seconds or math.inf)
    return "\n".join([*lines, f"a run takes at most {timeout:g} s; at most {_minutes(whole)} in all"])


def needed(count: int) -> tuple[int, int]:
    """Return how many runs one culprit of so many factors takes, and two, where it always fails."""
    steps = math.log2(max(1, count))
    return math.ceil(steps) + 2, max(math.ceil(steps) + 2, math.ceil(3 * (steps + 1)))


def halvings(count: int) -> int:
    """Return how many runs one guilty sample of so many takes at most: it is in either half, and the rest must pass."""
    return 2 * math.ceil(math.log2(max(1, count))) + 2


def shown(factor: Factor) -> str:
    """Return how a factor is flipped, in words: `8 -> 0`, `--amp -> without`, `fast -> not set`."""
    return f"{factor.bad or _empty(factor.good)} -> {factor.good or _empty(factor.bad)}"


def _empty(other: str) -> str:
    return "without" if other.startswith("-") else "not set"


def first(job: Hunt) -> str:
    """Return what the first run has told: how long one takes, how long all will, and what is suspected."""
    if not job.rows or job.rows[0]["known"]:
        return ""
    single, pair = needed(len(job.factors))
    each = job.rows[0]["seconds"]
    told = f"a run takes {each:.0f} s: about {_minutes(min(single, job.limits.runs) * each)} for one culprit"
    told += f", {_minutes(min(pair, job.limits.runs) * each)} for two" if len(job.factors) > 1 else ""
    return f"{told}{suspects(job)}" if each >= 1 and job.factors else ""


def suspects(job: Hunt) -> str:
    """Return which factors the verdict suspects, the most suspected first; empty where it suspects none."""
    pairs = sorted(zip(job.suspicion, job.factors, strict=False), key=lambda pair: -pair[0])
    named = [factor.name for much, factor in pairs if much > 1]
    return f"; suspected first: {', '.join(named)}" if named else ""


def line(number: int, row: dict[str, Any], unit: str = "page") -> str:
    """Return one run in words, as it ends."""
    kept = ", ".join(row["as it was"]) or "nothing"
    kept = "everything" if not row["flipped"] else kept
    pages = "" if row["pages"] is None else f", {len(row['pages'])} {unit}{'s' if len(row['pages']) > 1 else ''}"
    told = "" if row["ended"] == "passed" else f" ({row['told']})"
    known = ", known already" if row["known"] else f", {row['seconds']:.1f} s"
    return f"run {number}: {row['ended']}{told} with {kept} as it was{pages}{known}"


def sentence(job: Hunt, outcome: Outcome, told: Told | None = None) -> str:
    """Return what was found: culprit, evidence, what to set until it is mended, how sure; `told` is of the samples."""
    if told is not None and outcome.status == "none":
        return _of_samples(job, outcome, told)
    found = _of_factors(job, outcome, told)
    if told is None or factors.DATA in [job.factors[index].name for index in outcome.found.factors]:
        return found
    return f"{found} With everything as it was, of the {job.unit}s it is {told.who}{_because(told)}."


def _of_samples(job: Hunt, outcome: Outcome, told: Told) -> str:
    """Return the answer where no factor changes anything, or there is none: the samples alone decide."""
    others = f", {_whatever(job)}" if job.factors else ""
    what = job.told or "the failure"
    if not told.cure:
        return f"{what}: {told.who}{_because(told)}{others}; {len(job.rows)} runs."
    return f"{what} comes from {told.who}{_because(told)}{others}. Until it is mended: {told.cure}."


def _whatever(job: Hunt) -> str:
    count = len(job.factors)
    return f"whatever of the {count} factors is flipped" if count > 1 else f"also with {job.factors[0].name} flipped"


def _because(told: Told) -> str:
    return f": {told.how}" if told.how else ""


def _of_factors(job: Hunt, outcome: Outcome, data: Told | None) -> str:
    best, tried = outcome.found, len(outcome.search.runs)
    what = job.told or "the failure"
    if outcome.status == "otherwise":
        last = job.rows[-1]["told"] if job.rows else "nothing was run"
        if job.rows and job.rows[-1]["flipped"]:
            return f"Stopped after {tried} {_runs(tried)}: all others fail in another way; other_failures says how."
        if job.rows and job.rows[-1]["ended"] == "not done":
            return f"Stopped: with everything as it was the run was {last}; --timeout gives it longer."
        return f"Stopped: with everything as it was the run was neither well nor failed in the way looked for ({last})."
    if outcome.status == "never":
        rarest = 1 - 0.05 ** (1 / max(1, tried))
        told = f"It did not fail in {tried} {_runs(tried)} with everything as it was"
        return f"{told}: it is gone, or happens in fewer than {100 * rarest:.0f} of 100 runs."
    if outcome.status == "none":
        told = f"None of these: {what} happens {_whatever(job)}"
        return f"{told}; probability {best.posterior:.2f}, {tried} runs."
    if outcome.status == "misfit":
        told = f"No one, two or three of the factors explain which runs failed with {what}"
        return f"{told}: more is involved, or something that was not flipped; {tried} runs."
    if outcome.status == "undecided" and not job.rows:
        return f"Nothing is known yet: no run was made. {_more(job)}"
    if outcome.status == "undecided":
        told = f"Not enough runs: after {tried} the best answer is {_guess(job, best)}, which is no answer yet"
        return f"{told}. {_more(job)}"
    cure, names = _cure(job, best, data), [job.factors[index] for index in best.factors]
    told = f"{_what(what, names, best, data)}: {_evidence(job, outcome)}; probability {best.posterior:.2f}"
    often = f", it fails in about {100 * best.rate:.0f} of 100 runs" if best.rate < SURE else ""
    sure = " It is taken to fail always; if it does not, --rate 0.5 makes more runs."
    if job.proofs or outcome.search.flaky:  # of a flaky one the rate is told
        stood = f" That stood after {job.stood} {_runs(job.stood)}; {_more_runs(job)} more to be sure ended as it says."
        sure = "" if outcome.search.flaky else stood
    return f"{told}{often}. Until it is mended: {cure}.{sure}"


def table(job: Hunt) -> list[list[str]]:
    """Return one row a run, under a header: which factors were flipped, how it ended, in how many seconds.

    Many factors have letters for names, which `legend` tells.
    """
    halved = any(row["pages"] is not None for row in job.rows)
    kept = "x" if legend(job) else KEPT
    rows = [["run", *_heads(job), *([f"{job.unit}s"] * halved), "ended", "s", "failure"]]
    for number, row in enumerate(job.rows, 1):
        marks = [kept if row["run"] >> index & 1 else "-" for index in range(len(job.factors))]
        pages = "all" if row["pages"] is None else str(len(row["pages"]))
        told = "" if row["ended"] == "passed" else row["told"][:60]
        rows.append([str(number), *marks, *([pages] * halved), row["ended"], f"{row['seconds']:.1f}", told])
    return rows


def legend(job: Hunt) -> str:
    """Return what the letters and signs of the table stand for; empty where it names the factors themselves."""
    if sum(max(len(one.name), len(KEPT)) + 2 for one in job.factors) <= WIDE:
        return ""
    named = ", ".join(f"{_letter(index)} {one.name}" for index, one in enumerate(job.factors))
    return f"{named}; x is {KEPT}, - is flipped"


def _heads(job: Hunt) -> list[str]:
    letters = bool(legend(job))
    return [_letter(index) if letters else one.name for index, one in enumerate(job.factors)]


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"A{index - 25}"


def record(job: Hunt, outcome: Outcome, guilt: Guilt | None = None, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return everything that was found, ready for JSON; `guilt` is that of the samples, `names` are all of theirs."""
    best = outcome.found
    told = sample_summary.words(guilt, names, job.unit) if guilt else None
    groups = [[names[index] for index in group] for group in guilt.groups] if guilt else []
    others = sorted({row["told"] for row in job.rows if row["ended"] in ("otherwise", "not done")})
    best_answers = posterior.ranked(outcome.search, SHOWN)
    made = [_row(row, names) for row in job.rows]
    suspicion = zip(job.factors, job.suspicion, strict=True)
    return {
        "schema": SCHEMA,
        "status": outcome.status,
        "sentence": sentence(job, outcome, told),
        "failure": {"fingerprint": job.wanted, "told": job.told},
        "kind": best.kind,
        "culprits": [job.factors[index].name for index in best.factors] if outcome.status == "found" else [],
        "pages": groups,
        "samples": {"told": told.who, "how": told.how, "ending": guilt.ending} if told and guilt else None,
        "posterior": round(best.posterior, 4),
        "error": job.limits.error,
        "rate": round(best.rate, 2),
        "until_mended": _cure(job, best, told) if outcome.status == "found" else (told.cure or None) if told else None,
        "answers": [{"answer": _words(job, one), "posterior": round(one.posterior, 4)} for one in best_answers],
        "runs": {
            "used": max(0, job.used - _more_runs(job)),  # up to the answer
            "to_make_sure": _more_runs(job),
            "known_before": len(job.rows) - job.used,
            "at_most": job.limits.runs,
        },
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
    return {**{name: value for name, value in row.items() if name not in ("run", "causes")}, "pages": named}


def _what(what: str, names: Sequence[Factor], best: posterior.Found, data: Told | None) -> str:
    """Return what makes it fail: one factor, several together, or any of several; pages by their names."""
    told = [f"{one.name} ({one.bad or _empty(one.good)})" for one in names]
    if data is not None:
        told = [(data.who if data.cure else f"{text}, {data.who}") + (f" ({data.how})" if data.how else "")
                if one.name == factors.DATA else text for one, text in zip(names, told, strict=True)]  # fmt: skip
    if len(told) == 1:
        return f"{what} comes from {told[0]}"
    if best.kind == "all":
        return f"{what} needs {' and '.join(told)} together"
    return f"{what} comes from {' as well as from '.join(told)}, each alone"


def _evidence(job: Hunt, outcome: Outcome) -> str:
    """Return how often it failed where the answer expects it, and passed where it does not."""
    best, known = outcome.found, outcome.search
    mask = sum(1 << index for index in best.factors)
    answer = posterior.Answer(mask, best.kind == "all")
    on = [failed for run, failed in known.runs if answer.expects(run)]
    off = [failed for run, failed in known.runs if not answer.expects(run)]
    flips = [mask] if best.kind == "any" else [1 << index for index in best.factors]
    alone = any((known.whole ^ flip, False) in known.runs for flip in flips)
    told = f"it failed in {sum(on)} of {len(on)} {_runs(len(on))} with, in {sum(off)} of {len(off)} without"
    told += ", and passed with nothing else flipped" if alone else ""
    return told + (_detours(job, best, known) if best.kind == "all" and known.barred and not known.flaky else "")


def _detours(job: Hunt, best: posterior.Found, known: posterior.Search) -> str:
    """Return what was flipped, or left, beside the answer in the runs that prove it, where others ended otherwise."""
    mask, told = sum(1 << index for index in best.factors), ""
    for index in best.factors:
        one = 1 << index
        pairs = [run for run in known.ends(False) if run & mask == mask ^ one and (run | one, True) in known.runs]
        if known.whole ^ one in known.barred and pairs:
            name, more = job.factors[index].name, _names(job, known.whole ^ max(pairs, key=int.bit_count) ^ one)
            told += f"; {name} flipped alone ends otherwise, but with {more} flipped too it fails with {name} as it was"
            told += " and passes without"
    extra = posterior.beside(known, mask)
    if extra:
        told += f"; whether it needs {_names(job, extra)} as well is not known, as it ends otherwise without"
    return told


def _names(job: Hunt, mask: int) -> str:
    return " and ".join(factor.name for index, factor in enumerate(job.factors) if mask >> index & 1)


def _cure(job: Hunt, best: posterior.Found, data: Told | None) -> str:
    """Return what to set until it is mended; of several that are needed together one is enough."""
    named = []
    for one in (job.factors[index] for index in best.factors):
        if one.name == factors.DATA and data is not None and data.cure:
            named.append(data.cure)
        elif "synthetic" in one.job:
            named.append(f"other pages (ocrlab samples check {one.bad} looks at these)")
        elif not one.good:
            named.append(f"{one.name} not set" if _empty(one.bad) == "not set" else f"without {one.bad}")
        else:
            named.append(one.good if "=" in one.good else f"{one.name}={one.good}")
    return (" or " if best.kind == "all" else " and ").join(named)


def _guess(job: Hunt, best: posterior.Found) -> str:
    return f"`{_words(job, best)}` with probability {best.posterior:.2f}"


def _words(job: Hunt, best: posterior.Found) -> str:
    names = [job.factors[index].name for index in best.factors]
    plain = {"always": "none of these", "never": "it does not fail", "other": "something more involved"}
    return plain.get(best.kind) or (" and " if best.kind == "all" else " or ").join(names)


def _more(job: Hunt) -> str:
    if job.used < job.limits.runs:
        return "The time is up; the same command goes on from here."
    return f"The same command with --runs {2 * job.limits.runs} goes on from here."


def _more_runs(job: Hunt) -> int:
    """Return how many runs were made since the answer stood first; those that halve samples ask something else."""
    return sum(row["pages"] is None for row in job.rows[job.stood :]) if job.stood else 0


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
