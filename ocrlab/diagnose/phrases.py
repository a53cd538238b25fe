"""What a person says of a failure, compared with the phrases of each cause in any order, form or language.

Nothing is proved by it: the phrases only add weight to the causes that `complaint` ranks.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ocrlab.diagnose import catalogue, prose

FILE = Path(__file__).with_name("phrases.toml")
CJK = 0x2E7F  # from here on words are written without a space
WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]+|[^\W_\u2e80-\u9fff\uac00-\ud7af]+|[.,;:!?\n]")
BYTES = re.compile(r"\b\d{1,3}(?:\.\d+)? ?([mg])(?:i?b)?\b")  # how many it is tells little: 8G, 11GB, 500 MiB
UNABLE, NOT = re.compile(r"\bcan(?:['’]?t|not)\b"), re.compile(r"n['’]t\b")
WINDOW, STRIDE = 36, 12  # words that stand close together
ENOUGH = 0.5  # of a phrase's weight must be said; what is left out counts against it, squared
SURELY, CALMLY = 0.75, 0.6  # of one, where it is doubtful that a person speaks, and where no word tells of trouble
LEAST = 3.0  # weight of a phrase below which it says nothing by itself
FURTHER = 0.3  # what another phrase of the same cause adds
ENDINGS = ("ings", "ing", "edly", "ed", "es", "ly", "s")
STOP = frozenset(
    "a an the is are was were be been am of to in on at for with and or but my i we it its this that these those our me"
    " you your they he so as by from into if do did does done has have had can could will would should may might just"
    " only very also there here then than when while which who what how why all any some one two get gets got use using"
    " uses used make makes made because during about out up off even though although still yet more most much many too"
    " after before since until like seem seems try tried trying want need please help thanks hi hello run runs running"
    " ran program script code py python".split()
)
# What is slow or not as good as elsewhere is no failure by itself.
QUALITY = re.compile(
    r"(?i)\b(?:speeds?|throughput|faster|utili[sz]ation|accurac(?:y|ies)|precision|recall|results?|scores?|reproduc\w+|papers?)\b"
)
DENIES = {"not": "fail", "never": "fail", "no": "miss", "without": "miss", "nor": "fail"}  # and what else they tell of
DENIED = 3  # words, after one that denies, of which a symptom is denied
SYMPTOMS = frozenset(("hang", "deadlock", "gone", "oom", "grow", "nan", "leak", "segfault", "fail", "abort", "timeout"))
GRAVE = SYMPTOMS - {"fail", "abort", "timeout"}  # one is not told for another


@dataclass(frozen=True)
class Phrases:
    """The phrases of each cause as sets of words, what a word weighs, and how words are made one."""

    said: dict[str, tuple[frozenset[str], ...]]
    weight: dict[str, float]
    same: dict[str, str]
    together: re.Pattern[str]
    joined: dict[str, str]
    trouble: frozenset[str]


def _stem(word: str) -> str:
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)]
            break
    word = word[:-1] if len(word) > 3 and word.endswith("e") else word
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1].isalpha() else word


@functools.cache
def load() -> Phrases:
    """Return the phrases of the file."""
    with FILE.open("rb") as file:
        found = catalogue.tomllib.load(file)
    same: dict[str, str] = {}
    joined: dict[str, str] = {}
    for one, words in found["same"].items():
        single, *several = words.split(",")
        for word in (one, *single.split(), *map(str.strip, several)):
            if " " in word or ord(word[0]) > CJK:
                joined[word] = one
            else:
                same[_stem(word)] = one
    ascii_ones = sorted((re.escape(word) for word in joined if ord(word[0]) <= CJK), key=len, reverse=True)
    others = sorted((re.escape(word) for word in joined if ord(word[0]) > CJK), key=len, reverse=True)
    together = re.compile(rf"(?<!\w)(?:{'|'.join(ascii_ones)})(?!\w)|(?:{'|'.join(others)})")
    trouble = frozenset(same.get(stem, stem) for stem in map(_stem, found["trouble"].split()))
    made = Phrases({}, {}, same, together, joined, trouble)
    spread: dict[str, set[str]] = defaultdict(set)
    for cause, text in found["said"].items():
        made.said[cause] = tuple({frozenset(_words(part, made)) for part in text.split(";")} - {frozenset()})
        for word in frozenset().union(*made.said[cause]):
            spread[word].add(cause)
    made.weight.update({word: math.log(len(made.said) / len(causes)) for word, causes in spread.items()})
    return made


def _words(text: str, known: Phrases) -> list[str]:
    text = NOT.sub(" not", UNABLE.sub("can not", prose.STUCK.sub("", text.lower())))
    text = BYTES.sub(r" \1b ", text)
    text = text.replace("_", " ").replace("-", " ").replace("/", " ")
    text = known.together.sub(lambda found: f" {known.joined[found[0]]} ", text)
    plain = [word for word in WORD.findall(text) if word not in STOP and not (len(word) == 1 and word.isdigit())]
    ones = [known.same.get(stem, stem) for stem in map(_stem, plain)]
    made, denied = list[str](), -1
    for at, (word, one) in enumerate(zip(plain, ones, strict=True)):
        if word in DENIES:
            denied = next((to for to in range(at + 1, min(at + 1 + DENIED, len(ones))) if ones[to] in SYMPTOMS), -1)
            made += [] if denied > 0 else [DENIES[word]]
        elif at != denied and word[0].isalnum():
            made.append(one)
    return made


def scores(text: str, *, doubtful: bool = False) -> dict[str, float]:
    """Return how much of what a person wrote is like the phrases of each cause.

    A mere question, and a text of which it is `doubtful` that somebody complains in it, must tell of some trouble.
    """
    known = load()
    words = _words(text, known)
    calm = not known.trouble.intersection(words)
    if calm and (doubtful or prose.ASKS.match(text) or QUALITY.search(text)):
        return {}
    windows = [frozenset(words[at : at + WINDOW]) for at in range(0, max(1, len(words) - WINDOW + STRIDE), STRIDE)]
    no_worse = QUALITY.search(text) is not None and not GRAVE.intersection(words)
    enough = SURELY if doubtful or no_worse else CALMLY if calm else ENOUGH
    found: dict[str, float] = {}
    for cause, phrases in known.said.items():
        best = sorted((max(_held(one, window, known, enough) for window in windows) for one in phrases), reverse=True)
        score = best[0] + FURTHER * sum(best[1:3])
        if score > 0:
            found[cause] = score
    return found


def _held(phrase: frozenset[str], window: frozenset[str], known: Phrases, enough: float) -> float:
    """Return the weight of a phrase that stands in a window: enough of it, its symptoms, and for other trouble some."""
    if not GRAVE & phrase <= window or (known.trouble & phrase and not known.trouble & window):
        return 0.0
    if GRAVE & window and "fail" in phrase and "fail" not in window and not GRAVE & phrase:
        return 0.0  # what stands still or is gone has not failed with an error
    held = phrase & window
    whole = sum(known.weight[word] for word in phrase)
    said = sum(known.weight[word] for word in held)
    if whole < LEAST or said < enough * whole or len(held) < min(2, len(phrase)):
        return 0.0
    return said * (said / whole) ** 2
