"""The runs of any program that a bisect makes: its words and its environment with some values flipped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ocrlab.errors import ConfigError
from ocrlab.rerun.factors import Factor
from ocrlab.rerun.probe import Command, Start

NAME = re.compile(r"\{([A-Za-z_][\w.-]*)\}")


def starter(command: Sequence[str], factors: Sequence[Factor]) -> Start:
    """Return how any program is started: `{name}` in its words is a factor's value, else it is an environment variable.

    A word that becomes empty is left out, a variable with an empty value is not set. Raises ConfigError for a name in
    braces that is no factor's, though only where such a word consists of nothing else or follows a `=`.
    """
    known = {factor.name for factor in factors}
    for word in command:
        strange = re.fullmatch(r"(?:[\w.-]+=)?\{([A-Za-z_][\w.-]*)\}", word)
        if strange and strange[1] not in known:
            raise ConfigError(
                f"{word} stands for no factor", got=", ".join(sorted(known)), need="--factor NAME=BAD:GOOD"
            )
    inside = {name for name in known if any(f"{{{name}}}" in word for word in command)}

    def start(run: int, _pages: list[int] | None, _place: Path) -> Command:
        values = {factor.name: factor.bad if run >> index & 1 else factor.good for index, factor in enumerate(factors)}
        words = []
        for word in command:
            said = NAME.sub(lambda found: values.get(found[1], found[0]), word)
            words += [said] if said or not word else []
        return words, {name: value for name, value in values.items() if name not in inside}

    return start
