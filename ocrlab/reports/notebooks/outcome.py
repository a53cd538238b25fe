"""The outcome block at the top of a notebook or report: a word, a sentence, numbers against their limits, what next.

Silence is never green: a notebook is INCOMPLETE until `finish` ran, and one that judged nothing stays so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ocrlab.reports.view import PAPER, View, load_css


@dataclass(frozen=True)
class Look:
    """How an outcome is shown: by a sign (an SVG path in 24 x 24), a colour and words; none of them is needed alone."""

    sign: str
    colour: str
    ground: str
    meaning: str


OUTCOMES = {
    "PASS": Look("M5 12.5l4.5 4.5L19 7.5", "#116b39", "#e9f6ee", "It finished and every limit is met."),
    "WARN": Look("M12 5v8.5M12 18.5v.01", "#855600", "#fdf4dc", "It finished and some limits are met."),
    "FAIL": Look(
        "M6.5 6.5l11 11M17.5 6.5l-11 11", "#ab1f24", "#fcecec", "It finished and no limit is met, or an error ended it."
    ),
    "CRASHED": Look("M13.5 3.5L7 13h9l-6 8", "#7b1f79", "#f8ebf8", "The process died of a signal."),
    "STUCK": Look("M9 6.5v11M15 6.5v11", "#8f3d05", "#fcefe5", "It stopped making progress."),
    "INCOMPLETE": Look("M6 12h.01M12 12h.01M18 12h.01", "#46525f", "#eef1f4", "No outcome has been reported yet."),
}

CSS = load_css("outcome")


@dataclass(frozen=True)
class Judgement:
    """One number against its limits; more is better, `unit` may be empty."""

    metric: str
    value: float
    limit: float
    warn: float
    unit: str = ""

    @property
    def word(self) -> str:
        """PASS at the limit or above, WARN down to `warn`, else FAIL; NaN fails."""
        if self.value >= self.limit:
            return "PASS"
        return "WARN" if self.value >= self.warn else "FAIL"

    def sentence(self) -> str:
        """Return the number against its limit in words."""
        unit = f" {self.unit}" if self.unit else ""
        value = "not a number" if math.isnan(self.value) else f"{self.value:.3f}{unit}"
        ends = {
            "PASS": f"which meets the limit of {self.limit:g}{unit}",
            "WARN": f"below the limit of {self.limit:g}{unit}, but not below {self.warn:g}{unit}",
            "FAIL": f"below {min(self.limit, self.warn):g}{unit}; the limit is {self.limit:g}{unit}",
        }
        return f"{self.metric} is {value}, {ends[self.word]}."


@dataclass(frozen=True)
class Outcome:
    """What stands at the top: the notebook's name, the word, one sentence, its numbers, and the next command."""

    name: str
    word: str
    sentence: str
    judgements: tuple[Judgement, ...] = ()
    next: str = ""
    facts: str = ""


def judged(name: str, judgements: Sequence[Judgement], next_command: str = "", facts: str = "") -> Outcome:
    """Return the outcome of a finished notebook: PASS with all limits met, FAIL with none, INCOMPLETE without any."""
    words = {judgement.word for judgement in judgements}
    if not words:
        unjudged = "It ran to its end, but nothing was measured against a limit."
        return Outcome(name, "INCOMPLETE", unjudged, (), next_command, facts)
    word = words.pop() if len(words) == 1 else "WARN"
    sentence = " ".join(judgement.sentence() for judgement in judgements)
    return Outcome(name, word, sentence, tuple(judgements), next_command, facts)


def view(outcome: Outcome) -> View:
    """Return the outcome block."""
    look = OUTCOMES[outcome.word]
    following = f'<p class="next">Next: <code>{escape(outcome.next)}</code></p>' if outcome.next else ""
    facts = f'<p class="facts">{escape(outcome.facts)}</p>' if outcome.facts else ""
    html = (
        f'<style>{CSS}</style><div class="outcome" role="status" '
        f'style="background:{look.ground};border-color:{look.colour}">'
        f'<div class="sign" style="background:{look.colour}" aria-hidden="true"><svg width="22" height="22" '
        f'viewBox="0 0 24 24" fill="none" stroke="{PAPER}" stroke-width="3" stroke-linecap="round">'
        f'<path d="{look.sign}"/></svg></div><div class="body">'
        f'<p class="word" style="color:{look.colour}">{outcome.word}<small>{escape(outcome.name)}</small></p>'
        f"<p>{escape(outcome.sentence)}</p>{following}{facts}</div></div>"
    )
    text = f"{outcome.name}: {outcome.word}. {outcome.sentence}" + (f" Next: {outcome.next}" if outcome.next else "")
    return View(html, text)
