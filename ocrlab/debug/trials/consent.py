"""Whether a program that a run folder names may be started: unasked only if this user recorded it on this machine.

A run folder says which command to start, with which variables; a stranger's could say anything.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ocrlab.errors import RunError
from ocrlab.redaction import clean
from ocrlab.run_folder import provenance

LONGEST = 2000  # characters of a command that are shown; the file that it comes from has the rest
LOADS_CODE = re.compile(r"LD_\w+|PYTHON\w+|PATH|BASH_ENV|ENV|\w*PRELOAD\w*|\w*_PLUGIN\w*|IPYTHON\w*|PERL5\w+|NODE_\w+")


class NotTrusted(RunError):
    """A run folder names a program that is not started without consent; `question` says what would be started."""

    def __init__(self, run: Path, question: str, files: Sequence[Path]) -> None:
        self.question = question
        names = ", ".join(os.path.relpath(file, run) for file in files)
        super().__init__(
            f"What {run} would start was not recorded by you on this machine, or was changed since",
            got=question,
            need=f"your consent, on a terminal or by --trust; {names} decide{'s' * (len(files) == 1)} what is started",
            do="Read it first: it can do whatever you can",
        )


@dataclass(frozen=True)
class RecordedProgram:
    """What a command starts by the word of a run folder: the files that decide it, its words, folder, variables."""

    run: Path
    files: Sequence[Path]
    words: Sequence[str]
    folder: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The command as a shell would be given it, cut where it is very long."""
        line = shlex.join(self.words)
        line = f"cd {shlex.quote(self.folder)} && {line}" if self.folder else line
        more = len(line) - LONGEST
        return _visible(f"{line[:LONGEST]} ... ({more:,} more characters in {self.files[0]})" if more > 0 else line)

    @property
    def question(self) -> str:
        """The command with the variables that differ from this process's and decide which code is loaded."""
        others = {name: value for name, value in self.variables.items() if os.environ.get(name) != value}
        loading = [f"{name}={shlex.quote(value)}" for name, value in others.items() if LOADS_CODE.fullmatch(name)]
        with_ = f" with {len(others)} recorded variables" if others else ""
        named = f", among them {' '.join(loading)[:LONGEST]}" if loading else ""
        return _visible(f"{self.text}{with_}{named}")


def _visible(text: str) -> str:
    """Return a text on one line in which nothing is hidden: a stranger wrote it, and somebody decides by it."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def require_consent(program: RecordedProgram, trust: bool, report: Callable[[str], None]) -> None:
    """Report what is about to be started; raises NotTrusted unless it is the user's own or `trust` is given."""
    strange = [file for file in program.files if not provenance.is_own(file)]
    if strange and not trust:
        raise NotTrusted(program.run, program.question, strange)
    report(f"starts {program.question if strange else clean(program.text)}")
