"""Why a run ran out of memory: seven questions answered from a log or a run folder, one sentence, and what to set."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocrlab.debug.diagnosis import load_input
from ocrlab.debug.memory import oom_inputs
from ocrlab.debug.memory.oom_checks import checks
from ocrlab.debug.memory.oom_kinds import OomKind, classify_oom
from ocrlab.debug.memory.oom_remedies import Remedy, find_remedy
from ocrlab.records import SCHEMA, Check, check_record, finite

MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "skip": "skip"}


@dataclass
class OomAnswer:
    """The answer: the disease, the seven checks, what to set, one sentence."""

    kind: OomKind
    checks: list[Check]
    remedy: Remedy
    sentence: str
    run: oom_inputs.OomRun

    @property
    def record(self) -> dict[str, Any]:
        """The answer as JSON-ready data."""
        record: dict[str, Any] = {"schema": SCHEMA, "ran_out": bool(self.kind.kind), **asdict(self.kind)}
        record["checks"] = [check_record(check) for check in self.checks]
        record["remedy"] = {**asdict(self.remedy), "line": self.remedy.line}
        record["sentence"] = self.sentence
        clean: dict[str, Any] = finite(record)
        return clean

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The checks as rows of a table."""
        return [(str(check.step), MARKS[check.judgement], check.name, check.observed) for check in self.checks]


def explain_oom(path: str) -> OomAnswer:
    """Return why the run of a log or a run folder ran out of memory; raises DataError where it cannot be read."""
    folder = Path(path) if path != "-" and Path(path).is_dir() else None
    run = oom_inputs.collect(load_input.read_incident(path), folder, _config(folder))
    kind = classify_oom(run)
    proposed = find_remedy(run, kind)
    return OomAnswer(kind, checks(run, kind, proposed), proposed, sentence(run, kind, proposed), run)


def sentence(run: oom_inputs.OomRun, kind: OomKind, proposed: Remedy) -> str:
    """Return the answer in one sentence, with the remedy as a line of settings."""
    if not kind.kind:
        if not run.verdict.causes:
            return "Nothing says that memory ran out, and nothing else explains the failure."
        first, *others = run.verdict.causes
        answer = f"It did not run out of memory as far as can be seen: {first.id} ({first.confidence:.2f})"
        also = [cause for cause in others if cause.id.startswith(oom_inputs.MEMORY)]
        return f"{answer}; {also[0].id} ({also[0].confidence:.2f}) looks the same." if also else f"{answer}."
    sure = "" if kind.confidence >= 0.8 else "most probably " if kind.confidence >= 0.6 else "perhaps "
    head = f"It ran out of memory, {sure}by {_article(kind.kind)}: {kind.why}"
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

        settings: dict[str, Any] = flat(configs.load(path))
        return settings
    return {}
