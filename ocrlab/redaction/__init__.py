"""Replace what must not be shared: secrets, private addresses, and the names of a person and a machine.

    clean(value)             text, or texts in dicts and lists, with all of that replaced
    clean_and_count(value)   the same, and how many places were replaced
    clean_record(mapping)    a JSON record, clean, with that number in it as "redacted"
    note(count)              the sentence about it for whoever shares a text
    is_secret(name)          whether a parameter or environment variable has a name like a secret

The replacements are `(secret)`, `(WANDB_API_KEY)` for the value of that variable, `~` for this person's home, `(user)`,
`(host)` and `(address)`. Standard library only; the time is linear in the length of a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.redaction import environment_secrets, named_secrets, private_addresses, token_patterns, user_and_host_names
from ocrlab.redaction.named_secrets import hides, is_secret
from ocrlab.redaction.text_spans import SECRET, Find, replace_spans

__all__ = ["clean", "clean_and_count", "clean_record", "is_secret", "note"]

Finders = tuple[Find, ...]


def clean(value: Any) -> Any:
    """Return `value` (text, or texts in dicts and lists) with secrets and the names of person and machine replaced."""
    return clean_and_count(value)[0]


def clean_and_count(value: Any) -> tuple[Any, int]:
    """Return `value` as `clean` does, and how many stretches of text were replaced in it."""
    by_shape = (token_patterns.spans, named_secrets.spans, private_addresses.spans)
    return _clean_value(value, (environment_secrets.finder(), *by_shape, user_and_host_names.finder()))


def clean_record(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record for a file that is shared: clean, and with the number of replacements in it as `redacted`."""
    cleaned, count = clean_and_count({key: item for key, item in value.items() if key != "redacted"})
    before = value.get("redacted")  # of an earlier cleaning
    return {**cleaned, "redacted": count + (before if isinstance(before, int) else 0)}


def note(count: int) -> str:
    """Return the sentence in every file that may be shared: how many values were replaced in it, 0 included."""
    values = "1 value" if count == 1 else f"{count} values"
    kinds = "secrets, private addresses, names of people and machines, your home folder"
    return f"{values} replaced ({kinds}). Review before sharing."


def _clean_value(value: Any, finders: Finders) -> tuple[Any, int]:
    if isinstance(value, str):
        return replace_spans(value, finders) if len(value) > 2 else (value, 0)
    if isinstance(value, Mapping):
        return _clean_mapping(value, finders)
    if isinstance(value, list | tuple):
        pairs = [_clean_item(value, index, finders) for index in range(len(value))]
        return [item for item, _ in pairs], sum(count for _, count in pairs)
    return _clean_value(str(value), finders) if isinstance(value, Path) else (value, 0)


def _clean_mapping(value: Mapping[Any, Any], finders: Finders) -> tuple[dict[Any, Any], int]:
    """Clean keys and values; what a secret's name maps to is one, unless it is nothing, a yes or no, or a fraction."""
    cleaned, total = {}, 0
    for key, item in value.items():
        name, count = _clean_value(key, finders)
        if is_secret(str(key)) and not isinstance(item, bool | float | type(None)) and item not in ("", SECRET):
            cleaned[name], more = SECRET, 1
        else:
            cleaned[name], more = _clean_value(item, finders)
        total += count + more
    return cleaned, total


def _clean_item(items: Sequence[Any], index: int, finders: Finders) -> tuple[Any, int]:
    """Clean one of several: in a command line `--api-key`, `xyz` only the first shows that the second is a secret."""
    before = items[max(0, index - 2) : index]
    if isinstance(items[index], str) and before and all(isinstance(item, str) for item in before):
        joined = " ".join(before) + " "
        option = named_secrets.OPTION.search(joined)
        if option and option.end() >= len(joined) and hides(option["name"], items[index]):
            return SECRET, int(items[index] != SECRET)
    return _clean_value(items[index], finders)
