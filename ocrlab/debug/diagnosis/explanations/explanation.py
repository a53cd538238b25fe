"""What an explanation is, and the functions that write them, by kind of fact."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ocrlab.debug.diagnosis.explanations.failure import Failure
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.source import Source


@dataclass(frozen=True)
class Edit:
    """A line to change: its file and number, what it says, what it should say."""

    file: str
    line: int
    before: str
    after: str

    def to_json(self) -> dict[str, Any]:
        """Return the edit as verdict.json has it."""
        return {"file": self.file, "line": self.line, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Explanation:
    """The fault in the program's own names, numbers and lines (one to three sentences), and its fix."""

    text: str
    fix: str
    edit: Edit | None = None


Explain = Callable[[Fact, Failure], "Explanation | None"]
ANY = "any"  # a kind of fact that every failure has
FUNCTIONS: dict[str, list[Explain]] = {}
GENERAL: dict[str, list[Explain]] = {}  # asked where none of the others knows an answer


def explains(*kinds: str, general: bool = False) -> Callable[[Explain], Explain]:
    """Register a function for kinds of facts; of several for one kind the first that knows an answer is taken."""

    def register(function: Explain) -> Explain:
        for kind in kinds:
            (GENERAL if general else FUNCTIONS).setdefault(kind, []).append(function)
        return function

    return register


def replaced(source: Source | None, line: int, before: str, after: str) -> Edit | None:
    """Return the edit that replaces a piece of a line, if it stands there exactly once."""
    text = source.line(line) if source is not None else ""
    if source is None or text.count(before) != 1:
        return None
    return Edit(source.file, line, text.strip(), text.replace(before, after).strip())


def changed(source: Source | None, node: ast.expr | None, after: str) -> Edit | None:
    """Return the edit that writes `after` in place of an expression that stands in one line."""
    if source is None or node is None or node.lineno != node.end_lineno:
        return None
    line = source.line(node.lineno)
    text = line.encode()
    new = text[: node.col_offset] + after.encode() + text[node.end_col_offset :]
    return Edit(source.file, node.lineno, line.strip(), new.decode(errors="replace").strip())


def in_parentheses(source: Source, node: ast.expr) -> str:
    """Return the text of an expression, in parentheses where a method call could not follow it."""
    text = source.code(node)
    operators = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.Await)
    return f"({text})" if isinstance(node, operators) else text


def times(shape: tuple[int, ...] | list[int]) -> str:
    """Return `3 x 64 x 64`."""
    return " x ".join(map(str, shape)) if shape else "a single number"


def sizes(shape: tuple[int, ...] | list[int]) -> str:
    """Return `(3, 64, 64)`."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def a(noun: str) -> str:
    """Return `a list`, `an int`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return `1 row`, `2 rows`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(names: list[str] | tuple[str, ...], most: int = 4) -> str:
    """Return `a, b and c`; of many the first few and how many more."""
    names = list(names)
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
