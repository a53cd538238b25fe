"""What a probe is: what a child is asked, and how its answers are judged."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ocrlab.errors import ConfigError
from ocrlab.records import Check

PROBES = Path(__file__).parents[1]

Answer = dict[str, Any]  # all that a child answered, in one
Facts = Mapping[str, Answer]  # what earlier probes answered, by name; without those that did not end well
Judge = Callable[[Answer, Facts], Iterable[Check]]


@dataclass(frozen=True)
class Options:
    """What the user chooses: the interpreter to probe, and the folder where runs will be written."""

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
    after: tuple[str, ...] = ()  # probes whose answers it or its judge needs
    skip: Callable[[Facts], str | None] = lambda facts: None  # why it need not run
    hang: str | None = None  # the cause, where it never returns
    crash: str | None = None  # the cause, where it dies of a signal other than SIGILL


def interpreter(word: str) -> str:
    """Return the path of a Python given by path or by name, links kept, since a venv is one; raises ConfigError."""
    program, do = shutil.which(os.path.expanduser(word)), "See what there is: ls ~/*/bin/python*"
    if program is None:
        near = Path(word).expanduser() / "bin" / "python"
        do = f"Give the program, {near}" if near.exists() else do
        raise ConfigError(f"{word} is not a program", need="the path or the name of a Python interpreter", do=do)
    if "py" not in os.path.basename(program).lower():  # one that is called so may be too broken to answer
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # the probes report what is wrong with it
            command = [program, "-V"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False)
            if b"python" not in (done.stdout + done.stderr).lower():
                raise ConfigError(f"{word} is not a Python interpreter", need="a Python interpreter", do=do)
    return os.path.abspath(program)


def _check(judgement: str, name: str, observed: str, need: str = "", do: str = "", cause: str | None = None) -> Check:
    return Check(name, judgement, observed, need, do, cause=cause)


ok = partial(_check, "ok")  # as it should be
warn = partial(_check, "warn")  # will not stop a training at once
fail = partial(_check, "fail")  # stops a training
skip = partial(_check, "skip")  # could not or need not be found out, and why


def judge(
    name: str, observed: str, need: str, do: str, cause: str | None = None, *, fails: bool = False, warns: bool = False
) -> Check:
    """Return a finding that fails or warns where its condition holds, and else is as it should be."""
    return (fail if fails else warn)(name, observed, need, do, cause) if fails or warns else ok(name, observed)


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
    numbers = re.match(r"\d+(?:\.\d+)*", str(text))
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
