"""config.yaml as flat settings, through libyaml: five thousand files in a second.

Two runs share most lines of their configs. So a file is cut into blocks at its top-level keys, and a block that was
read before is not read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ocrlab.errors import ConfigError

BLOCK = re.compile(r"\n(?=[^\s-])")  # before a line that is not indented, and not an item of a list
MOST_CHARACTERS, MOST_SETTINGS = 100_000, 500  # of a config; ocrlab writes 4,000 and 70
DEEPEST = 4  # parts of a setting's name

Value = Any  # None, bool, int, float, str, or a tuple of them
Settings = dict[str, Value]


def parse(text: str, path: str = "config.yaml") -> Settings:
    """Return the dotted settings of a config, lists as tuples, without `schema`; raises ConfigError."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"{path} needs a YAML parser", do="pip install pyyaml") from None
    need = "lines of the form key: value"
    blocks = BLOCK.split(text)
    if len(text) > MOST_CHARACTERS or len(blocks) > MOST_SETTINGS:
        got = f"{len(text):,} characters with {len(blocks):,} settings"
        raise ConfigError(f"{path} is not a config", got=got, need=need)
    try:
        settings = _joined([_read(block) for block in blocks])
    except (ValueError, RecursionError, yaml.YAMLError):  # a block is not YAML by itself, or the whole is not a config
        try:
            settings = dict(_read(text))
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            what = f"{path} is not a config"
            raise ConfigError(what, got=str(error).partition("\n")[0], need=need) from None
    if len(settings) > MOST_SETTINGS:
        raise ConfigError(f"{path} is not a config", got=f"{len(settings):,} settings", need=need)
    settings.pop("schema", None)
    return settings


@lru_cache(maxsize=65536)
def _read(text: str) -> Settings:
    """Return the settings of YAML without constructing anything from its tags; raises YAMLError, ValueError."""
    import yaml

    node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"line {node.start_mark.line + 1} is not a setting")
    return _joined([{name: value} for name, value in _leaves(node, "", set())])


def _joined(parts: list[Settings]) -> Settings:
    settings: Settings = {}
    for part in parts:
        settings.update(part)
    if len(settings) < sum(map(len, parts)):
        raise ValueError("a setting is given twice")
    return settings


def _leaves(node: Any, name: str, above: set[int]) -> Iterator[tuple[str, Value]]:
    """Yield each setting at or below a node of YAML; raises ValueError, also for an anchor that is used again."""
    if node.id == "scalar":
        yield name, _value(node)
    elif node.id == "sequence" and all(item.id == "scalar" for item in node.value):
        yield name, tuple(map(_value, node.value))
    elif node.id == "mapping" and name.count(".") < DEEPEST and id(node) not in above:
        above.add(id(node))  # ten lines of anchors can stand for a billion values
        for key, child in node.value:
            yield from _leaves(child, f"{name}.{key.value}" if name else str(key.value), above)
    else:
        raise ValueError(f"{name} is not a plain value or a list of them")


def _value(node: Any) -> Value:
    """Return a scalar: quoted text as it is, any other as if it stood on the command line."""
    return node.value if node.style else parse_value(node.value)


def parse_value(text: str) -> Value:
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
