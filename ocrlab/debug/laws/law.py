"""What a law is, what it answers, and the report of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ocrlab.debug.instruments.step_check.findings import Finding
from ocrlab.debug.laws.experiment import Experiment

State = Literal["broken", "hint", "held", "untested"]
MARKS: dict[State, str] = {"broken": "[fail]", "hint": "[warn]", "held": "[ok]", "untested": "[skip]"}


@dataclass(frozen=True)
class Result:
    """What a law answers: its state, what was measured and where, what should agree, the causes in order, the fix."""

    state: State
    text: str
    where: str = ""
    need: str = ""
    causes: tuple[str, ...] = ()
    fix: str = ""
    rule: str = ""
    law: str = ""

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.text}" if self.where else self.text]
        parts += [f"Needed: {self.need}"] if self.need else []
        parts += [f"Usual causes: {'; '.join(self.causes)}"] if self.causes else []
        parts += [f"Fix: {self.fix}"] if self.fix else []
        return f"{MARKS[self.state]} {self.law}: {'. '.join(part.rstrip('.') for part in parts)}"


@dataclass(frozen=True)
class Extras:
    """What the user handed over beside the step."""

    loader: Any = None
    val_loader: Any = None
    factory: Callable[[], Any] | None = None
    scheduler: Any = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Law:
    """A law: its name, the function that tests it, and how many runs of the step that takes at most."""

    name: str
    test: Callable[[Experiment, Extras], Iterator[Result]]
    runs: int


def holds(text: str) -> Result:
    """Return that a law holds, and what was measured."""
    return Result("held", text)


@dataclass
class Report:
    """The answers of all laws; it prints one line for each, broken ones first.

    `findings` are the broken laws and hints (rule, where, got, need, do; judgement "fail" or "warn"), `unchecked` what
    was not tested and why, `loss` the loss of the step, `norms` the L2 norm of each parameter's gradient by name.
    """

    results: list[Result] = field(default_factory=list)
    loss: float | None = None
    norms: dict[str, float] = field(default_factory=dict)
    stages: list[Any] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """The broken laws and the hints."""
        kinds: dict[State, Literal["fail", "warn"]] = {"broken": "fail", "hint": "warn"}
        return [
            Finding(r.rule or r.law, r.where, r.text, r.need, r.fix, kinds[r.state])
            for r in self.sorted()
            if r.state in kinds
        ]

    @property
    def unchecked(self) -> list[str]:
        """What was not tested, and why."""
        return [f"{r.law}: {r.text}" for r in self.results if r.state == "untested"]

    @property
    def ok(self) -> bool:
        """Whether no law is broken."""
        return not any(r.state == "broken" for r in self.results)

    def sorted(self) -> list[Result]:
        """Return the answers, broken ones first."""
        return sorted(self.results, key=lambda result: list(MARKS).index(result.state))

    def table(self) -> Any:
        """Return the findings as a pandas DataFrame."""
        import pandas

        columns = ["judgement", "rule", "where", "got", "need", "do"]
        return pandas.DataFrame([[getattr(f, c) for c in columns] for f in self.findings], columns=columns)

    def __str__(self) -> str:
        return "\n".join(map(str, self.sorted()))
