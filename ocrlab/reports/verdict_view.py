"""A verdict as a block: the cause and how sure it is, the lines that support it, the fix, what is ruled out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from ocrlab.debug.diagnosis import catalogue, next_steps
from ocrlab.records import Cause, Evidence, Verdict
from ocrlab.reports.bug_report.markup import inline, ticked
from ocrlab.reports.view import View, load_css

SURE = 0.8  # from here on a cause is stated as a fact
PLACE = re.compile(r" \(\S+ line \d+\)$")  # in a file that a reader without the folder does not have
EVIDENCE = 6  # lines shown of each cause

CSS = load_css("verdict")


def view(verdict: Verdict, texts: Mapping[str, str] | None = None, folder: str = "") -> View:
    """Return the block of a verdict; the `texts` that it was made from are folded, `folder` holds the whole."""
    rows = _rows(verdict.causes[0]) if verdict.causes else []
    rows += [("values", _list([("", "", value) for value in verdict.values]))] if verdict.values else []
    others = [(f"{cause.confidence:.2f}", cause.id, _title(cause.id)) for cause in verdict.causes[1:]]
    rows += [("or else", _list(others, "lines ids"))] if others else []
    refuted = [("", out.id, out.why) for out in verdict.ruled_out]
    rows += [("ruled out", _list(refuted, "lines ids"))] if refuted else []
    own, missing = _own_and_missing(verdict)
    rows += [("not known", _list([("", "", thing) for thing in missing]))] if missing else []
    rows += [("more in", f"<code>{escape(folder)}</code>")] if folder else []
    listed = "".join(f"<dt>{name}</dt><dd>{html}</dd>" for name, html in rows)
    folded = "".join(
        f'<details><summary>{escape(name)}</summary><pre class="stack">{escape(text.rstrip())}</pre></details>'
        for name, text in (texts or {}).items()
        if text.strip()
    )
    head = _head(verdict.causes[:1], own if folder or texts else PLACE.sub("", own))
    return View(f'<style>{CSS}</style><div class="cause">{head}<dl>{listed}</dl>{folded}</div>', text(verdict))


def _own_and_missing(verdict: Verdict) -> tuple[str, list[str]]:
    """Return the program's own error, and everything else that is not known."""
    own = next_steps.own_error(verdict)
    return own, [thing for thing in verdict.missing if not (own and thing.endswith(own))]


def text(verdict: Verdict) -> str:
    """Return a verdict in words, one thing a line."""
    if not verdict.causes:
        own, missing = _own_and_missing(verdict)
        headline = f"An error of the program itself, nothing from outside: {own}" if own else "The cause is not known."
        return "\n".join([headline, *(f"  not known: {thing}" for thing in missing)])
    cause = verdict.causes[0]
    words = _title(cause.id)
    lines = [f"{'Cause' if cause.confidence >= SURE else 'Probable cause'}: {words or cause.id}"]
    lines[0] += f" ({cause.id}, {100 * cause.confidence:.0f} % sure)"
    if cause.explanation:
        edit = [f"  edit: {cause.edit['file']}:{cause.edit['line']}: {cause.edit['after']}"] if cause.edit else []
        return "\n".join([cause.explanation, f"  fix: {cause.fix}", *edit, f"  {lines[0][0].lower()}{lines[0][1:]}"])
    lines += [f"  because {_place(line)}: {line.text}" for line in cause.evidence[:3]]
    lines += [f"  fix: {cause.fix}"] if cause.fix else []
    lines += [f"  to be sure: {cause.experiment}"] if cause.experiment else []
    return "\n".join(lines)


def _head(first: list[Cause], own: str) -> str:
    if own:
        return f"<h4>An error of the program itself, nothing from outside</h4><p>{inline(ticked(own))}</p>"
    if not first:
        return "<h4>The cause is not known</h4><p>Nothing observed decides it.</p>"
    cause = first[0]
    words = escape(_title(cause.id))
    explained = f"<p>{inline(ticked(cause.explanation))}</p>" if cause.explanation else ""
    return (
        f"{explained}<h4>{words or f'<code>{escape(cause.id)}</code>'}</h4>"
        f'<p><span class="sure" aria-hidden="true"><i style="width:{100 * cause.confidence:.0f}%"></i></span>'
        f"{'the cause' if cause.confidence >= SURE else 'the most probable cause'}, "
        f"{100 * cause.confidence:.0f} % sure" + (f" · <code>{escape(cause.id)}</code>" if words else "") + "</p>"
    )


def _title(name: str) -> str:
    """Return a cause in words, as the catalogue has it."""
    entry = catalogue.load().entries.get(name)
    return entry.title if entry else ""


def _edit(edit: Mapping[str, object]) -> str:
    place = f"{escape(str(edit['file']))}, line {edit['line']}"
    return f"{place}<pre>- {escape(str(edit['before']))}\n+ {escape(str(edit['after']))}</pre>"


def _rows(cause: Cause) -> list[tuple[str, str]]:
    lines = [(_place(line), line.text, "") for line in cause.evidence[:EVIDENCE]]
    rows = [("because", _list(lines))] if lines else []
    if cause.explanation:
        fix = [("fix", inline(ticked(cause.fix)))]
        return fix + ([("edit", _edit(cause.edit))] if cause.edit else []) + rows
    rows += [("fix", escape(cause.fix))] if cause.fix else []
    command, _, tells = cause.experiment.partition("    ")
    rows += [("to be sure", f"<code>{escape(command)}</code> {inline(ticked(tells))}".rstrip())] if command else []
    return rows


def _list(items: list[tuple[str, str, str]], style: str = "lines") -> str:
    """Return (where, code, words) as lines; with the style `lines ids` the code is short and stays in one piece."""
    lines = []
    for where, code, words in items:
        shown = f"<small>{escape(where)}</small>" if where else ""
        shown += f"<code>{escape(code)}</code>" if code else ""
        lines.append(f"<li>{shown}{f'<span>{inline(ticked(words))}</span>' if words else ''}</li>")
    return f'<ul class="{style}">{"".join(lines)}</ul>'


def _place(line: Evidence) -> str:
    return f"{line.file}:{line.line}" if line.line else line.file
