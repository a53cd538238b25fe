"""A verdict as a block: the cause and how sure it is, the lines that speak for it, what mends it, what is ruled out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from ocrlab.debug.diagnosis import catalogue, next_steps
from ocrlab.records import Cause, Verdict
from ocrlab.reports.bug_report.markup import inline, ticked
from ocrlab.reports.view import View, load_css

SURE = 0.8  # from here on a cause is said as a fact
PLACE = re.compile(r" \(\S+ line \d+\)$")  # in a file that a reader without the folder does not have
EVIDENCE = 6  # lines shown of each cause

CSS = load_css("verdict")


def view(verdict: Verdict, texts: Mapping[str, str] | None = None, folder: str = "") -> View:
    """Return the block of a verdict; the texts behind it are folded, `kept` is the folder that holds the whole."""
    first, others = verdict.causes[:1], verdict.causes[1:]
    rows = _rows(first[0]) if first else []
    if others:
        items = [(f"{cause.confidence:.2f}", cause.id, _title(cause.id)) for cause in others]
        rows.append(("or else", _list(items, "lines ids")))
    if verdict.ruled_out:
        rows.append(("ruled out", _list([("", out.id, out.why) for out in verdict.ruled_out], "lines ids")))
    own = next_steps.own_error(verdict)
    missing = [thing for thing in verdict.missing if not (own and thing.endswith(own))]
    own = own if folder or texts else PLACE.sub("", own)
    if missing:
        rows.append(("not known", _list([("", "", thing) for thing in missing])))
    if folder:
        rows.append(("more in", f"<code>{escape(folder)}</code>"))
    listed = "".join(f"<dt>{name}</dt><dd>{html}</dd>" for name, html in rows)
    folded = "".join(_folded(name, text) for name, text in (texts or {}).items() if text.strip())
    html = f'<style>{CSS}</style><div class="cause">{_head(first, own)}<dl>{listed}</dl>{folded}</div>'
    return View(html, text(verdict))


def text(verdict: Verdict) -> str:
    """Return a verdict in words, one thing a line."""
    if not verdict.causes:
        own = next_steps.own_error(verdict)
        headline = f"An error of the program itself, nothing from outside: {own}" if own else "The cause is not known."
        missing = [thing for thing in verdict.missing if not (own and thing.endswith(own))]
        return "\n".join([headline, *(f"  not known: {thing}" for thing in missing)])
    cause = verdict.causes[0]
    words = _title(cause.id)
    lines = [f"{'Cause' if cause.confidence >= SURE else 'Probable cause'}: {words or cause.id}"]
    lines[0] += f" ({cause.id}, {100 * cause.confidence:.0f} % sure)"
    lines += [
        f"  because {line.file}{f':{line.line}' if line.line else ''}: {line.text}" for line in cause.evidence[:3]
    ]
    lines += [f"  mend it: {cause.fix}"] if cause.fix else []
    lines += [f"  to be sure: {cause.experiment}"] if cause.experiment else []
    return "\n".join(lines)


def _head(first: list[Cause], own: str) -> str:
    if own:
        return f"<h4>An error of the program itself, nothing from outside</h4><p>{inline(ticked(own))}</p>"
    if not first:
        return "<h4>The cause is not known</h4><p>Nothing that was seen decides it.</p>"
    cause = first[0]
    words = escape(_title(cause.id))
    return (
        f"<h4>{words or f'<code>{escape(cause.id)}</code>'}</h4>"
        f'<p><span class="sure" aria-hidden="true"><i style="width:{100 * cause.confidence:.0f}%"></i></span>'
        f"{'the cause' if cause.confidence >= SURE else 'the most probable cause'}, "
        f"{100 * cause.confidence:.0f} % sure" + (f" · <code>{escape(cause.id)}</code>" if words else "") + "</p>"
    )


def _title(name: str) -> str:
    """Return a cause in words, as the catalogue has it."""
    entry = catalogue.load().entries.get(name)
    return entry.title if entry else ""


def _rows(cause: Cause) -> list[tuple[str, str]]:
    lines = [
        (f"{line.file}{f':{line.line}' if line.line else ''}", line.text, "") for line in cause.evidence[:EVIDENCE]
    ]
    rows = [("because", _list(lines))] if lines else []
    rows += [("mend it", escape(cause.fix))] if cause.fix else []
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


def _folded(name: str, text: str) -> str:
    return f'<details><summary>{escape(name)}</summary><pre class="stack">{escape(text.rstrip())}</pre></details>'
