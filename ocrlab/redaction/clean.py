"""Texts, and texts inside dicts and lists, without what must not be shared; and how many such things there were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.redaction import environment_secrets, named_secrets, private_addresses, token_patterns, user_and_host_names
from ocrlab.redaction.replace import Find, replaced
from ocrlab.redaction.secret_names import hides, is_secret

SECRET = "(secret)"
Finders = tuple[Find, ...]


def clean(value: Any) -> Any:
    """Return `value` (text, or texts in dicts and lists) with secrets and the names of person and machine replaced."""
    return counted(value)[0]


def counted(value: Any) -> tuple[Any, int]:
    """Return `value` as `clean` does, and how many stretches of text were replaced in it."""
    return _of(
        value,
        (
            environment_secrets.finder(),
            token_patterns.spans,
            named_secrets.spans,
            private_addresses.spans,
            user_and_host_names.finder(),
        ),
    )


def record(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record for a file that is shared: clean, and with the number of replacements in it as `redacted`."""
    cleaned, count = counted({key: item for key, item in value.items() if key != "redacted"})
    before = value.get("redacted")  # it may have been clean already
    return {**cleaned, "redacted": count + (before if isinstance(before, int) else 0)}


def _of(value: Any, finders: Finders) -> tuple[Any, int]:
    if isinstance(value, str):
        return replaced(value, finders) if len(value) > 2 else (value, 0)
    if isinstance(value, Mapping):
        return _of_mapping(value, finders)
    if isinstance(value, list | tuple):
        pairs = [_of_item(value, index, finders) for index in range(len(value))]
        return [item for item, _ in pairs], sum(count for _, count in pairs)
    return _of(str(value), finders) if isinstance(value, Path) else (value, 0)


def _of_mapping(value: Mapping[Any, Any], finders: Finders) -> tuple[dict[Any, Any], int]:
    """Clean keys and values; what a secret's name maps to is one, unless it is nothing, a yes or no, or a fraction."""
    cleaned, total = {}, 0
    for key, item in value.items():
        name, count = _of(key, finders)
        if is_secret(str(key)) and not isinstance(item, bool | float | type(None)) and item not in ("", SECRET):
            cleaned_item, more = SECRET, 1
        else:
            cleaned_item, more = _of(item, finders)
        cleaned[name] = cleaned_item
        total += count + more
    return cleaned, total


def _of_item(items: Sequence[Any], index: int, finders: Finders) -> tuple[Any, int]:
    """Clean one of several: in a command line `--api-key`, `xyz` the second is known by the first only."""
    before = items[max(0, index - 2) : index]
    if isinstance(items[index], str) and before and all(isinstance(item, str) for item in before):
        joined = " ".join(before) + " "
        option = named_secrets.OPTION.search(joined)
        if option and option.end() >= len(joined) and hides(option["name"], items[index]):
            return SECRET, int(items[index] != SECRET)
    return _of(items[index], finders)
