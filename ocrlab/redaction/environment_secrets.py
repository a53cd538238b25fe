"""Secrets that this machine knows by their value: those of the environment, in every spelling that a text may have."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from urllib.parse import unquote

from ocrlab.redaction.named_secrets import FOLDERS, is_secret
from ocrlab.redaction.text_spans import Find, Span

SHORTEST = 8  # characters; a shorter secret would be found inside ordinary words
WRAPPED = 12  # from so many on it is also found where a line was broken inside it
# Names of secret variables besides those of `is_secret`.
ALSO = re.compile(r"_(?:PAT|DSN|CONN|CONN_STR|SAS|PSK|WEBHOOK_URL)$")
IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^\s@]{8,})@")
BREAK = r"(?:[ \t│┃|>]{0,60}(?:\r?\n|\\{1,4}n)[ \t│┃|>]{0,60})?"
ENTITIES = {"&": ("amp",), "<": ("lt",), ">": ("gt",), '"': ("quot",), "'": ("apos",), " ": ("nbsp",)}  # in HTML
ESCAPES = {"\n": "n", "\r": "r", "\t": "t"}


def finder() -> Find:
    """Return what finds the values of the secret variables that the environment has now."""
    return partial(_spans, secrets=_secrets(tuple(os.environ.items())))


def _spans(text: str, secrets: tuple[tuple[str, str], ...]) -> Iterator[Span]:
    """Yield where the value of a secret variable stands; `(NAME)` replaces it, line breaks stay."""
    lower = text.lower() if secrets else ""
    for name, value in secrets:
        for spelt in _encoded(value):
            at = text.find(spelt)
            while at >= 0:
                yield at, at + len(spelt), f"({name})"
                at = text.find(spelt, at + len(spelt))
        if _core(value) in lower:
            yield from ((*match.span(), f"({name})") for match in _spelled(value).finditer(text))
        if len(value) >= WRAPPED and ("\n" in text or "\\n" in text):
            for match in _broken(value).finditer(text):
                yield *match.span(), f"({name})" + "\n" * match.group().count("\n")


@lru_cache(maxsize=8)
def _secrets(environment: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return name and value of the secret variables, and of the passwords inside addresses such as HTTP_PROXY."""
    secrets: list[tuple[str, str]] = []
    for name, value in environment:
        value = value.strip()
        named = name not in FOLDERS and (is_secret(name) or ALSO.search(name))
        if named and len(value) >= SHORTEST and _looks_random(value):
            secrets.append((name, value))
        address = IN_ADDRESS.search(value)
        if address:
            secrets += [(name, password) for password in {address[1], unquote(address[1])}]
    return tuple(sorted(secrets, key=lambda pair: -len(pair[1])))


def _looks_random(value: str) -> bool:
    """Return whether a value can be a secret, unlike `filesystem`, the path of an existing file, and 32768000."""
    if value.startswith(("/", "~")):
        return not os.path.exists(os.path.expanduser(value))
    return not (value.islower() and value.isalpha() and len(value) < 16) and not (value.isdigit() and len(value) < 12)


@lru_cache(maxsize=256)
def _encoded(value: str) -> tuple[str, ...]:
    """Return the base64 of a value after 0, 1 and 2 bytes, as far as it depends on the value only."""
    once = set()
    for before in range(3):
        data = b"\0" * before + value.encode("utf-8", "surrogateescape")
        whole = base64.b64encode(data[: len(data) - len(data) % 3]).decode()[(before * 4 + 2) // 3 :]
        once |= {whole, whole.replace("+", "-").replace("/", "_")}
    return tuple(sorted((spelt for spelt in once if len(spelt) >= SHORTEST), key=len, reverse=True))


@lru_cache(maxsize=256)
def _core(value: str) -> str:
    """Return the longest part of a value that is spelled in one way only, in lower case."""
    return max(re.findall(r"[A-Za-z0-9]+", value) or [""], key=len).lower()


@lru_cache(maxsize=256)
def _spelled(value: str) -> re.Pattern[str]:
    """Return what finds a value as it is, and as addresses, JSON, repr, HTML and any of these in another spell it."""
    return re.compile("".join(map(_character, value)), re.IGNORECASE)


@lru_cache(maxsize=256)
def _broken(value: str) -> re.Pattern[str]:
    """Return what finds a value inside which a line was broken."""
    return re.compile(BREAK.join(map(_character, value)))


@lru_cache(maxsize=1024)
def _character(letter: str) -> str:
    """Return a pattern of all that one character is spelled as."""
    if letter.isascii() and letter.isalnum():
        return letter
    code = ord(letter)
    octets = "".join(f"%(?:25)?{octet:02x}" for octet in letter.encode("utf-8", "surrogateescape"))
    entities = "|".join([f"#0*{code}", f"#x0*{code:x}", *ENTITIES.get(letter, ())])
    units = letter.encode("utf-16-be", "surrogatepass")
    words = r"\\{1,8}".join(f"u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    after = [*([f"x{code:02x}"] if code < 0x100 else []), words, *ESCAPES.get(letter, "")]
    space = r"|\+" if letter == " " else ""
    return (
        rf"(?:\\{{0,8}}(?:{re.escape(letter)}|(?i:{octets}|&(?:amp;)*(?:{entities});){space})"
        rf"|\\{{1,8}}(?i:{'|'.join(after)}))"
    )
