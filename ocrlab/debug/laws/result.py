"""What a law answers: held, broken, a hint that it may be, or not tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["broken", "hint", "held", "untested"]
MARKS: dict[State, str] = {"broken": "[fail]", "hint": "[warn]", "held": "[ok]", "untested": "[skip]"}


@dataclass(frozen=True)
class Result:
    """What a law answers: what was measured and where, what should agree, the causes in order, what to do."""

    state: State
    got: str
    where: str = ""
    need: str = ""
    causes: tuple[str, ...] = ()
    do: str = ""
    rule: str = ""
    law: str = ""

    @property
    def judgement(self) -> str:
        """`fail` for what makes training wrong, `warn` for what may be meant so."""
        return MARKS[self.state].strip("[]")

    @property
    def sentence(self) -> str:
        """What was measured and what to do, as a recorder says it."""
        return f"{self.where}: {self.got}. {self.do}"

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.got}" if self.where else self.got]
        parts += [f"Needed: {self.need}"] if self.need else []
        parts += [f"Usual causes: {'; '.join(self.causes)}"] if self.causes else []
        parts += [f"Fix: {self.do}"] if self.do else []
        return f"{MARKS[self.state]} {self.law}: {'. '.join(part.rstrip('.') for part in parts)}"


def broken(rule: str, where: str, got: str, need: str, do: str, *causes: str) -> Result:
    """Return that a law is broken: rule, place, what was measured, what should be, what to do, usual causes."""
    return Result("broken", got, where, need, causes, do, rule)


def hint(rule: str, where: str, got: str, need: str, do: str, *causes: str) -> Result:
    """Return that a law is probably broken."""
    return Result("hint", got, where, need, causes, do, rule)


def holds(got: str) -> Result:
    """Return that a law holds, and what was measured."""
    return Result("held", got)
