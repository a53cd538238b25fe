"""Secrets that this machine knows by their value: those of the environment, in every spelling that a text may have."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from urllib.parse import quote, quote_plus, unquote

from ocrlab.redact.spans import Find, Span
from ocrlab.redact.words import FOLDERS, is_secret

SHORTEST = 8  # characters; a shorter secret would be found inside ordinary words
WRAPPED = 12  # from so many on it is also found where a line was broken inside it
ALSO = re.compile(r"_(?:PAT|DSN|CONN|CONN_STR|SAS|PSK|WEBHOOK_URL)$")  # names of variables, besides `words.SECRET`
IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^\s@]{8,})@")
BREAK = r"(?:[ \t│┃|>]{0,60}\r?\n[ \t│┃|>]{0,60})?"


def finder() -> Find:
    """Return what finds the values of the secret variables that the environment has now."""
    return partial(_spans, secrets=_secrets(tuple(os.environ.items())))


def _spans(text: str, secrets: tuple[tuple[str, str], ...]) -> Iterator[Span]:
    """Yield where the value of a secret variable stands; `(NAME)` replaces it, line breaks stay."""
    for name, value in secrets:
        for spelt in _spellings(value):
            at = text.find(spelt)
            while at >= 0:
                yield at, at + len(spelt), f"({name})"
                at = text.find(spelt, at + len(spelt))
        if len(value) >= WRAPPED and "\n" in text:
            for found in _broken(value).finditer(text):
                yield found.start(), found.end(), f"({name})" + "\n" * found.group().count("\n")


@lru_cache(maxsize=8)
def _secrets(environment: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return name and value of the secret variables, and of the passwords inside addresses such as HTTP_PROXY."""
    found: list[tuple[str, str]] = []
    for name, value in environment:
        value = value.strip()
        if name not in FOLDERS and (is_secret(name) or ALSO.search(name)) and len(value) >= SHORTEST and _drawn(value):
            found.append((name, value))
        inside = IN_ADDRESS.search(value)
        if inside:
            found += [(name, one) for one in {inside[1], unquote(inside[1])}]
    return tuple(sorted(found, key=lambda pair: -len(pair[1])))


def _drawn(value: str) -> bool:
    """Tell whether a value can be a secret: `filesystem`, the path of a file that is there, and 32768000 are none."""
    if value.startswith(("/", "~")):
        return not os.path.exists(os.path.expanduser(value))
    return not (value.islower() and value.isalpha() and len(value) < 16) and not (value.isdigit() and len(value) < 12)


@lru_cache(maxsize=256)
def _spellings(value: str) -> tuple[str, ...]:
    """Return a value as it is, percent-encoded, as in JSON, repr and HTML, and in base64 behind 0, 1 and 2 bytes."""
    dumped = (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    once = {
        value,
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        *dumped,
        repr(value)[1:-1],
        html.escape(value),
    }
    once |= {quote(value, safe="").lower() if "%" in quote(value, safe="") else value, dumped[0].replace("/", "\\/")}
    once |= {html.escape(value).replace("&#x27;", "&#39;"), dumped[0].replace("\\", "\\\\")}
    for before in range(3):
        data = b"\0" * before + value.encode("utf-8", "surrogateescape")
        whole = base64.b64encode(data[: len(data) - len(data) % 3]).decode()[(before * 4 + 2) // 3 :]
        once |= {whole, whole.replace("+", "-").replace("/", "_")}
    return tuple(sorted((spelt for spelt in once if len(spelt) >= SHORTEST), key=len, reverse=True))


@lru_cache(maxsize=256)
def _broken(value: str) -> re.Pattern[str]:
    return re.compile(BREAK.join(map(re.escape, value)))
