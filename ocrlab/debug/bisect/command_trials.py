"""The runs of any program that a bisect makes: its words and its environment with some values flipped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ocrlab.debug.bisect import config_diff
from ocrlab.debug.bisect import sample_lists as lists
from ocrlab.debug.bisect.factors import Factor
from ocrlab.debug.bisect.sample_lists import Samples
from ocrlab.debug.trials.trial import Command, Start
from ocrlab.errors import ConfigError

NAME = re.compile(r"\{([A-Za-z_][\w.-]*)\}")


def starter(command: Sequence[str], factors: Sequence[Factor], samples: Samples | None = None) -> Start:
    """Return how any program is started: `{name}` in its words is a factor's value, else it is an environment variable.

    A word that becomes empty is left out, a variable with an empty value is not set. Of factors that are keys of a
    config file the name is the file's; `samples` have one too. Raises ConfigError for a name in braces that is no
    factor's, though only where such a word consists of nothing else or follows a `=`.
    """
    known = {str(factor.job.get("file", factor.name)) for factor in factors} | ({samples.name} if samples else set())
    for word in command:
        strange = re.fullmatch(r"(?:[\w.-]+=)?\{([A-Za-z_][\w.-]*)\}", word)
        if strange and strange[1] not in known:
            raise ConfigError(
                f"{word} stands for no factor", got=", ".join(sorted(known)), need="--factor NAME=BAD:GOOD"
            )
    inside = {name for name in known if any(f"{{{name}}}" in word for word in command)}
    for name in sorted(known - inside):
        said = next((word for word in command if re.match(rf"-*{re.escape(name)}(=|$)", word)), None)
        if samples is not None and name == samples.name:
            said = next((word for word in command if word and Path(word).absolute() == samples.path), said)
        if said:
            option = said.partition("=")[0] + ("=" if "=" in said else " ")
            need = f"{option if re.match('-|.*=', said) else ''}{{{name}}}"
            raise ConfigError(f"{name} is in the command as it is, and would never be flipped", got=said, need=need)

    def start(run: int, pages: list[int] | None, place: Path) -> Command:
        flipped = [factor for index, factor in enumerate(factors) if not run >> index & 1]
        values = {one.name: one.good if one in flipped else one.bad for one in factors if "file" not in one.job}
        values |= config_diff.written(factors, flipped, place)
        if samples is not None:
            values[samples.name] = lists.given(samples, pages, place)
        words = []
        for word in command:
            said = NAME.sub(lambda found: values.get(found[1], found[0]), word)
            words += [said] if said or not word else []
        return words, {name: value for name, value in values.items() if name not in inside}

    return start
