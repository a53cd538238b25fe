"""What a law is, what it answers, and the report of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ocrlab.debug.laws.experiment import Experiment
from ocrlab.debug.laws.observation import Observation, Stage
from ocrlab.debug.laws.result import MARKS, Result


@dataclass(frozen=True)
class Extras:
    """What the user handed over beside the step."""

    loader: Any = None
    val_loader: Any = None
    factory: Callable[[], Any] | None = None
    scheduler: Any = None
    batch_size: int | None = None
    loader_given: bool = True  # else it was looked up
    val_given: bool = True


@dataclass(frozen=True)
class Law:
    """A law: its name, the function that tests it, how many runs of the step that takes at most, and what the observed
    step says about it."""

    name: str
    test: Callable[[Experiment, Extras], Iterator[Result]]
    runs: int
    observe: Callable[[Observation], Iterator[Result]] = lambda _: iter(())


@dataclass
class Report:
    """The answers of all laws; it prints one line for each, broken ones first.

    `findings` are the broken laws and hints (rule, where, got, need, do; judgement "fail" or "warn"), `unchecked` what
    was not tested and why, `stages` the modules in the order of the forward pass with the shapes of their outputs,
    `loss` the loss of the step, `norms` the L2 norm of each parameter's gradient by name.
    """

    results: list[Result] = field(default_factory=list)
    loss: float | None = None
    norms: dict[str, float] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    @property
    def findings(self) -> list[Result]:
        """The broken laws and the hints."""
        return [result for result in self.sorted() if result.state in ("broken", "hint")]

    @property
    def unchecked(self) -> list[str]:
        """What was not tested, and why."""
        return [f"{r.law}: {r.got}" for r in self.results if r.state == "untested"]

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
