"""The trials of any program: its command and environment with some values flipped, its config files with some keys.

Of two config files, one that fails and one that does not, each key in which they differ is a factor.
"""

from __future__ import annotations

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
    inside = names & {name for word in command for name in PLACEHOLDER.findall(word)}
    for name in sorted(names - inside):
        written = [word for word in command if re.match(rf"-*{re.escape(name)}(=|$)", word)]
        if samples is not None and name == samples.name:
            written = [word for word in command if word and Path(word).absolute() == samples.path] + written
        if written:
            option = written[0].partition("=")[0] + ("=" if "=" in written[0] else " ")
            raise ConfigError(
                f"{name} is written literally in the command, so it cannot be changed",
                got=written[0],
                need=f"{option if re.match('-|.*=', written[0]) else ''}{{{name}}}",
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
    flips = {(factor.job["file"], factor.job["keys"]) for factor in flipped if "file" in factor.job}
    for job in {factor.job["file"]: factor.job for factor in factors if "file" in factor.job}.values():
        path, (bad, good) = Path(job["path"]), job["sides"]
        content = _flipped(bad, good, {keys for file, keys in flips if file == job["file"]})
        text = _text(content, path.suffix.lower())
        written[job["file"]] = sample_lists.write_replacement(path, text, place / job["file"])
    return written


def _differing_keys(name: str, bad: Path, good: Path) -> Iterator[Factor]:
    sides = _read(bad), _read(good)
    differing = list(_differing(*sides))
    if not differing:
        raise ConfigError(
            f"--factor {name}: {bad} and {good} have the same content", need="a config with which it does not fail"
        )
    for keys, was, now in differing:
        job = {"file": name, "path": str(bad.absolute()), "keys": keys, "sides": sides}
        yield Factor(".".join(map(str, keys)), _short(was), _short(now), job=job)


def _read(path: Path) -> dict[str, Any]:
    try:
        text, ending = path.read_text(encoding="utf-8"), path.suffix.lower()
        if ending == ".toml":
            import tomllib

            content: Any = tomllib.loads(text)
        else:
            content = json.loads(text) if ending == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        got = str(error).splitlines()[0]
        raise ConfigError(f"{path} cannot be read", got=got, need="plain JSON, YAML or TOML") from error
    except ImportError as error:
        raise ConfigError(f"{path} cannot be read", got="TOML", need="Python 3.11, or JSON or YAML") from error
    if not isinstance(content, dict):
        got = type(content).__name__
        raise ConfigError(f"{path} has no keys to compare", got=got, need="keys and values at the top")
    return content


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


def _sections(was: Any, now: Any) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """Return both sides of a section that is compared key by key, empty where it is absent; None for a value.

    A section that is null or a value on the other side is flipped as a whole: no program expects half of it.
    """
    sides = [side for side in (was, now) if side is not ABSENT]
    if not any(sides) or not all(isinstance(side, dict) for side in sides):
        return None
    return was if was is not ABSENT else {}, now if now is not ABSENT else {}


def _differing(bad: Any, good: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield each key in which two sides differ, as the path of keys from the top, with both values."""
    for key in dict.fromkeys([*bad, *good]):
        was, now = bad.get(key, ABSENT), good.get(key, ABSENT)
        if sections := _sections(was, now):
            yield from _differing(*sections, (*above, key))
        elif repr(was) != repr(now):  # to Python 1, 1.0 and true are equal
            yield (*above, key), was, now


def _flipped(bad: Any, good: Any, flips: set[tuple[Any, ...]], above: tuple[Any, ...] = ()) -> dict[Any, Any]:
    """Return a config with the keys of `flips` as they are in the good one; a section that becomes empty is gone where
    the side that it follows has none: `{}` is not the same as no section.
    """
    content = {}
    for key in dict.fromkeys([*bad, *good]):
        path, was, now = (*above, key), bad.get(key, ABSENT), good.get(key, ABSENT)
        value = now if any(flip[: len(path)] == path for flip in flips) else was
        if sections := _sections(was, now):
            value = _flipped(*sections, flips, path) or (ABSENT if value is ABSENT else {})
        if value is not ABSENT:
            content[key] = value
    return content


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
