"""What people write, as flat settings: `key=value` words, mappings, and YAML files, each with the place it stands at.

Values stay text until the config's field says what they are: so `1e-3` is a number, `no` can be a name, `010` is ten,
and YAML's surprises with them never happen. Nothing is constructed from YAML tags.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab import safe_read
from ocrlab.errors import ConfigError

if TYPE_CHECKING:
    import yaml

WORD = re.compile(r"\+{0,2}(?P<key>[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)
NOTHING = ("", "~", "null", "none")
LINES = "lines of the form key: value"  # what a YAML file needs
DEEPEST = 4  # no setting and no alias of one has more parts
MOST_BYTES = 500_000  # of a file of settings: they are a few kB
CORE_TAGS = tuple(f"tag:yaml.org,2002:{tag}" for tag in ("str", "int", "float", "bool", "null", "timestamp"))


@dataclass(frozen=True)
class Setting:
    """One value as it was written: `value` is text, a list of texts, or a Python object; `where` is for messages."""

    key: str
    value: Any
    shown: str
    where: str
    quoted: bool = False  # quoted text is never read as "no value"

    @property
    def empty(self) -> bool:
        """True for None and for the unquoted words that mean it."""
        return self.value is None or (isinstance(self.value, str) and not self.quoted and is_nothing(self.value))


def is_nothing(text: str) -> bool:
    """Return True if unquoted `text` means that there is no value."""
    return text.lower() in NOTHING


def is_override(word: str) -> bool:
    """Return True if `word` is of the form key=value, +key=value or ~key, and not the path of a file."""
    return word.startswith("~") or WORD.fullmatch(word) is not None


def from_lines(overrides: Sequence[str] | Mapping[str, Any], where: str = "command line") -> list[Setting]:
    """Return the settings of `key=value` texts or of a mapping, in order; raises ConfigError for any other text."""
    if isinstance(overrides, Mapping):
        return [Setting(str(key), value, repr(value), "given") for key, value in overrides.items()]
    if isinstance(overrides, str):
        need, do = "a list of key=value texts", "Put it in a list"
        raise ConfigError("The overrides must be a list of settings", got=overrides, need=need, do=do)
    return [setting for text in overrides for setting in _from_word(text, where)]


def _from_word(text: str, where: str) -> list[Setting]:
    match = WORD.fullmatch(text)
    if match is None:
        do = f"To switch {text.lstrip('~')} off, set it to none, 0 or false" if text.startswith("~") else None
        raise ConfigError(f"{text!r} is not a setting", need="key=value, such as batch_size=4", do=do)
    key, value = match["key"], match["value"]
    if value.startswith(("[", "{", "'", '"')):
        import yaml

        with contextlib.suppress(
            yaml.YAMLError, RecursionError
        ):  # a folder may well be called [old; other fields will refuse it
            node = yaml.compose(value, Loader=yaml.SafeLoader)
            assert node is not None, "a text that starts with a bracket or a quote is never empty YAML"
            return list(_flatten(node, key, where=where, file=None))
    return [Setting(key, value, value or "nothing", where)]


def from_yaml(path: Path) -> list[Setting]:
    """Return the settings of a YAML file in order; raises ConfigError that names file and line."""
    import yaml

    try:
        text = safe_read.read(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        do = f"There is a {path / 'config.yaml'}" if (path / "config.yaml").is_file() else None
        reason = error.strerror if isinstance(error, OSError) else error
        what = f"Config file {path} cannot be read"
        raise ConfigError(what, got=reason, need="a YAML file in UTF-8", do=do) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        anchors = [token for token in yaml.scan(text, Loader=yaml.SafeLoader) if isinstance(token, yaml.AliasToken)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line} is not YAML", got=error.problem, need=LINES) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML", got=str(error).partition("\n")[0], need=LINES) from None
    if anchors:  # ten lines of them can stand for a billion values
        what = f"{path}, line {anchors[0].start_mark.line + 1} refers to an anchor"
        raise ConfigError(what, got=f"*{anchors[0].value}", need="plain values", do="Write the value out")
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return []
    if not isinstance(node, yaml.MappingNode):
        what = f"{path}, line {node.start_mark.line + 1} is not a list of settings"
        raise ConfigError(what, got=node.tag.rpartition(":")[2], need=LINES)
    return list(_flatten(node, "", where="", file=path))


def _flatten(node: yaml.Node, key: str, *, where: str, file: Path | None, depth: int = 0) -> Iterator[Setting]:
    """Walk a YAML node and yield a Setting for each leaf; `file` is None for a value on the command line."""
    import yaml

    here = f"{file}, line {node.start_mark.line + 1}" if file else where
    if isinstance(node, yaml.ScalarNode) and node.tag in CORE_TAGS:
        yield Setting(key, node.value, node.value or "nothing", here, quoted=node.style is not None)
    elif isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        values = [item.value for item in node.value]
        yield Setting(key, values, f"[{', '.join(values)}]", here)
    elif isinstance(node, yaml.MappingNode) and depth < DEEPEST:
        for name, child in _pairs(node, here, file):
            yield from _flatten(child, f"{key}.{name}" if key else name, where=where, file=file, depth=depth + 1)
    else:
        got = node.tag.rpartition(":")[2]
        raise ConfigError(f"{key} cannot be read ({here})", got=got, need="plain values and lists")


def _pairs(node: yaml.MappingNode, here: str, file: Path | None) -> Iterator[tuple[str, yaml.Node]]:
    import yaml

    first: dict[str, int] = {}
    for name, child in node.value:
        line = name.start_mark.line + 1
        at = f"{file}, line {line}" if file else here
        if not isinstance(name, yaml.ScalarNode) or name.tag == "tag:yaml.org,2002:merge":
            raise ConfigError(f"A key of {at} cannot be used", got=name.value, need="a setting's name")
        if name.value in first:
            got = f"also on line {first[name.value]}"
            raise ConfigError(f"{name.value} is given twice ({at})", got=got, need="one value")
        first[name.value] = line
        yield name.value, child
