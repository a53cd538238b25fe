"""The outcome block: one word, in colour, sign and text; silence is never green."""

from __future__ import annotations

import math

import pytest

from ocrlab.reports.notebooks.outcome import OUTCOMES, Judgement, Outcome, judged, view


@pytest.mark.parametrize(
    ("value", "word"),
    [(0.85, "PASS"), (0.99, "PASS"), (0.849, "WARN"), (0.7, "WARN"), (0.699, "FAIL"), (math.nan, "FAIL")],
)
def test_a_number_against_its_limits(value: float, word: str) -> None:
    judgement = Judgement("hmean@0.5", value, 0.85, 0.7)
    assert judgement.word == word
    assert "0.85" in judgement.sentence()
    assert judged("n", [judgement]).word == word


def test_some_limits_met_is_a_warning() -> None:
    good, bad = Judgement("a", 1, 0.5, 0.5), Judgement("b", 0, 0.5, 0.5)
    assert judged("n", [good, good]).word == "PASS"
    assert judged("n", [good, bad]).word == "WARN"
    assert judged("n", [bad, bad]).word == "FAIL"


def test_nothing_judged_stays_incomplete() -> None:
    assert judged("n", []).word == "INCOMPLETE"


@pytest.mark.parametrize("word", OUTCOMES)
def test_the_block_says_its_word_in_colour_sign_and_text(word: str) -> None:
    shown = view(Outcome("03_train", word, "A <b> sentence.", next="ocrlab train"))
    for part in (word, OUTCOMES[word].colour, OUTCOMES[word].sign, "A &lt;b&gt; sentence.", "ocrlab train", "03_train"):
        assert part in shown.html
    assert shown.text == f"03_train: {word}. A <b> sentence. Next: ocrlab train"


def test_text_is_readable_on_its_ground() -> None:
    """Contrast of at least 4.5 (WCAG 2.1, AA)."""
    for look in OUTCOMES.values():
        dark, light = sorted((luminance(look.colour), luminance(look.ground)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def luminance(colour: str) -> float:
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_only_shares_have_a_gauge() -> None:
    assert "gauge" in view(judged("n", [Judgement("hmean", 0.9, 0.85, 0.7)])).html.partition("</style>")[2]
    assert "gauge" not in view(judged("n", [Judgement("seconds", 9, 5, 1, "s")])).html.partition("</style>")[2]
