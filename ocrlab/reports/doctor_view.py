"""Checks as something to look at: a row each, and the doctor's ten steps with their findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from ocrlab.hardware.doctor.doctor_job import STEPS, WORST, worst
from ocrlab.hardware.doctor.text_table import NOTES, SIGNS, totals
from ocrlab.records import Check
from ocrlab.reports.view import LINE, View, coded, heading

PILLS = {  # judgement -> ink and ground, read on each other in the light and in the dark theme
    "ok": ("#116b39", "#e3f3e9"),
    "warn": ("#7a4f00", "#fcefcb"),
    "fail": ("#9c1a20", "#fbe3e3"),
    "skip": ("#46525f", "#e8ecf1"),
}

CSS = f"""
.ocrlab .pill {{ display: inline-block; border-radius: 9px; padding: 0 9px; font-size: 12px; line-height: 18px;
  font-weight: 600; white-space: nowrap; }}
.ocrlab details.step {{ border-top: 1px solid {LINE}; }}
.ocrlab details.step:last-of-type {{ border-bottom: 1px solid {LINE}; }}
.ocrlab details.step summary {{ cursor: pointer; padding: 7px 2px; display: flex; gap: 10px; align-items: baseline; }}
.ocrlab details.step summary::before {{ content: "▸"; opacity: .5; width: 10px; }}
.ocrlab details.step[open] summary::before {{ content: "▾"; }}
.ocrlab details.step summary .no {{ width: 18px; text-align: right; opacity: .75; }}
.ocrlab details.step summary .what {{ flex: 1; font-weight: 600; }}
.ocrlab dl.checks {{ display: grid; grid-template-columns: 74px 190px 1fr; gap: 0 12px; margin: 0 0 10px 20px; }}
.ocrlab dl.checks dt, .ocrlab dl.checks dd {{ margin: 0; padding: 3px 0; font-weight: 400; min-width: 0;
  overflow-wrap: anywhere; }}
.ocrlab dl.checks dd p {{ margin: 1px 0; }}
.ocrlab dl.checks dd p.more {{ display: flex; }}
.ocrlab dl.checks dd p.more > span {{ opacity: .65; flex: none; width: 52px; }}
.ocrlab .say.true {{ margin-top: 18px; }}
.ocrlab dl.checks i {{ font-style: normal; min-width: 0; }}
.ocrlab ul.true {{ margin: 4px 0 0 18px; padding: 0; font-size: 13px; }}
@media (max-width: 640px) {{ .ocrlab dl.checks {{ grid-template-columns: 1fr; margin-left: 4px; }} }}
@media print {{ .ocrlab details.step > dl {{ display: grid !important; }} }}
"""


def pill(state: str, text: str = "") -> str:
    """Return a judgement as a coloured word with a sign, so that no colour is needed to recognise it."""
    ink, ground = PILLS[state]
    return (
        f'<span class="pill" style="color:{ink};background:{ground}">{escape(text or f"{SIGNS[state]} {state}")}</span>'
    )


def rows(checks: Sequence[Check]) -> View:
    """Return checks as rows: each with what was observed, and what to do if it is not ok."""
    html, lines = "", []
    for check in checks:
        body = f"<p>{escape(check.observed)}</p>"
        lines.append(f"  {SIGNS[check.judgement]} {check.judgement:<4} {check.name}: {check.observed}")
        for word, text in (("need", check.need), ("do", check.do), ("cause", check.cause)):
            if text and check.judgement in ("warn", "fail"):
                shown = f"<code>{escape(text)}</code>" if word == "do" else escape(text)
                body += f'<p class="more"><span>{word}</span><i>{shown}</i></p>'
                lines += [f"         {word}: {text}"]
        html += f"<dt>{pill(check.judgement)}</dt><dt>{escape(check.name)}</dt><dd>{body}</dd>"
    return View(f'<dl class="checks">{html}</dl>', "\n".join(lines))


def table(checks: Sequence[Check]) -> View:
    """Return every finding, step by step; steps with something to fix are open."""
    count = Counter(check.judgement for check in checks)
    title = {
        "fail": f"{count['fail']} of {len(checks)} findings must be fixed",
        "warn": f"Nothing fails, {count['warn']} of {len(checks)} findings deserve a look",
        "ok": f"All is well: {count['ok']} of {len(checks)} findings are ok, none fails",
        "skip": "Nothing could be judged",
    }[worst(checks)]
    html, lines = f"<style>{CSS}</style>{heading(title)}", [f"{title} ({totals(checks)})"]
    for number, name in enumerate(STEPS, 1):
        mine = [check for check in checks if check.step == number]
        counts, listed = Counter(check.judgement for check in mine), rows(mine)
        pills = "".join(pill(word, f"{SIGNS[word]} {counts[word]} {word}") for word in WORST if counts[word])
        opened = " open" if counts["fail"] or counts["warn"] else ""
        summary = f'<span class="no">{number}</span><span class="what">{escape(name)}</span>{pills}'
        html += f'<details class="step"{opened}><summary>{summary}</summary>{listed.html}</details>'
        lines += [f"{number} {name}", *filter(None, [listed.text])]
    return View(html, "\n".join(lines))


def notes() -> View:
    """Return what is true where many guides are wrong."""
    title = "What many guides get wrong"
    items = "".join(f"<li>{coded(note)}</li>" for note in NOTES)
    return View(
        f'<style>{CSS}</style><p class="say true">{escape(title)}</p><ul class="true">{items}</ul>',
        "\n".join([title, *NOTES]),
    )
