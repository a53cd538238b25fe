"""A verdict in words, and on disk: incident/verdict.json, verdict.md and the texts that it quotes, redacted."""

from __future__ import annotations

from pathlib import Path

from ocrlab import flight, redact
from ocrlab.diagnose import catalogue
from ocrlab.records import Cause, Incident, Verdict, to_json

ENDED = {
    "failed": "the program failed",
    "killed": "the program was killed",
    "hung": "the program hung",
    "suspected": "the program seems to hang",
    "log": "",
}


def sentence(verdict: Verdict) -> str:
    """Return the verdict in one sentence: what, how sure, where, and how it ended."""
    how = ENDED.get(verdict.status, "the program failed")
    if how and verdict.signal:
        how += f" by {verdict.signal}" if verdict.status == "killed" else f", {verdict.signal}"
    elif how and verdict.exit_code:
        how += f" with exit status {verdict.exit_code}"
    end = f"; {how}." if how else "."
    if not verdict.causes:
        return f"The cause is unknown{end}"
    first = verdict.causes[0]
    sure = "certain" if first.confidence >= 0.9 else "most probable" if first.confidence >= 0.7 else "possible"
    where = next((f", {line.file} line {line.line}" for line in first.evidence if line.line), "")
    return f"{_title(first.id)}: {sure} ({first.id}, {first.confidence:.2f}){where}{end}"


def markdown(verdict: Verdict) -> str:
    """Return the verdict as a short page: sentence, evidence, what was ruled out, the next experiment, the fix."""
    parts = [f"**{sentence(verdict)}**"]
    if verdict.causes:
        first = verdict.causes[0]
        parts += [
            "## Evidence",
            "\n".join(f"- {_line(line.file, line.line)} `{_code(line.text)}`" for line in first.evidence),
        ]
        if not first.evidence:
            parts[-1] = "- none of its own; it looks the same as what was seen"
    others = [f"- {cause.id} ({cause.confidence:.2f}): {_title(cause.id)}" for cause in verdict.causes[1:]]
    if others:
        parts += ["## Or else", "\n".join(others)]
    if verdict.ruled_out:
        parts += ["## Ruled out", "\n".join(f"- {out.id}: {out.why}" for out in verdict.ruled_out)]
    if verdict.causes:
        parts += ["## Next experiment", _experiment(verdict.causes[0]), "## Fix", verdict.causes[0].fix]
    if verdict.missing:
        parts += ["## What would make it certain", "\n".join(f"- {thing}" for thing in verdict.missing)]
    return "\n\n".join(parts) + "\n"


def write(folder: Path | str, verdict: Verdict, incident: Incident) -> None:
    """Write verdict.json, verdict.md and the texts of the incident into `folder`, redacted; raises OSError.

    The verdict comes last and each file is whole or not there: who finds verdict.json finds all that it quotes.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, text in incident.texts.items():
        if Path(name).name == name:
            flight.write_text(place / name, redact.clean(text))
    flight.write_text(place / "verdict.md", redact.clean(markdown(verdict)))
    flight.write_json(place / "verdict.json", redact.clean(to_json(verdict)))


def _title(name: str) -> str:
    entry = catalogue.load().entries.get(name)
    return entry.title if entry else name


def _experiment(cause: Cause) -> str:
    command, _, tells = cause.experiment.partition("    ")
    return f"    {command}" + (f"\n\n{tells.strip()}" if tells.strip() else "")


def _line(file: str, number: int | None) -> str:
    return f"{file}:{number}" if number else file


def _code(text: str) -> str:
    return text.replace("`", "'")
