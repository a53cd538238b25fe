"""The result of a bisect in one sentence, a table, and a record for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ocrlab.debug.bisect import factors
from ocrlab.debug.bisect.bisect_job import BisectJob, Limits
from ocrlab.debug.bisect.factors import Factor
from ocrlab.debug.bisect.sample_search import SampleCulprits
from ocrlab.debug.bisect.search import Answer, Search, union
from ocrlab.records import SCHEMA

NAMED = 6  # samples that a sentence names
FEW = 2  # samples that are examples
AS_IT_WAS = "unchanged"
WIDE = 66  # characters that the columns of factors may take: with all others they still fit a terminal
SURE = 0.9  # rate above which the sentence does not mention it


def plan(flips: Sequence[Factor], limits: Limits, samples: int = 0, unit: str = "page") -> str:
    """Describe the bisect before it begins: the factors, how many runs, and how long at most."""
    runs, timeout, count = limits.runs, limits.timeout, len(flips)
    steps = math.log2(max(1, count))
    single, pair = (min(math.ceil(number), runs) for number in (steps + 2, max(steps + 2, 3 * (steps + 1))))
    lines = []
    if flips:
        names = ", ".join(f"{factor.name} ({flip_text(factor)})" for factor in flips)
        fewer = " (fewer if the verdict suspects it)" if count & count - 1 else ""  # not of 8
        two = f", {pair} for a pair" if count > 1 else ""
        again = f"; {limits.again} of them confirm the answer if a run is short" if limits.again else ""
        lines.append(f"{count} factor{'s' if count > 1 else ''}: {names}")
        text = f"needs {single} runs for one culprit{fewer}{two}"
        lines.append(f"{text}, and several times as many if it fails only sometimes; at most {runs}{again}")
    if samples:
        text = f"{samples} {unit}s are halved{' then' if flips else ''}: up to {halvings(samples)} runs for one"
        lines.append(f"{text}, more for several or if it fails only sometimes; at most {runs} in total")
    whole = min(runs * timeout, limits.seconds or math.inf)
    total = f"{whole:.0f} s" if whole < 120 else f"{whole / 60:.0f} min"
    return "\n".join([*lines, f"at most {timeout:g} s for each run, {total} in total"])


def halvings(count: int) -> int:
    """Return how many runs a culprit of `count` samples takes at most: one for each halving, and four to confirm it."""
    return math.ceil(math.log2(max(1, count))) + 4


def flip_text(factor: Factor) -> str:
    """Return how a factor is flipped, in words: `8 -> 0`, `--amp -> without`, `fast -> not set`."""
    return f"{factor.bad or _empty(factor.good)} -> {factor.good or _empty(factor.bad)}"


def _empty(other: str) -> str:
    return "without" if other.startswith("-") else "not set"


def line(number: int, row: dict[str, Any], unit: str = "page") -> str:
    """Return one run in words, as it ends."""
    named = ", ".join(row["as it was"])
    unchanged = (f"{named} unchanged" if named else "everything changed") if row["flipped"] else "everything unchanged"
    pages = "" if row["pages"] is None else f", {len(row['pages'])} {unit}{'s' if len(row['pages']) > 1 else ''}"
    failure = "" if row["ended"] == "passed" else f" ({row['told']})"
    duration = ", known from an earlier bisect" if row["known"] else f", {row['seconds']:.1f} s"
    return f"run {number}: {row['ended']}{failure} with {unchanged}{pages}{duration}"


def sentence(job: BisectJob, answer: Answer, search: Search, samples: SampleVerdict | None = None) -> str:
    """Return what was found: culprit, evidence, what to set until it is fixed, and how certain that is."""
    what = job.failure or "Failure"
    because = f": {samples.evidence}" if samples is not None and samples.evidence else ""
    if samples is not None and answer.status == "none":  # the samples alone decide
        others = f", {_whatever(job)}" if job.factors else ""
        if not samples.fix:
            return f"{what}: {samples.culprit}{because}{others}; {len(job.rows)} runs."
        return f"{what}. Caused by {samples.culprit}{because}{others}. Until it is fixed: {samples.fix}."
    text = _found_text(job, answer, search, samples) if answer.status == "found" else _no_factor(job, answer, search)
    if samples is None or factors.DATA in _culprits(job, answer):
        return text
    return f"{text} With all settings unchanged it is caused by {samples.culprit}{because}."


def _culprits(job: BisectJob, answer: Answer) -> list[str]:
    return [job.factors[index].name for index in answer.items]


def _whatever(job: BisectJob) -> str:
    count = len(job.factors)
    return f"whichever of the {count} factors is changed" if count > 1 else f"also with {job.factors[0].name} changed"


def _no_factor(job: BisectJob, answer: Answer, search: Search) -> str:
    """Return why no factor is named."""
    what, tried = job.failure or "the failure", len(search.runs) - len(search.ended(None))
    runs = "1 run" if tried == 1 else f"{tried} runs"
    if answer.status == "none":
        return f"None of these: {what} happens {_whatever(job)}; {runs}."
    if answer.status == "misfit":
        text = f"No small set of the factors explains which runs failed with {what}"
        return f"{text}: more is involved, or something that was not changed; {runs}."
    if answer.status == "never":
        rarest = 100 * (1 - 0.05 ** (1 / max(1, tried)))
        text = f"It did not fail in {runs} with everything unchanged"
        return f"{text}: it is gone, or happens in fewer than {rarest:.0f} of 100 runs."
    if answer.status == "otherwise":
        last = job.rows[-1]["told"] if job.rows else "nothing was run"
        if any(row["flipped"] for row in job.rows):
            return f"Stopped after {runs}: all others fail in another way, see other_failures."
        if job.rows and job.rows[-1]["ended"] == "not done":
            return f"Stopped: with everything unchanged the run was {last}; --timeout gives it more time."
        return f"Stopped: with everything unchanged the run neither passed nor failed in the expected way ({last})."
    more = "The time is up; the same command continues from here."
    if job.used >= job.limits.runs:
        more = f"The same command with --runs {2 * job.limits.runs} continues from here."
    text = f"Not enough runs: after {tried} it may be {_answer_text(job, answer, search)}."
    return f"{text if job.rows else 'Nothing is known yet: nothing was run.'} {more}"


def _found_text(job: BisectJob, answer: Answer, search: Search, data: SampleVerdict | None) -> str:
    text = f"{_cause_text(job, answer, data)}: {_evidence(job, answer, search)}"
    text += f"; probability {search.probability(answer):.2f}"
    fix = f"Until it is fixed: {_fix(job, answer, data)}."
    if search.is_flaky:
        rate = search.failure_rate
        return f"{text}{f', it fails in about {100 * rate:.0f} of 100 runs' if rate < SURE else ''}. {fix}"
    proof = "This assumes that it always fails; if not, --rate 0.5 repeats the runs."
    if job.proofs:
        settled = f"{job.settled_after} run{'s' if job.settled_after != 1 else ''}"
        proof = f"Found after {settled}, and confirmed by {_more_runs(job)} more."
    return f"{text}. {fix} {proof}"


def table(job: BisectJob) -> list[list[str]]:
    """Return one row a run, under a header: which factors were flipped, how it ended, in how many seconds.

    Many factors have letters for names, which `legend` tells.
    """
    halved, letters = any(row["pages"] is not None for row in job.rows), bool(legend(job))
    heads = [_letter(index) if letters else factor.name for index, factor in enumerate(job.factors)]
    rows = [["run", *heads, *([f"{job.unit}s"] * halved), "ended", "s", "failure"]]
    for number, row in enumerate(job.rows, 1):
        mark = "x" if letters else AS_IT_WAS
        marks = [mark if row["run"] >> index & 1 else "-" for index in range(len(job.factors))]
        pages = "all" if row["pages"] is None else str(len(row["pages"]))
        failure = "" if row["ended"] == "passed" else row["told"][:60]
        rows.append([str(number), *marks, *([pages] * halved), row["ended"], f"{row['seconds']:.1f}", failure])
    return rows


def legend(job: BisectJob) -> str:
    """Return what the letters and signs of the table stand for; empty where it names the factors themselves."""
    if sum(max(len(factor.name), len(AS_IT_WAS)) + 2 for factor in job.factors) <= WIDE:
        return ""
    named = ", ".join(f"{_letter(index)} {factor.name}" for index, factor in enumerate(job.factors))
    return f"{named}; x is {AS_IT_WAS}, - is changed"


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"A{index - 25}"


def record(
    job: BisectJob,
    answer: Answer,
    search: Search,
    culprits: SampleCulprits | None = None,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything as a JSON-ready record; `names` are those of all samples."""
    samples = describe_samples(culprits, names, job.unit) if culprits else None
    probability = round(search.probability(answer), 4)
    fix = samples.fix or None if samples else None
    return {
        "schema": SCHEMA,
        "status": answer.status,
        "sentence": sentence(job, answer, search, samples),
        "failure": {"fingerprint": job.wanted, "told": job.failure},
        "kind": answer.kind,
        "culprits": _culprits(job, answer),
        "pages": [[names[index] for index in group] for group in culprits.groups] if culprits else [],
        "samples": samples
        and culprits
        and {"told": samples.culprit, "how": samples.evidence, "ending": culprits.ending},
        "posterior": probability,
        "error": job.limits.error,
        "rate": round(search.failure_rate if search.is_flaky else 1.0, 2),
        "until_mended": _fix(job, answer, samples) if answer.status == "found" else fix,
        "answers": [{"answer": _answer_text(job, answer, search), "posterior": probability}],
        "runs": {
            "used": max(0, job.used - _more_runs(job)),  # up to the answer
            "to_make_sure": _more_runs(job),
            "known_before": len(job.rows) - job.used,
            "at_most": job.limits.runs,
        },
        "seconds": round(sum(row["seconds"] for row in job.rows), 1),
        "factors": [
            {"name": factor.name, "bad": factor.bad, "good": factor.good, "suspicion": round(weight, 2)}
            for factor, weight in zip(job.factors, job.suspicion, strict=True)
        ],
        "table": [_row(row, names) for row in job.rows],
        "other_failures": sorted({row["told"] for row in job.rows if row["ended"] in ("otherwise", "not done")}),
        "notes": job.notes,
    }


def _row(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    pages = row["pages"]
    named = None if pages is None else [names[index] if index < len(names) else str(index) for index in pages]
    return {**{name: value for name, value in row.items() if name not in ("run", "causes")}, "pages": named}


def _cause_text(job: BisectJob, answer: Answer, data: SampleVerdict | None) -> str:
    """Return what makes it fail: one factor, several together, or any of several; pages by their names."""
    what, texts = job.failure or "Failure", []
    for factor in (job.factors[index] for index in answer.items):
        text = f"{factor.name} ({factor.bad or _empty(factor.good)})"
        if data is not None and factor.name == factors.DATA:
            text = data.culprit if data.fix else f"{text}, {data.culprit}"
            text += f" ({data.evidence})" if data.evidence else ""
        texts.append(text)
    if len(texts) == 1:
        return f"{what}. Caused by {texts[0]}"
    if answer.each_alone:
        return f"{what}. Caused by {' and by '.join(texts)}, each alone"
    return f"{what}. Caused by {' and '.join(texts)} together"


def _evidence(job: BisectJob, answer: Answer, search: Search) -> str:
    """Return how often it failed where the answer expects it, and passed where it does not."""
    items = [1 << index for index in answer.items]
    named = union(items)
    ends: dict[bool, list[bool]] = {True: [], False: []}
    for run, end in search.runs:
        if end is not None:
            ends[run & named != 0 if answer.each_alone else run & named == named].append(end)
    with_it, without = ends[True], ends[False]
    text = f"{sum(with_it)} of {len(with_it)} run{'s' if len(with_it) != 1 else ''} with it failed,"
    text += f" {sum(without)} of {len(without)} without it"
    flips = [named] if answer.each_alone else items
    text += (
        ", and it passed with nothing else changed"
        if any((search.whole ^ f, False) in search.runs for f in flips)
        else ""
    )
    if answer.each_alone or search.is_flaky:
        return text
    for item in items:  # what was flipped too in the runs that prove it
        passed = [
            run for run in search.ended(False) if run & named == named ^ item and (run | item, True) in search.runs
        ]
        if search.whole ^ item in search.ended(None) and passed:
            name, more = _names(job, item), _names(job, search.whole ^ max(passed, key=int.bit_count) ^ item)
            text += f"; changing {name} alone ends in another way, but with {more} changed too it fails with"
            text += f" {name} unchanged and passes with it changed"
    if answer.unproved:
        extra = _names(job, union(1 << index for index in answer.unproved))
        text += f"; whether {extra} is needed too is unknown: without it the program ends in another way"
    return text


def _names(job: BisectJob, items: int) -> str:
    return " and ".join(factor.name for index, factor in enumerate(job.factors) if items >> index & 1)


def _fix(job: BisectJob, answer: Answer, data: SampleVerdict | None) -> str:
    """Return what to set until then; of several factors that are needed together one is enough."""
    fixes = []
    for factor in (job.factors[index] for index in answer.items):
        if factor.name == factors.DATA and data is not None and data.fix:
            fixes.append(data.fix)
        elif "synthetic" in factor.job:
            fixes.append(f"other pages (ocrlab samples check {factor.bad} looks at these)")
        elif not factor.good:
            fixes.append(f"{factor.name} not set" if _empty(factor.bad) == "not set" else f"without {factor.bad}")
        else:
            fixes.append(factor.good if "=" in factor.good else f"{factor.name}={factor.good}")
    return (" and " if answer.each_alone else " or ").join(fixes)


def _answer_text(job: BisectJob, answer: Answer, search: Search) -> str:
    """Return an answer in few words; of an undecided search the factors of the smallest run that failed."""
    plain = {"none": "none of these", "never": "it does not fail", "misfit": "something more involved"}
    if answer.status in plain:
        return plain[answer.status]
    if answer.status == "found":
        return (" or " if answer.each_alone else " and ").join(_culprits(job, answer))
    return _names(job, min(search.ended(True), key=int.bit_count, default=0)).replace(" and ", ", ") or "anything"


def _more_runs(job: BisectJob) -> int:
    """Return how many runs were made since the answer stood first; those that halve samples ask something else."""
    return sum(row["pages"] is None for row in job.rows[job.settled_after :]) if job.settled_after else 0


@dataclass(frozen=True)
class SampleVerdict:
    """What makes it fail, how that is known, and the fix until then; no `fix` where no sample is to blame."""

    culprit: str
    evidence: str
    fix: str


def describe_samples(culprits: SampleCulprits, names: Sequence[str], unit: str) -> SampleVerdict:
    """Return what is known of samples that are called `unit`: page, file, line, record."""
    groups = [[names[index] for index in group] for group in culprits.groups]
    if culprits.ending == "whole":
        every = f"all {culprits.count} {unit}s together: no part fails"
        only = f"the only {unit} there is" if culprits.count == 1 else every
        return SampleVerdict(f"{only} ({_join(groups[0])})", "", "")
    if culprits.ending in ("every", "number"):
        how = f"{', '.join(group[0] for group in groups)} fail each alone"
        if culprits.ending == "number":
            these, others = (_join(group, most=FEW) for group in groups)
            many = f"{len(groups[0])} {unit}{'s' if len(groups[0]) > 1 else ''}"
            how = f"with {many} it fails, be it {these} or {others}: how many there are decides"
        return SampleVerdict(f"no {unit} in particular", how, "")
    certain = [_group_text(group, unit) for group in groups]
    if not groups or (culprits.ending == "spent" and len(groups[-1]) > 1):
        left, of = (len(groups[-1]), f" ({_join(groups[-1])})") if groups else (culprits.count, "")
        which = f"one or more of {'' if groups else 'the '}{left} {unit}s{of}"
        return SampleVerdict(", and ".join([*certain[:-1], which]), "nothing was left to look closer", "")
    joined = " and " if culprits.company else " or "
    out = [_join([f"{unit} {name.partition(' (`')[0]}" for name in group], joined) for group in groups]
    return SampleVerdict(", and ".join(certain), _how(culprits, groups), f"leave out {' and '.join(out)}")


def _group_text(group: Sequence[str], unit: str) -> str:
    if len(group) == 1:
        return f"the {unit} {group[0]}"
    return f"the {unit}s {_join(group, ' and ')} together"


def _how(culprits: SampleCulprits, groups: Sequence[Sequence[str]]) -> str:
    it = "each" if len(groups) > 1 else "they" if len(groups[0]) > 1 else "it"
    fails = f"{it} {'fail' if it == 'they' else 'fails'} without the others"
    if culprits.company:
        fails = "it fails together with any others, but not alone"
    rest = {"many": "others fail too", "spent": "whether others fail too is unknown"}
    often = f"; it fails in about {100 * culprits.rate:.0f} of 100 runs" if culprits.rate else ""
    tries = f" (a part counts as passed after {culprits.tries} runs){often}" if culprits.tries > 1 else ""
    return f"{fails}; {rest.get(culprits.ending, 'all others pass')}{tries}"


def _join(names: Sequence[str], joined: str = ", ", most: int = NAMED) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return joined.join(names[:most]) + more
