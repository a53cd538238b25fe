"""A verdict in words, and on disk: incident/verdict.json, verdict.md and the texts that it quotes, redacted."""

from __future__ import annotations

import re
import resource
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ocrlab import redaction, run_folder
from ocrlab.debug.diagnosis import catalogue, explained_verdict, failure_place, first_failed_rank, next_steps
from ocrlab.records import SCHEMA, Cause, Incident, Verdict, finite, to_json

ENDED = {
    "failed": "The program failed",
    "killed": "The program was killed",
    "hung": "The program hung",
    "suspected": "The program seems to hang",
    "log": "",
}
FACTS = "facts.json"
LIBRARY = re.compile(r"\bin ([\w.+-]+\.so[\w.]*)\[")
EXCEPTION = re.compile(r"^(?:\w+\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt)\b")
WORKER = re.compile(r"DataLoader worker process (\d+)")


def sentence(verdict: Verdict) -> str:
    """Return the verdict in one sentence: how it ended and where, the cause, how sure, and the line that says so.

    Of several ranks it is the one to look at that is named, and how that one ended.
    """
    how, rank = ENDED.get(verdict.status, "The program failed"), first_failed_rank.rank_sentence(verdict)
    hung = verdict.status in ("hung", "suspected")
    if rank:
        how = f"{how}: {rank}" if hung else _capital(rank)
    elif how and verdict.signal:
        how += f" by {verdict.signal}" if verdict.status == "killed" else f" ({verdict.signal})"
    elif how and verdict.exit_code:
        how += f" with exit status {verdict.exit_code}"
    if verdict.missing[:1] == [next_steps.NO_LOG]:
        return f"{_capital(next_steps.NO_LOG)}."
    if not verdict.causes:
        own = next_steps.own_error(verdict)
        ending = f"it is an error of its own: {own}" if own else "the cause is unknown"
        words, _, place = own[1:].partition("`")
        if own and first_failed_rank.OURS.sub("", words).rstrip(".") in rank:  # the rank's words show it already
            ending = f"it is an error of its own{place if place.startswith(' (') else place.replace(' ', ', ', 1)}"
        return f"{how}; {ending}." if how else f"{_capital(ending)}."
    first, where = verdict.causes[0], _where(verdict)
    sure = "very likely" if first.confidence >= 0.9 else "likely" if first.confidence >= 0.7 else "possible"
    line = next((f", {line.file} line {line.line}" for line in first.evidence if line.line), "")
    title = _title(first)
    word = title.partition(" ")[0]  # small inside the sentence, unless it is a name or an acronym
    title = title if word[1:] != word[1:].lower() else title[:1].lower() + title[1:]
    cause = f"{title} ({first.id}, {first.confidence:.2f}{line})"
    if rank:
        return f"{how}; {sure} cause{f', {where}' if where and not hung else ''}: {cause}."
    if not how:
        return f"{sure.capitalize()} cause: {cause}{f', {where}' if where else ''}."
    place = where if hung or not where else f" {where}"
    return f"{how}{place}; {sure} cause: {cause}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where(verdict: Verdict) -> str:
    """Return the place in the program: its frame and the library of a crash, the worker and exception of a sample."""
    lines = verdict.causes[0].evidence
    if verdict.status in ("hung", "suspected"):
        return next((f": {line.text}" for line in lines[:1] if line.line is None), "")
    texts = [line.text for line in lines]
    module, own = failure_place.place_in(lines)
    library, worker = (next(filter(None, map(pattern.search, texts)), None) for pattern in (LIBRARY, WORKER))
    parts = [f"in {module}"] if module else []
    parts += [f"{'called from' if parts else 'in'} {own}"] if own else []
    parts += [f"in the library {library[1]}"] if library else []
    parts += [f"in data worker {worker[1]}"] if worker else []
    if texts and EXCEPTION.match(texts[0]):
        parts.append(f"with `{_code(textwrap.shorten(texts[0], 130, placeholder=' ...'))}`")
    return ", ".join(parts)


def markdown(verdict: Verdict, facts: Mapping[str, Any] | None = None) -> str:
    """Return the verdict as a short page: sentence, evidence, what was ruled out, the next experiment, the fix.

    From the `facts` of its incident it adds where the flight record ends, which decides no cause, and the answer of a
    replay if that is not evidence already.
    """
    first = verdict.causes[0] if verdict.causes else None
    explained = explanation_parts(first) if first else []
    parts = [*explained, f"**{sentence(verdict)}**", *extra_paragraphs(facts or {}, verdict)]
    if verdict.values:
        parts += ["## Values of the failing line", "\n".join(f"- {value}" for value in verdict.values)]
    if first:
        lines = [f"- {line.file}{f':{line.line}' if line.line else ''} `{_code(line.text)}`" for line in first.evidence]
        parts += ["## Evidence", "\n".join(lines) or "- none of its own; it looks the same as what was seen"]
    others = [f"- {cause.id} ({cause.confidence:.2f}): {_title(cause)}" for cause in verdict.causes[1:]]
    ruled_out = [f"- {out.id}: {out.why}" for out in verdict.ruled_out]
    parts += ["## Or else", "\n".join(others)] if others else []
    parts += ["## Ruled out", "\n".join(ruled_out)] if ruled_out else []
    wanted = verdict.missing
    if first and explained:
        wanted = []
    elif first:
        command, _, meaning = first.experiment.partition("    ")
        parts += ["## Next experiment", f"    {command}"] if command else []
        parts += [meaning.strip()] if meaning.strip() else []
        parts += ["## Fix", first.fix] if first.fix else []
    else:  # what the first sentence says is not repeated
        repeated = (next_steps.OWN, next_steps.NO_LOG, first_failed_rank.rank_sentence(verdict) or next_steps.OWN)
        wanted = [thing for thing in wanted if not thing.startswith(repeated)]
    if wanted:
        heading = "How to get a log" if verdict.missing[0] == next_steps.NO_LOG else "What would make it certain"
        parts += [f"## {heading}", "\n".join(f"- {thing}" for thing in wanted)]
    return "\n\n".join(parts) + "\n"


def explanation_parts(cause: Cause) -> list[str]:
    """Return the explanation of a cause, its fix and its edit as paragraphs; nothing where there is no explanation."""
    if not cause.explanation:
        return []
    parts = [cause.explanation, f"**Fix.** {cause.fix}"]
    if cause.edit:
        place = f"{cause.edit['file']}, line {cause.edit['line']}"
        parts.append(f"{place}:\n\n```diff\n- {cause.edit['before']}\n+ {cause.edit['after']}\n```")
    return parts


def extra_paragraphs(facts: Mapping[str, Any], verdict: Verdict) -> list[str]:
    """Return what is known besides the causes, a paragraph each: where the record ends, what a replay answered."""
    additions = extra_fields(facts)
    evidence = [line.text for line in verdict.causes[0].evidence] if verdict.causes else []
    record, answer = additions.get("record"), additions.get("replay")
    return [
        *([f"{record[0].upper()}{record[1:]}."] if record else []),
        *([f"Replay: {answer}"] if answer and answer not in evidence else []),
    ]


def extra_fields(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what verdict.json says besides the verdict, where it is known: `record`, `replay`."""
    replay = facts.get("replay")
    texts = {"record": facts.get("record"), "replay": replay.get("answer") if isinstance(replay, Mapping) else None}
    return {name: text for name, text in texts.items() if isinstance(text, str) and text}


def write_verdict(folder: Path | str, verdict: Verdict, incident: Incident) -> None:
    """Write verdict.json, verdict.md and the texts of the incident into `folder`, redacted; raises OSError.

    The verdict comes last and each file is whole or not there: who finds verdict.json finds all that it quotes.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, text in incident.texts.items():
        if Path(name).name == name:
            redacted, replaced = redaction.clean_and_count(text)
            run_folder.write_text(place / name, _end_within_limit(redacted))
            count += replaced
    if incident.facts:  # with them `ocrlab diagnose` of the folder says the same again
        facts = explained_verdict.stored_facts(verdict, incident)
        run_folder.write_json(place / FACTS, redaction.clean_record({"schema": SCHEMA, **finite(facts)}))
    redacted, replaced = redaction.clean_and_count(markdown(verdict, incident.facts))
    count += replaced
    run_folder.write_text(place / "verdict.md", f"{redacted}\nIn this folder: {redaction.note(count)}\n")
    record = redaction.clean({**to_json(verdict), **extra_fields(incident.facts)})
    run_folder.write_json(place / "verdict.json", {**record, "redacted": count})


def _end_within_limit(text: str) -> str:
    """Return a text, or as much of its end as a file may hold where this process is limited (RLIMIT_FSIZE)."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY or 4 * len(text) <= limit:
        return text
    return text.encode("utf-8", "backslashreplace")[-limit:].decode("utf-8", "ignore")


def _title(cause: Cause) -> str:
    entry = catalogue.load().entries.get(cause.id)
    return entry.form(line.text for line in cause.evidence).title if entry else cause.id


def _code(text: str) -> str:
    return text.replace("`", "'")
