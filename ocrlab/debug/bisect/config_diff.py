"""Two config files of any program, one with which it fails and one with which it does not: each key is a factor."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ocrlab.debug.bisect import sample_lists
from ocrlab.debug.bisect.factors import Factor
from ocrlab.errors import ConfigError

ENDINGS = (".json", ".yaml", ".yml", ".toml")
ABSENT = "(absent)"
LONGEST = 40  # characters of a value in words


def split(found: Iterable[Factor]) -> list[Factor]:
    """Return factors, those that are two config files taken apart into the keys in which they differ."""
    every: list[Factor] = []
    for one in found:
        paths = [Path(side) for side in (one.bad, one.good)]
        configs = all(path.suffix.lower() in ENDINGS for path in paths)
        there = [path.is_file() for path in paths]
        if configs and all(there):
            every += _keys(one.name, *paths)
        elif configs and any(there):  # a typing error, with which every flip would end otherwise
            raise ConfigError(
                f"--factor {one.name}: {paths[there.index(False)]} does not exist", need="two config files"
            )
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
            _set(content, flip["keys"], flip["good"], flip["kept"])
        found[job["file"]] = sample_lists.beside(path, _text(content, path.suffix.lower()), place / job["file"])
    return found


def _keys(name: str, bad: Path, good: Path) -> Iterator[Factor]:
    safe = _read(good)
    differ = list(_differing(_read(bad), safe))
    if not differ:
        raise ConfigError(
            f"--factor {name}: {bad} and {good} say the same", need="a config with which it does not fail"
        )
    for keys, was, now in differ:
        job = {"file": name, "path": str(bad.absolute()), "keys": keys, "good": now, "kept": _had(safe, keys)}
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


def _differing(bad: Any, good: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield each key in which two sides differ, with both values, by its way from the top.

    A section is taken apart where the other side has it too, or does not have it; one that is null or a value there is
    flipped as a whole, as half of it is what no program expects.
    """
    for key in dict.fromkeys([*bad, *good]):
        was, now = (side.get(key, ABSENT) for side in (bad, good))
        nested = [side for side in (was, now) if isinstance(side, dict) and side]
        if nested and all(isinstance(side, dict) or side is ABSENT for side in (was, now)):
            yield from _differing(
                was if isinstance(was, dict) else {}, now if isinstance(now, dict) else {}, (*above, key)
            )
        elif repr(was) != repr(now):  # to Python 1, 1.0 and true are equal
            yield (*above, key), was, now


def _had(content: Any, keys: tuple[Any, ...]) -> int:
    """Return how many keys of a way from the top there are in a config."""
    for number, key in enumerate(keys):
        if not isinstance(content, dict) or key not in content:
            return number
        content = content[key]
    return len(keys)


def _set(content: dict[Any, Any], keys: tuple[Any, ...], value: Any, kept: int) -> None:
    """Set a nested key, or take it out, also where what is above it is no mapping.

    A section that becomes empty goes too, but for the first `kept` keys: `{}` is not the same as no section.
    """
    way = [content]
    for key in keys[:-1]:
        if not isinstance(way[-1].get(key), dict):
            way[-1][key] = {}
        way.append(way[-1][key])
    if value is not ABSENT:
        way[-1][keys[-1]] = value
        return
    for number in range(len(keys), kept, -1):
        if number == len(keys) or not way[number]:
            way[number - 1].pop(keys[number - 1], None)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
