"""config.yaml as flat settings, five thousand files in a fraction of a second.

Two runs share most lines of their configs. So a file is cut into blocks at its top-level keys, and a block that was
seen before is not read again. The quick reader knows only the plain YAML that `config.save` writes; any other file goes
through the real parser, where that is installed, and is told to be unread where it is not.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from ocrlab.errors import ConfigError

BLOCK = re.compile(r"\n(?=[^\s-])")  # before a line that is not indented, and is no item of a list
KEY = re.compile(r"(?P<indent> *)(?:'(?P<quoted>\w+)'|(?P<plain>[A-Za-z_][\w.]*)):(?: (?P<value>\S.*))?")
ITEM = re.compile(r"(?P<indent> *)- (?P<value>\S.*)")
NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(?P<fraction>\.\d*(?:e[+-]\d{1,3})?)?")
QUOTED = re.compile(r"'((?:[^']|'')*)'")
# A plain scalar that begins like a word or a path is a text, unless it is one of YAML 1.1's words or has `: ` or ` #`.
TEXT = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)(?:[^\W\d]|/|~/|\.(?!(?:inf|nan)$|\d))"
    r"(?!.*(?:: |:$| #|\s$))[^\x00-\x1f]*",
    re.IGNORECASE,
)
WORDS = {"true": True, "false": False, "null": None}

Value = Any  # None, bool, int, float, str, or a tuple of them
Settings = dict[str, Value]


class NotPlain(Exception):
    """This YAML is not of the plain kind that `config.save` writes."""


def parse(text: str, path: str = "config.yaml") -> Settings:
    """Return the dotted settings of a config, lists as tuples, without `schema`; raises ConfigError."""
    found: Settings = {}
    try:
        blocks = [_block(block) for block in BLOCK.split(text) if block]
        for block in blocks:
            found.update(block)
        if len(found) < sum(map(len, blocks)):
            raise NotPlain  # given twice: the real parser says so
    except NotPlain:
        found = _parsed(path)
    found.pop("schema", None)
    return found


@lru_cache(maxsize=65536)
def _block(text: str) -> Settings:
    """Return the settings of one top-level key; raises NotPlain. The same text is read only once."""
    lines = text.rstrip("\n").split("\n")
    first = _key(lines[0], 0)
    if len(lines) == 1:
        if first["value"] is None:
            raise NotPlain
        return {_name(first): scalar(first["value"])}
    if first["value"] is not None:
        raise NotPlain
    if lines[1].startswith("- "):
        return {_name(first): _items(lines[1:], 0)}
    return _section(_name(first), lines[1:])


def _section(name: str, lines: list[str]) -> Settings:
    """Return the settings of the lines below a section's name, each with two spaces before it."""
    found: Settings = {}
    at = 0
    while at < len(lines):
        key = _key(lines[at], 2)
        end = at + 1
        while end < len(lines) and lines[end].startswith("  - "):
            end += 1
        if (key["value"] is None) != (end > at + 1):
            raise NotPlain
        dotted = f"{name}.{_name(key)}"
        if dotted in found:
            raise NotPlain
        found[dotted] = scalar(key["value"]) if key["value"] is not None else _items(lines[at + 1 : end], 2)
        at = end
    return found


def scalar(text: str) -> Value:
    """Return a plain or single-quoted YAML scalar; raises NotPlain for any other."""
    if text in WORDS:
        return WORDS[text]
    number = NUMBER.fullmatch(text)
    if number:
        return float(text) if number["fraction"] else int(text)
    quoted = QUOTED.fullmatch(text)
    if quoted:
        return quoted[1].replace("''", "'")
    if TEXT.fullmatch(text):
        return text
    raise NotPlain


def said(text: str) -> Value:
    """Return a value as somebody wrote it on the command line: `1e-3` is a number, `none` nothing, all else text."""
    lower = text.lower()
    if lower in ("none", "null", "~"):
        return None
    if lower in ("true", "false"):
        return lower == "true"
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
    except ValueError:
        return text


def _key(line: str, indent: int) -> re.Match[str]:
    found = KEY.fullmatch(line)
    if found is None or len(found["indent"]) != indent:
        raise NotPlain
    return found


def _name(key: re.Match[str]) -> str:
    return str(key["quoted"] or key["plain"])


def _items(lines: list[str], indent: int) -> tuple[Value, ...]:
    matches = [ITEM.fullmatch(line) for line in lines]
    if any(item is None or len(item["indent"]) != indent for item in matches):
        raise NotPlain
    return tuple(scalar(item["value"]) for item in matches if item)


def _parsed(path: str) -> Settings:
    """Return the settings of a file through the real parser; raises ConfigError, also where it is not installed."""
    try:
        from ocrlab.settings import overrides
    except ImportError:
        raise ConfigError(f"{path} needs a YAML parser", do="pip install 'ocrlab[train]' brings it") from None
    found: Settings = {}
    for one in overrides.from_yaml(Path(path)):
        if isinstance(one.value, list):
            found[one.key] = tuple(said(str(item)) for item in one.value)
        else:
            found[one.key] = str(one.value) if one.quoted else said(str(one.value))
    return found
