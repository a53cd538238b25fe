"""The trials of any program: its command and environment with some values flipped, its config files with some keys.

Of two config files, one that fails and one that does not, each key in which they differ is a factor.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ocrlab.debug.bisect import sample_lists
from ocrlab.debug.bisect.factors import Factor
from ocrlab.debug.bisect.sample_lists import Samples
from ocrlab.debug.trials.trial import Command, Start
from ocrlab.errors import ConfigError

PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
ENDINGS = (".json", ".yaml", ".yml", ".toml")
ABSENT = "(absent)"
LONGEST = 40  # characters of a value in a text


def starter(command: Sequence[str], factors: Sequence[Factor], samples: Samples | None = None) -> Start:
    """Return how any program is started: `{name}` in its words is a factor's value, else it is an environment variable.

    A word that becomes empty is left out, and a variable with an empty value is not set. Factors that are keys of a
    config file go by the name of the file; `samples` have a name too. Raises ConfigError for a name in braces that
    belongs to no factor, where it is a whole word or follows a `=`.
    """
    names = {str(factor.job.get("file", factor.name)) for factor in factors} | ({samples.name} if samples else set())
    for word in command:
        unknown = re.fullmatch(rf"(?:[\w.-]+=)?{PLACEHOLDER.pattern}", word)
        if unknown and unknown[1] not in names:
            raise ConfigError(f"{word} is not a factor", got=", ".join(sorted(names)), need="--factor NAME=BAD:GOOD")
    inside = {name for name in names if any(f"{{{name}}}" in word for word in command)}
    for name in sorted(names - inside):
        current = next((word for word in command if re.match(rf"-*{re.escape(name)}(=|$)", word)), None)
        if samples is not None and name == samples.name:
            current = next((word for word in command if word and Path(word).absolute() == samples.path), current)
        if current:
            option = current.partition("=")[0] + ("=" if "=" in current else " ")
            need = f"{option if re.match('-|.*=', current) else ''}{{{name}}}"
            raise ConfigError(
                f"{name} is written literally in the command, so it cannot be changed", got=current, need=need
            )

    def start(run: int, pages: list[int] | None, place: Path) -> Command:
        flipped = [factor for index, factor in enumerate(factors) if not run >> index & 1]
        plain = [factor for factor in factors if "file" not in factor.job]
        values = {factor.name: factor.good if factor in flipped else factor.bad for factor in plain}
        values |= write_configs(factors, flipped, place)
        if samples is not None:
            values[samples.name] = sample_lists.write_samples(samples, pages, place)
        words = [PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), word) for word in command]
        words = [word for word, before in zip(words, command, strict=True) if word or not before]
        return words, {name: value for name, value in values.items() if name not in inside}

    return start


def split_config_files(factors: Iterable[Factor]) -> list[Factor]:
    """Return the factors, with those that are two config files split into the keys in which they differ."""
    keys: list[Factor] = []
    for factor in factors:
        paths = [Path(side) for side in (factor.bad, factor.good)]
        exist = [path.is_file() for path in paths]
        if not any(exist) or any(path.suffix.lower() not in ENDINGS for path in paths):
            keys.append(factor)
        elif all(exist):
            keys += _differing_keys(factor.name, *paths)
        else:  # a typing error, with which every flip would fail in another way
            missing = paths[exist.index(False)]
            raise ConfigError(f"--factor {factor.name}: {missing} does not exist", need="two config files")
    names = [factor.name for factor in keys]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"Two factors are called {twice}", need="each name once: a key of a config file is one too")
    return keys


def write_configs(factors: Iterable[Factor], flipped: Iterable[Factor], place: Path) -> dict[str, str]:
    """Write each config file with its flipped keys set below `place`; return where, by the name of its factor."""
    written: dict[str, str] = {}
    flips = [factor.job for factor in flipped if "file" in factor.job]
    for job in {factor.job["file"]: factor.job for factor in factors if "file" in factor.job}.values():
        path = Path(job["path"])
        content = copy.deepcopy(_read(path))
        for flip in flips:
            if flip["file"] == job["file"]:
                _set(content, flip["keys"], flip["good"], flip["kept"])
        text = _text(content, path.suffix.lower())
        written[job["file"]] = sample_lists.write_replacement(path, text, place / job["file"])
    return written


def _differing_keys(name: str, bad: Path, good: Path) -> Iterator[Factor]:
    safe = _read(good)
    differing = list(_differing(_read(bad), safe))
    if not differing:
        raise ConfigError(
            f"--factor {name}: {bad} and {good} have the same content", need="a config with which it does not fail"
        )
    for keys, was, now in differing:
        job = {"file": name, "path": str(bad.absolute()), "keys": keys, "good": now, "kept": _depth(safe, keys)}
        yield Factor(".".join(map(str, keys)), _short(was), _short(now), job=job)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        ending = path.suffix.lower()
        content = json.loads(text) if ending == ".json" else _toml(text) if ending == ".toml" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        got = str(error).splitlines()[0]
        raise ConfigError(f"{path} cannot be read", got=got, need="plain JSON, YAML or TOML") from error
    if not isinstance(content, dict):
        got = type(content).__name__
        raise ConfigError(f"{path} has no keys to compare", got=got, need="keys and values at the top")
    return content


def _toml(text: str) -> Any:
    """Read TOML; raises ValueError, also in Python 3.10, which cannot."""
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
    return "".join(f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in content.items())


def _toml_value(value: Any) -> str:
    """Return a value as TOML writes it, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, float) and value - value != 0:  # nan and inf have other names in JSON
        return str(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool | int | float) else str(value)


def _toml_key(key: Any) -> str:
    return json.dumps(str(key), ensure_ascii=False)


def _differing(bad: Any, good: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield each key in which two sides differ, as the path of keys from the top, with both values.

    A section is split where the other side has it too, or does not have it. A section that is null or a value there is
    flipped as a whole: no program expects half of it.
    """
    for key in dict.fromkeys([*bad, *good]):
        was, now = (side.get(key, ABSENT) for side in (bad, good))
        nested = [side for side in (was, now) if isinstance(side, dict) and side]
        if nested and all(isinstance(side, dict) or side is ABSENT for side in (was, now)):
            was, now = (side if isinstance(side, dict) else {} for side in (was, now))
            yield from _differing(was, now, (*above, key))
        elif repr(was) != repr(now):  # to Python 1, 1.0 and true are equal
            yield (*above, key), was, now


def _depth(content: Any, keys: tuple[Any, ...]) -> int:
    """Return how many keys of a path from the top exist in a config."""
    for number, key in enumerate(keys):
        if not isinstance(content, dict) or key not in content:
            return number
        content = content[key]
    return len(keys)


def _set(content: dict[Any, Any], keys: tuple[Any, ...], value: Any, existing: int) -> None:
    """Set a nested key, or remove it, also where what is above it is not a mapping.

    A section that becomes empty goes too, except for the first `existing` keys: `{}` is not the same as no section.
    """
    sections = [content]
    for key in keys[:-1]:
        if not isinstance(sections[-1].get(key), dict):
            sections[-1][key] = {}
        sections.append(sections[-1][key])
    if value is not ABSENT:
        sections[-1][keys[-1]] = value
        return
    for number in range(len(keys), existing, -1):
        if number == len(keys) or not sections[number]:
            sections[number - 1].pop(keys[number - 1], None)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
