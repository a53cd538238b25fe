"""The ten steps of the doctor as something to look at: their progress while they run, and the table of findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape

from ocrlab.hardware.doctor.doctor_job import STEPS, WORST, Progress, worst
from ocrlab.hardware.doctor.text_table import NOTES, PLAIN, SIGNS, totals
from ocrlab.records import Check
from ocrlab.reports.view import ACCENT, LINE, MUTED, View, coded, heading

EVERY = 0.5  # seconds between two updates; every one of them travels to the browser
PILLS = {  # judgement or state -> ink and ground, read on each other in the light and in the dark theme
    "ok": ("#116b39", "#e3f3e9"),
    "warn": ("#7a4f00", "#fcefcb"),
    "fail": ("#9c1a20", "#fbe3e3"),
    "skip": ("#46525f", "#e8ecf1"),
    "running": ("#ffffff", ACCENT),
    "waiting": (MUTED, "transparent"),
}

CSS = f"""
.ocrlab .rungs {{ list-style: none; margin: 6px 0; padding: 0; display: grid; gap: 4px 28px;
  grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); grid-auto-flow: row; max-width: 760px; }}
.ocrlab .rungs li {{ display: flex; align-items: baseline; gap: 9px; margin: 0; padding: 4px 0;
  border-bottom: 1px solid {LINE}55; }}
.ocrlab .rungs .no {{ width: 18px; text-align: right; opacity: .75; }}
.ocrlab .rungs .what {{ flex: 1; white-space: nowrap; }}
.ocrlab .rungs .what small {{ display: block; font-size: 11.5px; opacity: .75; white-space: normal; }}
.ocrlab .rungs li.waiting {{ opacity: .8; }}
.ocrlab .pill {{ display: inline-block; border-radius: 9px; padding: 0 9px; font-size: 12px; line-height: 18px;
  font-weight: 600; white-space: nowrap; }}
.ocrlab .pill.waiting {{ box-shadow: inset 0 0 0 1px {LINE}; font-weight: 400; color: inherit !important; }}
.ocrlab details.step {{ border-top: 1px solid {LINE}; }}
.ocrlab details.step:last-of-type {{ border-bottom: 1px solid {LINE}; }}
.ocrlab details.step summary {{ cursor: pointer; padding: 7px 2px; display: flex; gap: 10px; align-items: baseline; }}
.ocrlab details.step summary::before {{ content: "▸"; opacity: .5; width: 10px; }}
.ocrlab details.step[open] summary::before {{ content: "▾"; }}
.ocrlab details.step summary .no {{ width: 18px; text-align: right; opacity: .75; }}
.ocrlab details.step summary .what {{ flex: 1; font-weight: 600; }}
.ocrlab details.step dl {{ display: grid; grid-template-columns: 74px 190px 1fr; gap: 0 12px; margin: 0 0 10px 20px; }}
.ocrlab details.step dt, .ocrlab details.step dd {{ margin: 0; padding: 3px 0; font-weight: 400; min-width: 0;
  overflow-wrap: anywhere; }}
.ocrlab details.step dd p {{ margin: 1px 0; }}
.ocrlab details.step dd p.more {{ display: flex; }}
.ocrlab details.step dd p.more > span {{ opacity: .65; flex: none; width: 52px; }}
.ocrlab .say.true {{ margin-top: 18px; }}
.ocrlab details.step i {{ font-style: normal; min-width: 0; }}
.ocrlab ul.true {{ margin: 4px 0 0 18px; padding: 0; font-size: 13px; }}
@media (max-width: 640px) {{ .ocrlab details.step dl {{ grid-template-columns: 1fr; margin-left: 4px; }} }}
@media print {{ .ocrlab details.step > dl {{ display: grid !important; }} }}
"""


class Climb:
    """Call it with the progress of the steps; `show` gets a View at most twice a second, and always the last one."""

    def __init__(self, show: Callable[[View], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.show, self.clock = show, clock
        self.began = self.shown = clock()
        self.show(self.view(Progress()))

    def __call__(self, progress: Progress) -> None:
        """Show the progress if it is time to."""
        if len(progress.complete) == len(STEPS) or self.clock() - self.shown >= EVERY:
            self.shown = self.clock()
            self.show(self.view(progress))

    def view(self, progress: Progress) -> View:
        """Return the ten steps as they are now."""
        done, seconds = len(progress.complete), self.clock() - self.began
        title = f"{done} of {len(STEPS)} steps {'took' if done == len(STEPS) else 'after'} {seconds:.0f} s"
        items, lines = "", [title]
        for number, name in enumerate(STEPS, 1):
            probes, checks = progress.running[number], progress.complete.get(number)
            state = worst(checks) if checks is not None else "running" if probes else "waiting"
            asked = f"<small>{escape(', '.join(probes))}</small>" if state == "running" else ""
            items += f"<li{' class=waiting' if state == 'waiting' else ''}>{_title(number, asked)}{pill(state)}</li>"
            lines.append(f"{number} {name}: {state}")
        html = f'<style>{CSS}</style>{heading(title)}<ol class="rungs" aria-label="{escape(title)}">{items}</ol>'
        return View(html, "\n".join(lines))


def pill(state: str, text: str = "") -> str:
    """Return a state as a coloured word with a sign, so that no colour is needed to recognise it."""
    ink, ground = PILLS[state]
    words = text or f"{SIGNS.get(state, '')} {state}".strip()
    return f'<span class="pill {state}" style="color:{ink};background:{ground}">{escape(words)}</span>'


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
        counts = Counter(check.judgement for check in mine)
        pills = "".join(pill(word, f"{SIGNS[word]} {counts[word]} {word}") for word in WORST if counts[word])
        opened = " open" if counts["fail"] or counts["warn"] else ""
        summary = f"<summary>{_title(number)}{pills}</summary>"
        html += f'<details class="step"{opened}>{summary}<dl>{"".join(map(_row, mine))}</dl></details>'
        lines.append(f"{number} {name}")
        for check in mine:
            lines.append(f"  {PLAIN[check.judgement]} {check.judgement:<4} {check.name}: {check.observed}")
            if check.judgement in ("warn", "fail"):
                details = (("need", check.need), ("do", check.do))
                lines += [f"         {word}: {text}" for word, text in details if text]
    return View(html, "\n".join(lines))


def notes() -> View:
    """Return what is true where many guides are wrong."""
    title = "What many guides get wrong"
    items = "".join(f"<li>{coded(note)}</li>" for note in NOTES)
    return View(
        f'<style>{CSS}</style><p class="say true">{escape(title)}</p><ul class="true">{items}</ul>',
        "\n".join([title, *NOTES]),
    )


def _title(number: int, more: str = "") -> str:
    return f'<span class="no">{number}</span><span class="what">{escape(STEPS[number - 1])}{more}</span>'


def _row(check: Check) -> str:
    lines = f"<p>{escape(check.observed)}</p>"
    if check.judgement in ("warn", "fail"):
        do = f"<code>{escape(check.do)}</code>" if check.do else ""
        for word, text in (("need", escape(check.need)), ("do", do), ("cause", check.cause)):
            lines += f'<p class="more"><span>{word}</span><i>{text}</i></p>' if text else ""
    return f"<dt>{pill(check.judgement)}</dt><dt>{escape(check.name)}</dt><dd>{lines}</dd>"
