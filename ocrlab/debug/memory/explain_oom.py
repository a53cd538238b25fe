"""Why a run ran out of memory: seven questions answered from a log or a run folder, one sentence, and what to set."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocrlab.debug.diagnosis import load_input
from ocrlab.debug.memory import oom_inputs
from ocrlab.debug.memory.oom_checks import checks
from ocrlab.debug.memory.oom_kinds import Split, split
from ocrlab.debug.memory.oom_remedies import Remedy, remedy
from ocrlab.records import SCHEMA, Check, finite

MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "skip": "skip"}


@dataclass
class Why:
    """The answer: the disease, the seven checks, what to set, one sentence."""

    found: Split
    checks: list[Check]
    remedy: Remedy
    sentence: str
    known: oom_inputs.Known

    @property
    def record(self) -> dict[str, Any]:
        """The answer as JSON-ready data."""
        told: dict[str, Any] = {"schema": SCHEMA, "ran_out": bool(self.found.kind), **asdict(self.found)}
        told["checks"] = [asdict(check) for check in self.checks]
        told["remedy"] = {**asdict(self.remedy), "line": self.remedy.line}
        told["sentence"] = self.sentence
        clean: dict[str, Any] = finite(told)
        return clean

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The checks as rows of a table."""
        return [(str(check.step), MARKS[check.judgement], check.name, check.seen) for check in self.checks]


def why(path: str) -> Why:
    """Return why the run of a log or a run folder ran out of memory; raises DataError where it cannot be read."""
    folder = Path(path) if path != "-" and Path(path).is_dir() else None
    known = oom_inputs.know(load_input.read_incident(path), folder, _config(folder))
    found = split(known)
    proposed = remedy(known, found)
    return Why(found, checks(known, found, proposed), proposed, sentence(known, found, proposed), known)


def sentence(known: oom_inputs.Known, found: Split, proposed: Remedy) -> str:
    """Return the answer in one sentence, with the remedy as a line of settings."""
    if not found.kind:
        if not known.verdict.causes:
            return "Nothing says that memory ran out, and nothing else explains the failure."
        first, *others = known.verdict.causes
        told = f"It did not run out of memory as far as can be seen: {first.id} ({first.confidence:.2f})"
        also = [one for one in others if one.id.startswith(oom_inputs.MEMORY)]
        return f"{told}; {also[0].id} ({also[0].confidence:.2f}) looks the same." if also else f"{told}."
    sure = "" if found.confidence >= 0.8 else "most probably " if found.confidence >= 0.6 else "perhaps "
    head = f"It ran out of memory, {sure}by {_article(found.kind)}: {found.why}"
    if proposed.line:
        return f"{head}. Set {proposed.line}."
    return f"{head}. {proposed.do}." if proposed.do else f"{head}."


def _article(kind: str) -> str:
    words = {
        "capacity": "a step that is too large for the card",
        "fragmentation": "fragmentation",
        "another process": "what another process holds",
        "leak": "a leak",
        "outside the cache": "what is allocated outside torch's cache",
        "pinned memory": "pinned host memory",
        "WSL limit": "a limit of WSL",
        "absurd size": "one request of an absurd size",
        "killed by the host": "the machine's memory, and the kernel killed it",
        "refused by the host": "a limit on host memory",
        "control group": "the memory limit of its control group, and the kernel killed it",
        "shared memory": "shared memory",
    }
    return words[kind]


def _config(folder: Path | None) -> dict[str, Any]:
    """Return the settings of a run of `ocrlab train` under their dotted names; empty for any other."""
    path = folder / "config.yaml" if folder else None
    if path is None or not path.is_file():
        return {}
    with contextlib.suppress(Exception):  # of another version, or somebody else's: the checks go on without it
        from ocrlab.config import schema as configs
        from ocrlab.config.fields import flat

        found: dict[str, Any] = flat(configs.load(path))
        return found
    return {}
