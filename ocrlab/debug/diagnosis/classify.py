"""From an incident to a verdict: the first cause in time wins, wrappers and follow-ups are named as such."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from ocrlab.debug.diagnosis import (
    catalogue,
    confidence_caps,
    evidence,
    failure_place,
    final_exception,
    first_failed_rank,
    load_input,
    next_steps,
)
from ocrlab.debug.diagnosis.evidence import Hit
from ocrlab.debug.diagnosis.hangs import hang_cause
from ocrlab.debug.diagnosis.log_text import LogText, by_person, is_sentence
from ocrlab.records import Cause, Evidence, Incident, RuledOut, Verdict

GIVES_WAY = ("wrapper", "fallback", "word", "hint")
SURE = 0.8  # from here on a verdict names one cause and lists no look-alikes
LEAST = 0.1
WORTH = 0.3  # the least that is told beside an error of the program's own logic, which says more than a guess
WEAK = 0.5  # a cause with no more is a guess
PRINTED = 0.7  # what is left of an error message of a program that stands still
LAST_RESORT = "notebook.kernel_died"  # a messenger that is an answer where nothing better is known
WENT_ON = 4  # lines of progress after a message: the program survived it
RAISED = re.compile(r"^(?:\w+\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt)\b", re.MULTILINE)
MOST_CAUSES, MOST_LINES = 5, 4
LOOKALIKES = (0.3, 0.24, 0.18, 0.14)  # of the causes that look the same, in the catalogue's order
STICKY = ("kernel.", "gpumem.", "data.index_range", "hw.")
EXPLAINS = ("data.index_range", "hw.", "build.", "driver.", "num.", "wsl.")  # asynchronous errors, wherever it stands
BUSY = re.compile(r"busy (?:at|in) ")  # a thread that uses the CPU is neither stopped nor asleep: no look-alikes
SLOW = 0.3  # of what the stacks show of a program that still moved
NEAR = 0.05  # lines that say as much as the best one choose the form of the fix
FOLLOWS = 0.75  # what is left of an error after an earlier one that is not sure
UNMADE = "io.missing"  # after an exception: what the step that failed should have written


@dataclass
class Candidate:
    """A cause with all that speaks for it."""

    id: str
    hits: list[Hit] = field(default_factory=list)
    confidence: float = 0.0

    @property
    def roots(self) -> list[Hit]:
        """What speaks for it without being a messenger or a mere hint."""
        return [hit for hit in self.hits if hit.strength not in GIVES_WAY]

    @property
    def first(self) -> tuple[int, int] | None:
        """The place of its first error in time."""
        return min((hit.order for hit in self.roots if hit.order is not None), default=None)

    @property
    def last(self) -> tuple[int, int] | None:
        """The place of its last error in time."""
        return max((hit.order for hit in self.roots if hit.order is not None), default=None)


def classify(incident: Incident) -> Verdict:
    """Return the verdict of an incident: causes most probable first, none where nothing speaks for one."""
    before = load_input.read_verdict(incident.facts.get("verdict"))
    if before is not None:  # made where the stacks and counters were still there
        return before
    all_ranks, failed_rank = incident, first_failed_rank.find_failed_rank(incident)
    if failed_rank is not None:
        incident = first_failed_rank.restrict_to_rank(incident, failed_rank)
    texts = evidence.clean_texts(incident)
    hung = hang_cause.stack_hits(incident)
    if evidence.still_moved(incident):
        return _over(incident, hung)
    log_hits = evidence.drop_shm_guesses(evidence.find_hits(incident, texts), incident)
    well = _well(incident, texts)
    relevant = log_hits
    if incident.status not in ("hung", "suspected"):
        relevant = final_exception.keep_nan_losses(log_hits) if well else final_exception.drop_survived(log_hits, texts)
    if incident.status == "log" and final_exception.find_uncaught(texts) is None:
        relevant = final_exception.cap_benign_warnings(relevant, texts)
    relevant = evidence.cap_missing_files(relevant, incident)
    hits = (
        confidence_caps.apply_caps(relevant, texts)
        + evidence.fact_hits(incident)
        + hung
        + first_failed_rank.rank_hits(failed_rank)
    )
    if hung:  # who took the stacks has ended it
        hits = [hit for hit in hits if "died of SIGKILL" not in hit.why]
    evident = [hit for hit in hits if hit.strength not in ("word", "hint")]
    if evident or incident.status != "log":  # words are for a pasted log in which nothing else speaks
        hits = [hit for hit in hits if hit.strength != "word"]
    if next_steps.has_no_log(incident, texts) and (
        any(by_person(page.text) for page in texts) or all(map(_described, hits))
    ):
        return Verdict(status=incident.status, missing=list(next_steps.HOW_TO_GET_A_LOG))
    candidates = _candidates(hits)
    if hung and incident.status in ("hung", "suspected"):  # it never failed: what it printed is not why it stands still
        for candidate in candidates.values():
            measured = candidate.id in {hit.cause for hit in hung} or evidence.MEASURED in {
                hit.order for hit in candidate.hits
            }
            candidate.confidence *= 1.0 if measured else PRINTED
    ruled_out = (
        [] if well else final_exception.rule_out_survived(confidence_caps.apply_caps(log_hits, texts), hits, texts)
    )
    ruled_out += _disproved(candidates, incident) + _wrappers(candidates)
    ruled_out += _survived(candidates, texts) + _follow_ups(candidates)
    ranked = sorted(
        candidates.values(), key=lambda candidate: (-round(candidate.confidence, 3), candidate.first or (99, 0))
    )
    ranked = [
        candidate for candidate in ranked if candidate.confidence >= (WORTH if _explained(incident, texts) else LEAST)
    ]
    messengers = [candidate for candidate in candidates.values() if candidate.hits and not candidate.roots]
    absent = {name for name in catalogue.load().entries if evidence.absent(name, incident.facts)}
    causes = _causes(ranked, messengers, {out.id for out in ruled_out}, absent)
    if causes and incident.status not in ("hung", "suspected"):
        causes[0] = failure_place.add_place(causes[0], texts, incident.texts)
    causes = load_input.add_replay(
        evidence.ask_silent_handler(next_steps.replace_experiments(causes, incident), incident),
        incident.facts,
    )
    if incident.facts.get("ended_by") == "user":  # who pressed Ctrl-C needs no advice
        causes = [
            replace(candidate, experiment="", fix="") if candidate.id == "ext.signal" else candidate
            for candidate in causes
        ]
    verdict = Verdict(
        status=incident.status,
        exit_code=incident.exit_code,
        signal=incident.signal,
        symptom=_symptom(hits),
        causes=causes,
        ruled_out=ruled_out,
        missing=[] if causes and causes[0].confidence >= SURE else next_steps.missing_evidence(incident, causes, texts),
    )
    return first_failed_rank.name_rank(verdict, failed_rank, all_ranks)


def diagnose(path: str | os.PathLike[str]) -> Verdict:
    """Name the cause of what is at a path: a log, a run folder or an executed notebook; `-` reads standard input.

    Raises DataError where the path cannot be read.
    """
    return classify(load_input.read_incident(os.fspath(path)))


def _described(hit: Hit) -> bool:
    """Return whether a hit rests on a description instead of a message: it is no evidence without a log."""
    line = hit.evidence.text
    return hit.strength in ("word", "hint") or by_person(line) or (hit.order is None and is_sentence(line))


def _well(incident: Incident, texts: list[LogText]) -> bool:
    if incident.status != "log" or incident.exit_code or incident.signal or final_exception.find_uncaught(texts):
        return False
    return incident.exit_code == 0 or final_exception.ended_well(texts)


def _explained(incident: Incident, texts: list[LogText]) -> bool:
    """Tell whether the program was seen to end itself with an error of its own logic."""
    end = final_exception.find_uncaught(texts) if incident.status == "failed" and not incident.signal else None
    return end is not None and end.plain and end.traced


def _over(incident: Incident, hung: list[Hit]) -> Verdict:
    """Return the verdict of a program that still moved at its time limit: where it stood, which explains little."""
    weak_hits = [replace(hit, confidence=min(hit.confidence, SLOW), ceiling=SLOW) for hit in hung]
    ranked = sorted(_candidates(weak_hits).values(), key=lambda candidate: -candidate.confidence)
    causes = [_cause(candidate.id, candidate.confidence, candidate) for candidate in ranked[:MOST_CAUSES]]
    seconds = incident.facts.get("run_seconds")
    span = f"after {seconds:.0f} s " if isinstance(seconds, int | float) else ""
    missing = [f"nothing that failed: it still moved when it was ended {span}at its time limit; a longer --timeout"]
    end = Verdict(status=incident.status, exit_code=incident.exit_code, signal=incident.signal)
    return replace(end, causes=causes, missing=missing)


def _candidates(hits: list[Hit]) -> dict[str, Candidate]:
    candidates: dict[str, Candidate] = defaultdict(lambda: Candidate(""))
    for hit in hits:
        candidates[hit.cause].id = hit.cause
        candidates[hit.cause].hits.append(hit)
    for candidate in candidates.values():
        candidate.confidence = _confidence(candidate)
    return dict(candidates)


def _confidence(candidate: Candidate) -> float:
    """Return the strongest hit's confidence, a little more for each further line; many guesses never make a proof."""
    best = max(candidate.hits, key=lambda hit: hit.confidence)
    if not candidate.roots and best.strength != "word":
        return best.confidence
    others = {hit.evidence.text for hit in candidate.hits if hit.evidence.text != best.evidence.text}
    return min(max(best.ceiling, best.confidence), best.confidence + 0.02 * min(len(others), 4))


def _disproved(candidates: dict[str, Candidate], incident: Incident) -> list[RuledOut]:
    """Lower what a measurement speaks against: no OOM kill was counted while the program ran."""
    oom_kill = candidates.get("host.oom_kill")
    if oom_kill is None or oom_kill.confidence >= SURE:
        return []
    if _shown(incident):
        return []
    if incident.facts.get("oom_kills") == 0:
        why = "no kill was counted while it ran (oom_kill of its control group, or of the whole machine)"
    elif incident.facts.get("kernel_log_read") and incident.facts.get("oom_kills") is None:
        why = "the kernel log was read and names no process of the program"
    else:
        return []
    oom_kill.confidence = min(oom_kill.confidence, 0.25)
    return [RuledOut(oom_kill.id, why)]


def _shown(incident: Incident) -> bool:
    return "oom" in incident.texts.get(evidence.KERNEL_LOG, "").lower()


def _wrappers(candidates: dict[str, Candidate]) -> list[RuledOut]:
    """Take out causes that only messengers speak for, where something else explains the failure."""
    roots = [candidate for candidate in candidates.values() if candidate.roots and candidate.confidence >= 0.45]
    if not roots:
        return []
    ruled_out = []
    for candidate in list(candidates.values()):
        if candidate.roots:
            candidate.confidence = (
                _outright(candidate) if len(roots) > 1 or candidate not in roots else candidate.confidence
            )
            continue
        line = candidate.hits[0].evidence
        if candidate.id == LAST_RESORT and all(root.confidence <= WEAK for root in roots):
            continue  # guesses are nothing better
        if candidate.confidence > 0.2:  # more than a hint
            ruled_out.append(
                RuledOut(candidate.id, f"line {line.line} of {line.file} only reports the failure of something else")
            )
        candidate.confidence = 0.0
    return ruled_out


def _outright(candidate: Candidate) -> float:
    """Return the confidence without what gives way: that it aborted says no more where something else says why."""
    best = max(candidate.hits, key=lambda hit: hit.confidence)
    return candidate.confidence if best.strength not in GIVES_WAY else max(hit.confidence for hit in candidate.roots)


def _survived(candidates: dict[str, Candidate], texts: list[LogText]) -> list[RuledOut]:
    """Lower an early message after which the program went on making progress, where a later one stands at its end."""
    timed = [
        candidate for candidate in candidates.values() if candidate.first is not None and candidate.confidence >= 0.6
    ]
    ruled_out = []
    for candidate in timed:
        early = candidate.last or (0, 0)
        later = [other.first for other in timed if other.first and other.first > early and other is not candidate]
        if not later or candidate.id.startswith(STICKY):
            continue  # after a sticky CUDA error nothing goes on
        text = texts[early[0]] if 0 <= early[0] < len(texts) else None
        if text and sum(1 for number in text.progress if early[1] < number < max(later)[1]) >= WENT_ON:
            candidate.confidence *= FOLLOWS**2
            ruled_out.append(RuledOut(candidate.id, f"the program went on after line {early[1]}"))
    return ruled_out


def _follow_ups(candidates: dict[str, Candidate]) -> list[RuledOut]:
    """Lower what failed after the first error in time: after a sticky CUDA error everything fails."""
    timed = [
        candidate
        for candidate in candidates.values()
        if candidate.first is not None and _best(candidate).confidence >= 0.6
    ]
    if not timed:
        return []
    root = min(timed, key=lambda candidate: (candidate.first or (0, 0), -candidate.confidence))
    ruled_out = []
    surely = root.confidence >= SURE or root.id.startswith(STICKY)
    raised = RAISED.search(_best(root).evidence.text) is not None
    for candidate in timed:
        if candidate is root or candidate.first is None or root.first is None or candidate.first <= root.first:
            continue
        if any(hit.order is None for hit in candidate.roots if hit.confidence >= 0.6):
            continue  # said by a person or measured from outside: not a later line
        if root.id.startswith("kernel.") and candidate.id.startswith(EXPLAINS) and candidate.confidence >= SURE:
            continue
        final = surely or (raised and candidate.id == UNMADE)
        if final:
            line, before = _best(candidate).evidence, _best(root).evidence
            ruled_out.append(RuledOut(candidate.id, f"line {line.line} follows {root.id} in line {before.line}"))
        candidate.confidence = 0.0 if final else candidate.confidence * FOLLOWS
    return ruled_out


def _best(candidate: Candidate) -> Hit:
    return max(candidate.hits, key=lambda hit: hit.confidence)


def _causes(ranked: list[Candidate], messengers: list[Candidate], ruled: set[str], absent: set[str]) -> list[Cause]:
    """Return the ranked causes, filled up with the look-alikes of the first where it is not sure.

    Of `absent` ones, for which the machine or the program lacks the part, only those that something speaks for told.
    """
    sure = bool(ranked) and ranked[0].confidence >= SURE
    rows = [
        (candidate.id, candidate.confidence, candidate)
        for candidate in ranked
        if not sure or candidate is ranked[0] or candidate.confidence >= 0.2
    ]
    if rows and not sure and not any(map(BUSY.match, (hit.evidence.text for hit in rows[0][2].hits))):
        others = [
            candidate
            for candidate in messengers
            if candidate is not ranked[0] and _best(candidate).strength == "wrapper"
        ]
        supported = {row[0] for row in rows}
        rows = [row for row in _with_lookalikes(rows, others) if row[0] not in ruled]
        rows = [row for row in rows if row[0] in supported or row[0] not in absent]
    return [
        _cause(name, confidence, candidate) for name, confidence, candidate in rows[:MOST_CAUSES] if confidence >= LEAST
    ]


def _with_lookalikes(
    rows: list[tuple[str, float, Candidate]], others: list[Candidate]
) -> list[tuple[str, float, Candidate]]:
    """Return the rows with what looks the same as the first; a hint that speaks for one of them lifts it.

    Where the first rests on the words of one of `others`, messengers, it is what looks the same as that messenger.
    """
    limit = rows[0][1] - 0.05
    by_id = {name: (name, confidence, candidate) for name, confidence, candidate in rows}
    quoted = {hit.evidence.text for hit in rows[0][2].hits}
    reference = next(
        (candidate.id for candidate in others if quoted <= {hit.evidence.text for hit in candidate.hits}), rows[0][0]
    )
    for name, confidence in zip(catalogue.load().entries[reference].otherwise, LOOKALIKES, strict=False):
        _, before, candidate = by_id.get(name, (name, 0.0, Candidate(name)))
        by_id[name] = (name, max(before, min(confidence + 0.1 * bool(candidate.hits), limit)), candidate)
    return sorted(by_id.values(), key=lambda row: -row[1])


def _cause(name: str, confidence: float, candidate: Candidate) -> Cause:
    entry = catalogue.load().entries[name]
    lines: list[Evidence] = []
    quoted: set[str] = set()
    for hit in sorted(candidate.hits, key=lambda hit: -hit.confidence):
        if hit.evidence.text not in quoted and len(lines) < MOST_LINES:
            quoted.add(hit.evidence.text)
            lines.append(hit.evidence)
    best = max((hit.confidence for hit in candidate.hits), default=0.0)
    form = entry.form(hit.evidence.text for hit in candidate.hits if hit.confidence >= best - NEAR)
    return Cause(name, round(confidence, 2), lines, form.experiment, form.fix)


def _symptom(hits: list[Hit]) -> str | None:
    """Return the id of what surfaced: the last message of the log that the catalogue knows."""
    placed = [hit for hit in hits if hit.order is not None and hit.strength != "hint"]
    if placed:
        return max(placed, key=lambda hit: (hit.order or (0, 0), hit.confidence)).cause
    return hits[0].cause if hits else None
