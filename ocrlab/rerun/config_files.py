"""Two config files of any program, one with which it fails and one with which it does not: each key is a factor."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ocrlab.errors import ConfigError
from ocrlab.rerun import samples
from ocrlab.rerun.factors import Factor

ENDINGS = (".json", ".yaml", ".yml", ".toml")
ABSENT = "(absent)"
LONGEST = 40  # characters of a value in words


def split(found: Iterable[Factor]) -> list[Factor]:
    """Return factors, those that are two config files taken apart into the keys in which they differ."""
    every: list[Factor] = []
    for one in found:
        paths = [Path(side) for side in (one.bad, one.good)]
        if all(path.suffix.lower() in ENDINGS and path.is_file() for path in paths):
            every += _keys(one.name, *paths)
        else:
            every.append(one)
    names = [one.name for one in every]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"Two factors are called {twice}", need="each name once: a key of a config file is one too")
    return every


def written(factors: Iterable[Factor], flipped: Iterable[Factor], place: Path) -> dict[str, str]:
    """Write each config file with its flipped keys set below `place`; return where, by the name of its factor."""
    found: dict[str, str] = {}
    turned = [one.job for one in flipped if "file" in one.job]
    for job in {one.job["file"]: one.job for one in factors if "file" in one.job}.values():
        content, path = copy.deepcopy(_read(Path(job["path"]))), Path(job["path"])
        for flip in (one for one in turned if one["file"] == job["file"]):
            _set(content, flip["keys"], flip["good"])
        found[job["file"]] = samples.beside(path, _text(content, path.suffix.lower()), place / job["file"])
    return found


def _keys(name: str, bad: Path, good: Path) -> Iterator[Factor]:
    left, right = (dict(_flat(_read(path))) for path in (bad, good))
    differ = [keys for keys in dict.fromkeys([*left, *right]) if left.get(keys, ABSENT) != right.get(keys, ABSENT)]
    if not differ:
        raise ConfigError(
            f"--factor {name}: {bad} and {good} say the same", need="a config with which it does not fail"
        )
    for keys in differ:
        was, now = left.get(keys, ABSENT), right.get(keys, ABSENT)
        job = {"file": name, "path": str(bad.absolute()), "keys": keys, "good": now}
        yield Factor(".".join(map(str, keys)), _short(was), _short(now), job=job)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        ending = path.suffix.lower()
        found = json.loads(text) if ending == ".json" else _toml(text) if ending == ".toml" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        got = str(error).splitlines()[0]
        raise ConfigError(f"{path} cannot be read", got=got, need="plain JSON, YAML or TOML") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} cannot be taken apart", got=type(found).__name__, need="keys and values at the top")
    return found


def _toml(text: str) -> Any:
    """Read TOML; raises ValueError, also where this Python (3.10) cannot."""
    try:
        import tomllib
    except ImportError as error:
        raise ValueError("TOML needs Python 3.11") from error
    return tomllib.loads(text)


def _text(content: dict[Any, Any], ending: str) -> str:
    """Return a config as a text that reads back as the same."""
    if ending == ".json":
        return json.dumps(content, indent=1)
    if ending != ".toml":
        return yaml.safe_dump(content)
    return "".join(f"{_word(key)} = {_value(value)}\n" for key, value in content.items())


def _value(value: Any) -> str:
    """Return a value as TOML writes it, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_word(key)} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and value - value != 0:  # nan and inf have other names in JSON
        return str(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool | int | float) else str(value)


def _word(key: Any) -> str:
    return json.dumps(str(key), ensure_ascii=False)


def _flat(content: Mapping[Any, Any], above: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, (*above, key))
        else:
            yield (*above, key), value


def _set(content: dict[Any, Any], keys: tuple[Any, ...], value: Any) -> None:
    """Set a nested key, or take it out, also where what is above it is no mapping."""
    for key in keys[:-1]:
        if not isinstance(content.get(key), dict):
            content[key] = {}
        content = content[key]
    if value is ABSENT:
        content.pop(keys[-1], None)
    else:
        content[keys[-1]] = value


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
