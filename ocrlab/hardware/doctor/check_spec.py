"""What is asked of a child, and the four judgements on what it answered."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.errors import ConfigError
from ocrlab.records import Check

PROBES = Path(__file__).parents[1]

Answers = list[dict[str, Any]]
Facts = Mapping[str, Answers]  # what the asks before this one answered, by name; without those that did not end well
Judge = Callable[[Answers, Facts], Iterable[Check]]


@dataclass(frozen=True)
class Options:
    """What a person can choose: the interpreter that is probed, and the folder where runs will be written."""

    python: str
    runs: Path = Path("runs")


@dataclass(frozen=True)
class Probe:
    """One child: which function of which probe file it calls, how long it may take, and who judges its answers."""

    step: int
    name: str
    probe: Path
    function: str
    judge: Judge
    deadline: float  # seconds
    arguments: dict[str, Any] = field(default_factory=dict)
    idle: float | None = None  # seconds without using the processor or reading anything; a sleeping hang ends sooner
    own: bool = False  # it needs ocrlab, so it runs under this Python; else under the one that is probed
    after: tuple[str, ...] = ()  # asks whose answers it or its judge needs
    skip: Callable[[Facts], str | None] = lambda facts: None  # why it need not be asked
    hang: str | None = None  # the cause, where it never returns
    crash: str | None = None  # the cause, where it dies of a signal other than SIGILL


def interpreter(word: str) -> str:
    """Return the path of a Python given by path or by name, links kept, since a venv is one; raises ConfigError."""
    program = shutil.which(os.path.expanduser(word))
    if program is None:
        near = Path(word).expanduser() / "bin" / "python"
        do = f"Give the program, {near}" if near.exists() else "See what there is: ls ~/*/bin/python*"
        raise ConfigError(f"{word} is no program", need="the path or the name of a Python interpreter", do=do)
    if not _answers_as_python(program):
        raise ConfigError(
            f"{word} is no Python", need="a Python interpreter", do="See what there is: ls ~/*/bin/python*"
        )
    return os.path.abspath(program)


def _answers_as_python(program: str) -> bool:
    """Tell whether a program says that it is Python; one that is called so may be too broken to say anything."""
    if "py" in os.path.basename(program).lower():
        return True
    try:
        done = subprocess.run([program, "-V"], stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True  # what is wrong with it is told by the ladder
    return b"python" in (done.stdout + done.stderr).lower()


def ok(name: str, observed: str, need: str = "", do: str = "") -> Check:
    """Return a finding that is as it should be."""
    return Check(name, "ok", observed, need, do)


def warn(name: str, observed: str, need: str = "", do: str = "", cause: str | None = None) -> Check:
    """Return a finding that will not stop a training at once."""
    return Check(name, "warn", observed, need, do, cause=cause)


def fail(name: str, observed: str, need: str = "", do: str = "", cause: str | None = None) -> Check:
    """Return a finding that stops a training."""
    return Check(name, "fail", observed, need, do, cause=cause)


def skip(name: str, observed: str) -> Check:
    """Return what could not or need not be found out, and why."""
    return Check(name, "skip", observed)


def size(count: float) -> str:
    """Return bytes in words, in powers of 1024."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(count) >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    unit = units[0]
    return f"{count:.0f} {unit}" if count >= 100 or unit == "B" or count == int(count) else f"{count:.1f} {unit}"


def version(text: object) -> tuple[int, ...]:
    """Return the numbers of a version, `580.65.06` as (580, 65, 6), so that versions can be compared."""
    parts: list[int] = []
    for part in str(text).split("+")[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits or not part[0].isdigit():
            break
        parts.append(int(digits))
    return tuple(parts)
