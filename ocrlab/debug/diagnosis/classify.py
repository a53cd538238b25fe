"""From an incident to a verdict: the first cause in time wins; wrappers and consequences are ruled out.

The order, in `classify`: a verdict that is stored already; the rank that failed first; hits in the texts without what
the program survived; caps on messages that many things print; what was measured and what the stacks show; then one
ranking of the causes that all hits support.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
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
from ocrlab.debug.diagnosis.catalogue import Level, Role
from ocrlab.debug.diagnosis.evidence import Hit
from ocrlab.debug.diagnosis.explained_verdict import explain_verdict
from ocrlab.debug.diagnosis.hangs import hang_cause
from ocrlab.debug.diagnosis.log_records import RAISED
from ocrlab.debug.diagnosis.log_text import LogText, by_person, is_sentence
from ocrlab.hardware.processes import exit_codes
from ocrlab.records import Cause, Evidence, Incident, RuledOut, Verdict

SURE = 0.8  # from here on a verdict names one cause and lists no look-alikes
LEAST = 0.1  # confidence of a cause that is listed,
LEAST_BESIDE_SURE = 0.2  # next to a sure one,
LEAST_BESIDE_OWN_ERROR = 0.3  # and next to an error of the program's own logic, which says more than a guess
FURTHER_LINE, MOST_FURTHER = 0.02, 2  # what each further line adds to the best one
DISCOUNT = 0.75  # of a cause that something speaks against: an earlier error, a hang that it did not end
LOOKALIKES = (0.3, 0.24, 0.18, 0.14)  # of the causes that look the same, in the catalogue's order
MOST_CAUSES, MOST_LINES = 5, 4
LAST_RESORT = "notebook.kernel_died"  # a wrapper that is an answer where only guesses are left
STICKY = ("kernel.", "gpumem.", "data.index_range", "hw.")
EXPLAINS = ("data.index_range", "hw.", "build.", "driver.", "num.", "wsl.")  # asynchronous errors, wherever it stands
BUSY = re.compile(r"busy (?:at|in) ")  # a thread that uses the CPU is neither stopped nor asleep: no look-alikes
UNMADE = "io.missing"  # after an exception: what the step that failed should have written
NAN_LOSS = re.compile(r"(?i)loss\w*\W{1,4}(?:nan|inf)\b")
CONSEQUENCES = {"num.nonfinite": "data.nonfinite"}  # what the other one entails
HUNG = ("hung", "suspected")
# Signals that somebody sends, and the families of causes that end or stop a program from outside its own lines.
SENT = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGKILL", "SIGXCPU", "SIGALRM", "SIGUSR1", "SIGUSR2")
SENDERS = ("ext.", "host.", "scheduler.", "hang.", "loader.", "dist.", "hw.", "wsl.", "notebook.")
Place = tuple[int, int]


@dataclass
class Candidate:
    """A cause with all hits that support it."""

    id: str
    hits: list[Hit] = field(default_factory=list)
    confidence: float = 0.0

    def __post_init__(self) -> None:
        if self.hits:
            others = {hit.evidence.text for hit in self.roots if hit.order} - {self.best.evidence.text}
            self.confidence = self.best.level.value + FURTHER_LINE * min(len(others), MOST_FURTHER)

    @property
    def best(self) -> Hit:
        """The hit that proves most."""
        return max(self.hits, key=lambda hit: hit.level.value)

    @property
    def roots(self) -> list[Hit]:
        """The hits that report the cause itself."""
        return [hit for hit in self.hits if hit.role is Role.CAUSE]

    @property
    def places(self) -> list[Place]:
        """The places of its errors, in time."""
        return sorted(hit.order for hit in self.roots if hit.order is not None)

    @property
    def first(self) -> Place | None:
        """The place of its first error in time."""
        return next(iter(self.places), None)


def diagnose(path: str | os.PathLike[str]) -> Verdict:
    """Name the cause of a failure from a log, a run folder or an executed notebook; `-` reads standard input.

    Raises DataError where the path cannot be read.
    """
    return classify(load_input.read_incident(os.fspath(path)))


def classify(incident: Incident) -> Verdict:
    """Return the verdict of an incident: causes most probable first, none where nothing supports one."""
    stored = load_input.read_verdict(incident.facts.get("verdict"))
    if stored is not None:  # made where the stacks and counters were still there
        return stored
    all_ranks, failed_rank = incident, first_failed_rank.find_failed_rank(incident)
    if failed_rank is not None:
        incident = first_failed_rank.restrict_to_rank(incident, failed_rank)
    texts = evidence.clean_texts(incident)
    stack_hits = hang_cause.stack_hits(incident, texts)
    if evidence.still_moved(incident):
        return _verdict_of_a_slow_program(incident, stack_hits)

    log_hits = evidence.find_hits(texts, incident)
    hits = confidence_caps.apply_caps(_relevant(log_hits, incident, texts), texts)
    hits += evidence.fact_hits(incident) + stack_hits + first_failed_rank.rank_hits(failed_rank)
    if stack_hits:  # who took the stacks has ended it
        hits = [hit for hit in hits if "died of SIGKILL" not in hit.why]
    if next_steps.has_no_log(incident, texts):  # what rests on a description instead of a message is not evidence
        described = (by_person(h.evidence.text) or (h.order is None and is_sentence(h.evidence.text)) for h in hits)
        if any(by_person(text.text) for text in texts) or all(described):
            return Verdict(status=incident.status, missing=list(next_steps.HOW_TO_GET_A_LOG))

    candidates = _candidates(hits)
    if stack_hits and incident.status in HUNG:  # it never failed: what it printed is not why it stands still
        for candidate in candidates.values():
            if not any(hit in stack_hits or hit.order == evidence.MEASURED for hit in candidate.hits):
                candidate.confidence *= DISCOUNT
    ruled_out = []
    if not _ended_well(incident, texts):
        ruled_out = final_exception.rule_out_survived(confidence_caps.apply_caps(log_hits, texts), hits, texts)
    ruled_out += [*_disproved(candidates, incident), *_wrappers(candidates)]
    ruled_out += [*_consequences(candidates), *_follow_ups(candidates)]
    causes = _causes(candidates, {out.id for out in ruled_out}, incident, texts)
    if causes and incident.status not in HUNG:
        causes[0] = failure_place.add_place(causes[0], texts)
    causes = next_steps.replace_experiments(causes, incident)
    silent = incident.facts.get("silent")
    if silent and causes and causes[0].id == UNMADE:  # looked for after the handler that may have hidden why
        causes[0] = replace(causes[0], experiment=f"COMMAND    (after it is shown: {silent})")
    causes = load_input.add_replay(causes, incident.facts)
    if incident.facts.get("ended_by") == "user":  # who pressed Ctrl-C needs no advice
        causes = [replace(cause, experiment="", fix="") if cause.id == "ext.signal" else cause for cause in causes]
    sure = bool(causes) and causes[0].confidence >= SURE
    placed = [(hit.order, hit.level.value, hit.cause) for hit in hits if hit.order is not None]
    symptom = max(placed, key=lambda hit: hit[:2])[2] if placed else hits[0].cause if hits else None
    verdict = Verdict(
        status=incident.status,
        exit_code=incident.exit_code,
        signal=incident.signal,
        symptom=symptom,
        causes=causes,
        ruled_out=ruled_out,
        missing=[] if sure else next_steps.missing_evidence(incident, causes, texts),
    )
    return first_failed_rank.name_rank(explain_verdict(verdict, incident), failed_rank, all_ranks)


def _relevant(hits: list[Hit], incident: Incident, texts: list[LogText]) -> list[Hit]:
    """Return the hits in the texts that can be the cause, by how the program ended."""
    if incident.status not in HUNG and _ended_well(incident, texts):  # only a loss that became NaN still counts
        hits = [hit for hit in hits if hit.evidence.line is None or NAN_LOSS.search(hit.evidence.text)]
    elif incident.status not in HUNG:
        hits = final_exception.drop_survived(hits, texts)
    signal = incident.signal or exit_codes.signal_of_exit(incident.exit_code)
    if (signal in SENT or incident.status in HUNG) and final_exception.find_uncaught(texts) is None:
        # What ended it, or holds it, outranks what it printed and survived.
        hits = [hit if hit.cause.startswith(SENDERS) else hit.capped(Level.POSSIBLE) for hit in hits]
    if incident.status == "log" and final_exception.find_uncaught(texts) is None:
        hits = final_exception.cap_benign_warnings(hits, texts)
    if incident.facts.get("silent"):  # a handler may have taken what kept the file from being written
        hits = [hit.capped(Level.LIKELY) if hit.cause == UNMADE else hit for hit in hits]
    return hits


def _ended_well(incident: Incident, texts: list[LogText]) -> bool:
    if incident.status != "log" or incident.exit_code or incident.signal or final_exception.find_uncaught(texts):
        return False
    return incident.exit_code == 0 or final_exception.ended_well(texts)


def _verdict_of_a_slow_program(incident: Incident, stack_hits: list[Hit]) -> Verdict:
    """Return the verdict of a program that still moved at its time limit: where it stood, which explains little."""
    ranked = sorted(_candidates(stack_hits).values(), key=lambda candidate: -candidate.confidence)
    causes = [_cause(candidate, LOOKALIKES[0]) for candidate in ranked[:MOST_CAUSES]]
    missing = ["nothing that failed: it still moved when it was ended at its time limit; a longer --timeout"]
    return Verdict(None, incident.status, incident.exit_code, incident.signal, causes=causes, missing=missing)


def _candidates(hits: list[Hit]) -> dict[str, Candidate]:
    causes = dict.fromkeys(hit.cause for hit in hits)
    return {cause: Candidate(cause, [hit for hit in hits if hit.cause == cause]) for cause in causes}


def _disproved(candidates: dict[str, Candidate], incident: Incident) -> Iterator[RuledOut]:
    """Lower what a measurement speaks against: no OOM kill was counted while the program ran."""
    oom_kill = candidates.get("host.oom_kill")
    shown = "oom" in incident.texts.get(evidence.KERNEL_LOG, "").lower()
    kills = incident.facts.get("oom_kills")
    if oom_kill is None or oom_kill.confidence >= SURE or shown:
        return
    if kills == 0:
        why = "no kill was counted while it ran (oom_kill of its control group, or of the whole machine)"
    elif kills is None and incident.facts.get("kernel_log_read"):
        why = "the kernel log was read and names no process of the program"
    else:
        return
    oom_kill.confidence = min(oom_kill.confidence, LOOKALIKES[1])
    yield RuledOut(oom_kill.id, why)


def _wrappers(candidates: dict[str, Candidate]) -> Iterator[RuledOut]:
    """Take out causes that only wrappers and fallbacks support, where something else explains the failure."""
    explained = [each for each in candidates.values() if each.roots and each.confidence >= Level.POSSIBLE.value]
    likely = any(each.confidence >= Level.LIKELY.value for each in explained)
    for candidate in candidates.values() if explained else ():
        if candidate.roots:
            if candidate.best.role is not Role.CAUSE and explained != [candidate]:  # that it aborted adds nothing
                candidate.confidence = max(hit.level.value for hit in candidate.roots)
        elif candidate.id != LAST_RESORT or likely:
            line = candidate.hits[0].evidence
            candidate.confidence = 0.0
            yield RuledOut(candidate.id, f"line {line.line} of {line.file} only reports the failure of something else")


def _consequences(candidates: dict[str, Candidate]) -> Iterator[RuledOut]:
    """Take out what a cause entails that was noticed after it: an input that is not finite, and then the loss."""
    for effect, cause in CONSEQUENCES.items():
        entailed, source = candidates.get(effect), candidates.get(cause)
        if entailed is not None and source is not None and source.confidence >= SURE:
            entailed.confidence = 0.0
            yield RuledOut(effect, f"{cause} entails it: {source.best.evidence.text}")


def _follow_ups(candidates: dict[str, Candidate]) -> Iterator[RuledOut]:
    """Lower what failed after the first error in time: after a sticky CUDA error everything fails."""
    standing = [each for each in candidates.values() if each.confidence or each.id not in CONSEQUENCES]
    likely = [each for each in standing if each.best.level.value >= Level.LIKELY.value]
    timed = {each.first: each for each in sorted(likely, key=lambda each: each.confidence) if each.first}
    root = timed[min(timed)] if timed else None
    for candidate in likely if root else ():
        if root is None or candidate.first is None or candidate.first <= min(timed):
            continue
        if any(hit.order is None and hit.level is not Level.POSSIBLE for hit in candidate.roots):
            continue  # reported by a person or measured from outside: not a later line
        if root.id.startswith("kernel.") and candidate.id.startswith(EXPLAINS) and candidate.confidence >= SURE:
            continue
        unmade = candidate.id == UNMADE and RAISED.search(root.best.evidence.text)
        if root.confidence >= SURE or root.id.startswith(STICKY) or unmade:
            line, before = candidate.best.evidence.line, root.best.evidence.line
            candidate.confidence = 0.0
            yield RuledOut(candidate.id, f"line {line} follows {root.id} in line {before}")
        else:
            candidate.confidence *= DISCOUNT


def _causes(
    candidates: dict[str, Candidate], ruled_out: set[str], incident: Incident, texts: list[LogText]
) -> list[Cause]:
    """Return the causes in their order, filled up with the look-alikes of the first where that is not sure."""
    ranked = sorted(candidates.values(), key=_rank)
    sure = bool(ranked) and ranked[0].confidence >= SURE
    end = final_exception.find_uncaught(texts) if incident.status == "failed" and not incident.signal else None
    least = LEAST_BESIDE_OWN_ERROR if end and end.plain and end.traced else LEAST
    ranked = [each for each in ranked if each.confidence >= least]
    if sure:
        ranked = [each for each in ranked if each is ranked[0] or each.confidence >= LEAST_BESIDE_SURE]
    elif ranked and not any(BUSY.match(hit.evidence.text) for hit in ranked[0].hits):
        supported = {each.id for each in ranked}
        alike = _with_lookalikes(ranked, candidates)
        absent = {each.id for each in alike if evidence.is_absent(each.id, incident.facts)}
        ranked = [each for each in alike if each.id in supported or each.id not in ruled_out | absent]
    return [_cause(each, each.confidence) for each in ranked[:MOST_CAUSES]]


def _rank(candidate: Candidate) -> tuple[float, bool, Place]:
    """Return the sort key of a candidate: surest first, then what was measured, reported or read in several lines."""
    best = candidate.best
    return -round(candidate.confidence, 3), not (best.why and best.order is None), candidate.first or (99, 0)


def _with_lookalikes(ranked: list[Candidate], candidates: dict[str, Candidate]) -> list[Candidate]:
    """Return the candidates with what looks the same as the first.

    Where the first rests on the words of a wrapper, it is what looks the same as that wrapper.
    """
    first = ranked[0]
    quoted = {hit.evidence.text for hit in first.hits}
    wrappers = [each for each in candidates.values() if each.hits and all(h.role is Role.WRAPPER for h in each.hits)]
    alike = (each for each in wrappers if each is not first and quoted <= {hit.evidence.text for hit in each.hits})
    reference = next(alike, first)
    by_id = {each.id: each for each in ranked}
    for cause, confidence in zip(catalogue.load().entries[reference.id].otherwise, LOOKALIKES, strict=False):
        lookalike = by_id.setdefault(cause, Candidate(cause))
        lookalike.confidence = max(lookalike.confidence, min(confidence, first.confidence - 0.05))
    return sorted(by_id.values(), key=lambda each: -each.confidence)


def _cause(candidate: Candidate, confidence: float) -> Cause:
    """Return a candidate as a cause of the verdict; its best lines choose the form of the fix."""
    lines: dict[str, Evidence] = {}
    for hit in sorted(candidate.hits, key=lambda hit: -hit.level.value):
        lines.setdefault(hit.evidence.text, hit.evidence)
    best = [hit.evidence.text for hit in candidate.hits if hit.level is candidate.best.level]
    form = catalogue.load().entries[candidate.id].form(best)
    return Cause(candidate.id, round(confidence, 2), list(lines.values())[:MOST_LINES], form.experiment, form.fix)
