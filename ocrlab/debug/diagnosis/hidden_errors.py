"""The first error of a program that hid it, as the traceback that should have been shown.

A handler can fail itself, raise something else `from None`, print one line and leave, or go on until the program fails
because something was never made. Only errors that the error hook recorded are shown; where nothing links the last error
to an earlier one, there is no text. The source shows in which `except` block a line stands, and which one guards it.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.debug.diagnosis.final_exception import TRIED
from ocrlab.debug.diagnosis.log_records import NOTE
from ocrlab.debug.diagnosis.log_text import WRITES

LARGEST = 2 << 20  # bytes of a source file that is read
BROAD = {"Exception", "BaseException", ""}
LEAVES = re.compile(r"\b(?:sys\.exit|os\._exit|exit|quit)\(|\breturn\b|SystemExit|\bbreak\b")
MUTATES = {"append", "add", "extend", "update", "insert", "setdefault"}
FILE = "errors.txt"
Link = dict[str, Any]  # of a chain: type, kinds, says, frames, by
Record = dict[str, Any]
PRINTED = 60  # characters of a message that are looked for in the output
# Of an error that something was never made: bound, written or filled.
UNBOUND = re.compile(r"\bname '(\w+)' is not defined|local variable '(\w+)'")
UNMADE = ("FileNotFoundError", "NotADirectoryError")
EMPTY = ("ZeroDivisionError", "IndexError", "KeyError", "AttributeError", "TypeError", "ValueError", "StatisticsError")
COUNTED = 1000  # times up to which `watch.inside` counts each
MANY = 3  # times from which an error that any handler takes is worth a word at a good end
ENDS = ("exit", "uncaught")
TRIES = {"OSError", "LookupError", "ImportError"}
# They end a task, a generator or a loop: the error is what was raised after them.
CONTROL_FLOW = {"CancelledError", "GeneratorExit", "StopIteration", "StopAsyncIteration"}
SYNTAX = re.compile(r" \([^()\n]*, line \d+\)$")  # in the text of a SyntaxError, and not in what Python prints of it
UNREAD = re.compile(r"\(\w+(?:, \w+)*\)")  # the types of its arguments, in place of a message
INSTEAD = "its handler raised another one"


@dataclass(frozen=True)
class Handler:
    """An `except` clause and the try statement that it belongs to."""

    file: str
    guard: ast.Try
    clause: ast.ExceptHandler

    @property
    def name(self) -> str:
        """Where it stands, as people write it."""
        return f"{Path(self.file).name}:{self.clause.lineno}"

    @property
    def catches(self) -> set[str]:
        """The names of the classes that it catches; an empty name for a bare `except`."""
        kind = self.clause.type
        parts = kind.elts if isinstance(kind, ast.Tuple) else [kind] if kind else [ast.Name("")]
        return {str(getattr(part, "attr", getattr(part, "id", "?"))) for part in parts}

    @property
    def broad(self) -> bool:
        """Whether it takes any error."""
        return bool(self.catches & BROAD)

    @property
    def does(self) -> str:
        """Its source."""
        return _source(self.file, self.clause, self.clause)

    @property
    def raises(self) -> bool:
        """Whether it raises, the same error or another one."""
        return any(isinstance(node, ast.Raise) for node in ast.walk(self.clause))

    @property
    def guarded(self) -> str:
        """The source that it guards."""
        return _source(self.file, self.guard.body[0], self.guard.body[-1])

    @property
    def binds(self) -> set[str]:
        """The names that the guarded source binds, imports, or whose objects it fills."""
        nodes = [node for statement in self.guard.body for node in ast.walk(statement)]
        names = {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
        for node in nodes:
            stores = isinstance(node, ast.Name | ast.Subscript) and isinstance(node.ctx, ast.Store)
            is_filled = isinstance(node, ast.Attribute) and node.attr in MUTATES
            if stores or is_filled:
                owner = node if isinstance(node, ast.Name) else node.value  # type: ignore[attr-defined]
                names |= {owner.id} if isinstance(owner, ast.Name) else set()
        return names


def handler_around(file: str, line: int) -> Handler | None:
    """Return the innermost `except` block that a line stands in; None where it is in none, or there is no source."""
    handlers = [Handler(file, node, clause) for node in _tries(file) for clause in node.handlers]
    around = [each for each in handlers if each.clause.lineno <= line <= (each.clause.end_lineno or 0)]
    return max(around, key=lambda handler: handler.clause.lineno, default=None)


def guarding_handler(file: str, line: int, kinds: Sequence[str]) -> Handler | None:
    """Return the innermost `except` that takes an error of a line, whose classes have the names `kinds`."""
    around = [node for node in _tries(file) if node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)]
    innermost = sorted(around, key=lambda node: -node.lineno)
    handlers = (Handler(file, node, clause) for node in innermost for clause in node.handlers)
    return next((handler for handler in handlers if handler.catches & {*kinds, ""}), None)


def names_read(file: str, line: int) -> set[str]:
    """Return the names that the statement in a line reads."""
    statements = [node for node in ast.walk(_tree(file)) if isinstance(node, ast.stmt) and node.lineno <= line]
    statements = [node for node in statements if line <= (node.end_lineno or 0)]
    if not statements:
        return set()
    innermost = max(statements, key=lambda node: (node.lineno, -(node.end_lineno or 0)))
    parts: list[ast.AST] = [innermost]
    if isinstance(innermost, ast.For | ast.While | ast.If | ast.With):  # of a compound statement only its head
        parts = [part for part in ast.iter_child_nodes(innermost) if not isinstance(part, ast.stmt)]
    return {node_.id for part in parts for node_ in ast.walk(part) if isinstance(node_, ast.Name)}


def source_line(file: str, line: int) -> str:
    """Return a line of a file; empty where there is none."""
    lines = _text(file).split("\n")
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def _source(file: str, first: ast.AST, last: ast.AST) -> str:
    """Return the lines of a file from one node to another."""
    return "\n".join(_text(file).split("\n")[first.lineno - 1 : last.end_lineno])  # type: ignore[attr-defined]


def _tries(file: str) -> list[ast.Try]:
    return [node for node in ast.walk(_tree(file)) if isinstance(node, ast.Try)]


@functools.lru_cache(maxsize=32)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(_text(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


@functools.lru_cache(maxsize=32)
def _text(file: str) -> str:
    try:
        path = Path(file)
        return safe_read.read_text(path) if path.stat().st_size < LARGEST else ""
    except (OSError, ValueError):
        return ""


Story = tuple[Sequence[Link], Sequence[str]]  # errors, oldest first, and in a sentence what became of each


def errors_text(records: Sequence[Record], log: str, main: int) -> str:
    """Return the text of `errors.txt`, tracebacks with notes between; empty where the program shows its first error."""
    story = _story(records, log, main)
    if story is None:
        return ""
    links, notes = story
    parts = [[traceback(link), *(f"{NOTE}{note}\n" for note in notes[at : at + 1])] for at, link in enumerate(links)]
    return "\n".join(itertools.chain.from_iterable(parts))


def most_swallowed_error(records: Sequence[Record]) -> str:
    """Return a sentence about the error that a program with exit status 0 has swallowed most often; empty if none."""
    counts: dict[tuple[object, ...], int] = {}
    for record in records:
        if record["kind"] == "times":
            key = (record["pid"], *record["key"])
            counts[key] = max(counts.get(key, 1), int(record["count"]))
    swallowed = []
    for record in (record for record in records if record["kind"] == "handled"):
        by, count = _taken_by(record["chain"][0]), counts.get((record["pid"], *record["key"]), 1)
        if by and by.broad and count >= MANY and "raise" not in by.does:
            swallowed.append((count, record["chain"][0], by))
    if not swallowed:
        return ""
    count, link, by = max(swallowed, key=lambda row: row[0])
    error = _error_line(link).partition("\n")[0][:160]
    many = f"at least {count}" if count >= COUNTED else f"{count}"
    return f"exit status 0, but the `except` in {by.name} has swallowed {many} errors: {error}"


def suspected_handler(records: Sequence[Record], log: str, main: int) -> str:
    """Return in a sentence which handler may have taken the first error, where Python could not tell (before 3.12)."""
    for end in _ends(records, log, main):
        last = end["chain"][0]
        frames = [] if end["kind"] != "uncaught" or end.get("hears") else last["frames"]
        for file, line, _ in reversed(frames):
            before = [node for node in _tries(file) if node.lineno < line]
            handlers = [Handler(file, node, clause) for node in before for clause in node.handlers]
            swallowing = (each for each in handlers if each.broad and not (LEAVES.search(each.does) or each.raises))
            by = next((handler for handler in swallowing if _may_explain(handler, line, last)), None)
            if by:
                return f"an error that the `except` in {by.name} may have taken in silence: `raise` there shows it"
    return ""


def _may_explain(by: Handler, line: int, last: Link) -> bool:
    """Return whether what a line lacks is made in what a handler guards, by the source alone."""
    if last["type"] not in UNMADE:
        return _explains(by, last, [(by.file, line)])
    missing = re.search(r"'([^']{1,500})'", str(last["says"]))
    shared = names_read(by.file, line) - {"open", "torch", "json", "os", "np", "Path", "print"}
    is_shared = shared & set(re.findall(r"\w+", by.guarded)) or (missing and Path(missing[1]).name in by.guarded)
    return bool(is_shared and WRITES.search(by.guarded))


def _ends(records: Sequence[Record], log: str, main: int) -> list[Record]:
    """Return how processes ended of an error: the program itself, then those whose error stands in the output."""
    ends = [record for record in records if record["kind"] in ENDS]
    ours = [record for record in ends if record["pid"] == main]
    shown = [record for record in ends if record["pid"] != main and _shows(log, record["chain"][0])]
    return [*reversed(ours), *shown]


def _story(records: Sequence[Record], log: str, main: int) -> Story | None:
    ends = _ends(records, log, main)
    for end in ends:
        story = _lost(end["chain"], log)
        story = story or (_unmade(records, end) if end["kind"] == "uncaught" else _left(end, log))
        if story or end["kind"] == "exit":
            return story
    if ends:
        link = ends[0]["chain"][0]
        if ends[0]["pid"] != main or _shows(log, link) or link["type"] == "KeyboardInterrupt":
            return None
        return [link], ["this error ended the program, and its output does not show it"]
    last = [record for record in records if record["kind"] == "handled" and record["pid"] == main]
    taken = next((record for record in reversed(last) if _leaves(record["chain"][0], log)), None)
    return (_lost(taken["chain"], log) or _left(taken, log)) if taken else None


def _lost(chain: Sequence[Link], log: str) -> Story | None:
    """Return the story of an error whose handler raised another one, if the output does not show it as such."""
    errors = itertools.takewhile(lambda link: str(link["type"]).rpartition(".")[2] not in CONTROL_FLOW, chain[1:])
    chain = [*chain[:1], *errors]
    how = [_became(earlier, later) for later, earlier in itertools.pairwise(chain)]
    lost = max((number for number, words in enumerate(how, 1) if words), default=0)
    links = chain[: lost + 1]
    hidden = any(later["by"] == "hidden" for later in links[:-1])
    if not lost or (_traced(log, links[-1]) and not hidden and not _tried(links[-1])):
        return None  # nothing was lost, or Python's own words show it
    return links[::-1], [words or f"{INSTEAD}:" for words in how[:lost]][::-1]


def _became(earlier: Link, later: Link) -> str:
    """Return how an error gave way to a later one; empty where the later one is the error that counts."""
    if later["by"] == "cause":
        return ""  # `raise ... from error`: both are shown, and the program wants it so
    at = next(filter(None, (handler_around(file, line) for file, line, _ in later["frames"])), None)
    broad = any(handler.broad for handler in (at, _taken_by(earlier)) if handler)
    raising = "\n".join(source_line(file, line) for file, line, _ in later["frames"][-3:])
    reports = at is not None and WRITES.search(raising) is not None
    if _tried(earlier) and not (broad or reports):
        return ""  # another way was tried
    inner = [frame for frame in later["frames"] if at and handler_around(*frame[:2]) == at] or later["frames"][-1:]
    place = f", in {inner[0][2]} ({Path(inner[0][0]).name}:{inner[0][1]})" if inner else ""
    if later["by"] == "hidden":
        return f"the handler of this error raised another one `from None`, which hides it{place}:"
    return f"the handler of this error failed itself{place}:"


def _left(end: Record, log: str) -> Story | None:
    """Return the story of an error that was caught, and that the program ended itself for."""
    link = end["chain"][0]
    if _traced(log, link):
        return None
    by = _taken_by(link)
    place = f", in {by.name}" if by else ""
    return [link], [f"the program caught this error and ended itself without showing where it arose{place}"]


def _leaves(link: Link, log: str) -> bool:
    """Return whether a handled error is what the program ended for: its handler leaves, or its message is shown."""
    by = _taken_by(link)
    if by is None or _traced(log, link):
        return False
    printed = str(link["says"]).partition("\n")[0][:PRINTED]
    return bool(LEAVES.search(by.does)) and (by.broad or (len(printed) > 3 and printed in log))


def _unmade(records: Sequence[Record], end: Record) -> Story | None:
    """Return the story of a program that failed of what an error had kept it from making, which it had swallowed."""
    last = end["chain"][0]
    for record in records:
        if record["kind"] != "handled" or record["pid"] != end["pid"] or record["time"] > end["time"]:
            continue
        link = record["chain"][0]
        by = _taken_by(link)
        same = all(link[key] == last[key] for key in ("type", "says")) and link["frames"][-1:] == last["frames"][-1:]
        if by is None or same or not (by.broad or not _tried(link)):
            continue
        written = [by.guarded, *(source_line(file, line) for file, line, _ in link["frames"])]
        unwritten = last["type"] in UNMADE and any(WRITES.search(line) for line in written)
        if unwritten or _explains(by, last, [frame[:2] for frame in last["frames"] if frame[0] == by.file]):
            note = f"the program caught this error in {by.name} and went on, until it failed of that:"
            return [link, last], [note]
    return None


def _explains(by: Handler, last: Link, places: Sequence[tuple[str, int]]) -> bool:
    """Return whether what a handler broke off would have bound or filled what the program lacked at some places."""
    unbound = UNBOUND.search(str(last["says"]))
    if unbound:
        return (unbound[1] or unbound[2]) in by.binds
    return last["type"] in EMPTY and any(names_read(file, line) & by.binds for file, line in places)


def _taken_by(link: Link) -> Handler | None:
    """Return the `except` that took an error: its traceback begins in the function of that."""
    if not link["frames"]:
        return None
    file, line, _ = link["frames"][0]
    return guarding_handler(file, line, link["kinds"])


def _tried(link: Link) -> bool:
    """Return whether an error is of a kind that handlers take in order to try another way."""
    return bool(TRIES & set(link["kinds"])) or TRIED.search(link["type"]) is not None


def _error_line(link: Link) -> str:
    message = str(link["says"])
    return f"{link['type']}: {message}" if message else str(link["type"])


def _shows(log: str, link: Link) -> bool:
    words = _error_line(link).partition("\n")[0]
    if UNREAD.fullmatch(str(link["says"])):  # its own __str__ was not called
        words = f"{link['type']}:"
    return (SYNTAX.sub("", words) if "SyntaxError" in link["kinds"] else words) in log


def _traced(log: str, link: Link) -> bool:
    """Return whether the output shows an error with the place at which it arose."""
    inner = link["frames"][-1:]
    return _shows(log, link) and any(f'"{file}", line {line}' in log for file, line, _ in inner)


def traceback(link: Link) -> str:
    """Return an error as Python would have shown it."""
    lines = ["Traceback (most recent call last):"]
    for file, line, function in link["frames"]:
        source = source_line(file, line)
        lines += [f'  File "{file}", line {line}, in {function}', *([f"    {source}"] if source else [])]
    return "\n".join([*lines, _error_line(link)]) + "\n"
