"""What must not stand in a notebook, report or result: secrets, and the names of this person's home and host."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

PASSWORDS = r"passwords?|passwd|passphrase|pwd|secrets?|credentials?"
WORDS = rf"{PASSWORDS}|token|auth|bearer|apikeys?|[a-z0-9]+[_-]keys?"
SECRET = re.compile(rf"(?:^|[_.\-])(?:{WORDS})(?:$|[_.\-\d])", re.IGNORECASE)
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
CREDENTIALS = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,20}://)[^/\s@'\"]+@", re.IGNORECASE)
FOLDERS = ("PWD", "OLDPWD")  # of the shell, not passwords
SHORTEST = 8  # characters; a shorter secret would be found inside ordinary words

# Secrets that show by their shape: each begins with what its issuer puts in front, so that no hash or word is one.
SHAPES = re.compile(
    r"(?<![A-Za-z0-9_-])(?:sk-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])|xox[abeprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]{6,})"
)
PRIVATE = re.compile(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)[A-Za-z0-9+/=\s\\]+")
HEADER = re.compile(r"(authorization\\{0,3}[\"']?\s{0,4}[:=]\s{0,4}\\{0,3}[\"']?)(\w+ +)?([^\s\"',\\]+)", re.IGNORECASE)
BEARER = re.compile(r"(\bbearer +)(?=[^\s\"',\\]*\d)[^\s\"',\\]{12,}", re.IGNORECASE)

# `name = value` in any spelling. The name is matched once, without a way back (the lookahead), so that time is linear.
NAMED = re.compile(
    r"(?<![\w.])(?<![\w.]-)(?=(?P<name>[A-Za-z_][\w.-]{0,79}))(?P=name)\\{0,3}[\"']?\]?"
    r"(?:\s{0,4}:\s{0,4}(?:str|bytes|Any|SecretStr)(?: ?\| ?None)?\s{0,4}=(?!=)"
    r"|[ \t]{0,4}(?:==?>?|:=|:(?!:|//)))[ \t]{0,4}"
)
OPTION = re.compile(
    r"(?<![\w-])(?:--|-[pr][\s\"',]{1,4})(?P<name>[A-Za-z_][\w.-]{0,79})(?:\\{0,3}[\"'],\s?|[ \t]{1,4})(?!-)"
)
VALUE = re.compile(
    r"[bfru]?(?P<quote>\\{0,3}[\"'])(?P<inside>[^\n]*?)(?P=quote)|\\{0,3}[\"']?(?P<bare>[^\s\"'&\\]{1,200})"
)
REST = re.compile(r"[^\s\"'&\\]*")
AT_THE_END = re.compile(rf"(?:{PASSWORDS})(?![a-z])|(?:^|[_-])(?:{WORDS})[_\d]*$", re.IGNORECASE)
# Names of the parts of a text, a model or a mapping, and values that are code, markers or nothing.
ORDINARY = re.compile(
    r"(?:^|[_-])(?:pad|eos|bos|unk|sep|cls|class|mask|special|image|img|start|end|stop|first|last|next|prev|previous|new|per"
    r"|num|n|max|added|blank|begin|input|output|word|char|pos|reg|register|query|prompt|patch|sot|eot|unexpected|invalid|dist)"
    r"[_-]token$|(?:^|[_-])(?:sort|primary|foreign|missing|unexpected|extra|dict|state|group|cache|index|data|batch|metric|num"
    r"|n|label|image|row|column|public|partition|input|output|dispatch|wait|target|required|unknown|param|config)[_-]keys?$",
    re.IGNORECASE,
)
NUMBER = re.compile(r"[-+]?[\d.]{1,9}(?:e-?\d+)?(?:[,;:)\]}].*)?$")
NOTHING = re.compile(
    r"(?:none|null|nil|true|false|str|bytes|int|any|self|\*+|\.\.\.)?[,;:.)\]}]*$|<[^>]*>|\[|\{|\(\w+\)|[A-Za-z_][\w.]*[(\[]",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return True if a parameter or environment variable is named like a secret: `wandb_api_key`, `dbPassword`."""
    return SECRET.search(HUMPS.sub("_", name)) is not None


def clean(value: Any) -> Any:
    """Return `value` (text, or texts in dicts and lists) with secrets, home folder and host name replaced."""
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, Mapping):
        return {clean(key): "(secret)" if is_secret(str(key)) else clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_item(value, index) for index in range(len(value))]
    return str(clean(str(value))) if isinstance(value, Path) else value


def _clean_item(items: Sequence[Any], index: int) -> Any:
    """Clean one of several: in a command line `--api-key`, `xyz` the second is known by the first only."""
    before = items[max(0, index - 2) : index]
    if isinstance(items[index], str) and before and all(isinstance(item, str) for item in before):
        named = OPTION.search(" ".join(before) + " ")
        if named and named.end() > len(" ".join(before)) and _hides(named["name"], items[index]):
            return "(secret)"
    return clean(items[index])


def _clean_text(text: str) -> str:
    for name, secret in os.environ.items():
        if len(secret) >= SHORTEST and secret in text and is_secret(name) and name not in FOLDERS:
            text = text.replace(secret, f"({name})")
    text = CREDENTIALS.sub(r"\g<scheme>(secret)@", text)
    text = HEADER.sub(_header, text)
    text = BEARER.sub(r"\1(secret)", text)
    text = PRIVATE.sub(r"\1 (secret) ", text)
    text = SHAPES.sub("(secret)", text)
    text = _without_named(OPTION, _without_named(NAMED, text))
    home = os.path.expanduser("~").rstrip("/")
    if home.startswith("/"):
        text = re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)
    host = socket.gethostname()
    if len(host) > 3 and host != "localhost":
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "(host)", text)
    return text


def _header(found: re.Match[str]) -> str:
    """Return an Authorization header without what follows its scheme; a word of prose after the colon stays."""
    start, scheme, value = found.group(1), found.group(2) or "", found.group(3)
    if scheme.strip().lower() in ("bearer", "basic", "token", "digest", "apikey", "negotiate"):
        return f"{start}{scheme}(secret)"
    return found.group() if scheme or len(value) < SHORTEST else f"{start}(secret)"


def _without_named(pattern: re.Pattern[str], text: str) -> str:
    """Replace the values that `pattern` names as secret; the value is read only then, as it may be a name itself."""
    parts, done = [], 0
    for found in pattern.finditer(text):
        if found.start() < done or not _names_secret(found["name"]):
            continue
        value = VALUE.match(text, found.end())
        if value is None:
            continue
        group = "inside" if value["bare"] is None else "bare"
        if not _hides(found["name"], value[group]):
            continue
        parts += [text[done : value.start(group)], "(secret)"]
        done = value.end(group)
        if group == "bare":
            rest = REST.match(text, value.start(group))
            assert rest is not None, "it matches nothing too"
            done = rest.end() - (len(rest.group()) - len(rest.group().rstrip(",;)]}")))
    return "".join(parts) + text[done:] if parts else text


@lru_cache(maxsize=4096)
def _names_secret(name: str) -> bool:
    """Return True if the value after `name` is a secret: stricter than is_secret, as texts hold tokens and keys."""
    last = HUMPS.sub("_", name.rpartition(".")[2])
    return (
        is_secret(last)
        and AT_THE_END.search(last) is not None
        and ORDINARY.search(last) is None
        and name not in FOLDERS
    )


def _hides(name: str, value: str) -> bool:
    if not _names_secret(name) or NOTHING.match(value):
        return False
    return re.search(PASSWORDS, name, re.IGNORECASE) is not None or NUMBER.match(value) is None
