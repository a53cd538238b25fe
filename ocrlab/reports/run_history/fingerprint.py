"""The name of a failure: the same for the same failure in another run, on another machine, a few lines further down.

It is made of the symptom, the cause, the type of the exception or the signal, and the innermost function of the user's
own (else of ocrlab's) without its line. What changes from run to run takes no part: addresses, numbers, folders, and
the place where a signal from outside happened to find the program. Sentry groups events in the same way
(https://develop.sentry.dev/backend/application-domains/grouping/): by type and in-app frames, by the text of the
message only where there is no frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from ocrlab import safe_read
from ocrlab.errors import OcrlabError
from ocrlab.records import from_json

VERSION = "1"  # of the recipe; another recipe makes other names
TAIL = 64_000  # bytes of a log, in which its last traceback is looked for
LONGEST_TITLE = 300  # characters
LONGEST = 100_000  # characters of a text; what is longer is not from us
WATCHERS = ("Killed", "Failed", "Hung", "Suspected")  # types of records that `ocrlab watch` writes: no exceptions
UNPLACED = ("ext.", "host.", "scheduler.", "hw.")  # causes that strike from outside, wherever the program just is
STOPPED = ("KeyboardInterrupt", "SystemExit")  # somebody stopped it, wherever it just was
TRACEBACK = "Traceback (most recent call last)"
FRAME = re.compile(r'^[ \t|+]*File "(?P<file>[^"\n]{1,500})", line \d+,? in (?P<function>[^\s,]{1,200})', re.MULTILINE)
CELL = re.compile(r"^\s*(?:Cell In\[\d+\], line \d+|File /\S*/ipykernel_\d+/\d+\.py\S*)", re.MULTILINE)  # IPython's
PLACE = re.compile(r"(?:^|\sin )(?P<function>[\w.<>]{1,200}) \((?P<file>[^\s()]{1,500}):\d+\)")  # of a hang's words
RAISED = re.compile(
    r"^(?:[ |+-]{0,40}\| )?((?:\w+\.){0,6}[A-Z]\w{0,80}|(?:\w+\.){1,6}(?:error|timeout))(?::|$)", re.MULTILINE
)
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|/python\d[\d.]*\.zip/|^<(?!isolated)")
OURS = re.compile(r"(?:^|/)(ocrlab/(?!ocrlab/)(?:[\w-]+/)*[\w-]+\.py)$")
NOTEBOOK = re.compile(r"ipykernel_\d+/\d+\.py$|^<isolated cell>$|^<ipython-input")
CHANGING = (
    (re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`"), "<text>"),
    (re.compile(r"(?<![\w.])~?/[^\s,;:)\]]+"), "<path>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b[0-9a-f]{8}(?:-?[0-9a-f]{4,}){1,4}\b"), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?"), "<number>"),
)


@dataclass(frozen=True)
class Fingerprint:
    """A failure's name `id` (10 hexadecimal digits), and what it was made of; `title` says it in words."""

    id: str
    title: str
    kind: str  # type of the exception, name of the signal, or empty
    cause: str  # an id of the catalogue, or empty
    symptom: str
    place: str  # read (data.py), or empty


def fingerprint(
    error: Mapping[str, Any] | None, verdict: Mapping[str, Any] | None = None, cause: str | None = None, log: str = ""
) -> Fingerprint:
    """Return the fingerprint of a failure: `error` as in `RunRecord`, `verdict` as in verdict.json, `log` its output.

    `cause` is used where there is no verdict. Every part may be missing or broken; nothing is raised.
    """
    record, judgement = error or {}, verdict or {}
    causes = [item for item in _list(judgement.get("causes")) if isinstance(item, Mapping)]
    named = _word(causes[0].get("id")) if causes else _word(cause)
    named = "" if named == "unknown" else named
    kind = _word(record.get("type")).rpartition(".")[2]
    traceback = _word(record.get("traceback"))
    if kind in WATCHERS or not kind:  # nothing but how it ended: the program's own words are in its output
        traceback = log
        raised = RAISED.search(log, log.rfind(TRACEBACK)) if TRACEBACK in log else None
        ended = _word(judgement.get("status")) not in ("killed", "hung", "suspected")
        kind = raised[1].rpartition(".")[2] if raised and ended else _word(judgement.get("signal"))
        message = _word(record.get("message"))
        kind = kind or (message.rpartition(" ")[2] if message.startswith("killed by SIG") else "")
    file, function = "", ""
    if not named.startswith(UNPLACED) and kind not in STOPPED:
        evidence = _list(causes[0].get("evidence")) if causes else []
        lines = [_word(item.get("text")) for item in evidence if isinstance(item, Mapping)]
        own = traceback if traceback is not log else ""
        place = _innermost(own) or _evidence_frame(lines) or _innermost(log) or _record_frame(record)
        file, function = place or ("", "")
    words = _word(record.get("message"))
    message = words[:200] if _word(record.get("type")) in WATCHERS else normalize_message(words)
    message = "" if file or named else message
    return _build(_word(judgement.get("symptom")), named, kind, file, function, message)


def normalize_message(message: str) -> str:
    """Return the first line of a message without what changes from run to run: numbers, addresses, paths, names."""
    line = message.strip().partition("\n")[0][:500]
    for pattern, word in CHANGING:
        line = pattern.sub(word, line)
    return line[:200]


def stored_verdict(run: str) -> dict[str, Any] | None:
    """Return verdict.json of a run folder; None where there is none that can be read."""
    path = f"{run}/incident/verdict.json"
    try:
        return from_json(safe_read.read_small(path), source=path)
    except (OSError, OcrlabError):
        return None


def output(run: str, error: Mapping[str, Any] | None) -> str:
    """Return the end of a run's output, as the watcher kept it, where its record says nothing of an exception."""
    if (error or {}).get("traceback"):
        return ""
    try:
        return safe_read.ends(f"{run}/incident/log_tail.txt", TAIL)[1].decode("utf-8", errors="replace")
    except OSError:
        return ""


@lru_cache(maxsize=4096)
def _build(symptom: str, cause: str, kind: str, file: str, function: str, message: str) -> Fingerprint:
    import hashlib  # slow to import, and only a failure needs it

    parts = "\0".join((VERSION, symptom, cause, kind, file, function, message))
    place = f"{function} ({file})" if file else ""
    title = ": ".join(filter(None, (cause, kind, message))) or "no message"
    title += f" in {place}" if place else ""
    name = hashlib.sha256(parts.encode("utf-8", errors="replace")).hexdigest()[:10]
    return Fingerprint(name, title[:LONGEST_TITLE], kind[:LONGEST_TITLE], cause, symptom, place)


@lru_cache(maxsize=512)  # the same failure often comes again, to the letter
def _innermost(text: str) -> tuple[str, str] | None:
    """Return file and function of the innermost own frame of the last traceback in a text: the user's, else ours."""
    block = text[text.rfind(TRACEBACK) :] if TRACEBACK in text else ""
    frames = [(match["file"], match["function"]) for match in FRAME.finditer(block)]
    return _own(frames) or (("notebook cell", "<module>") if CELL.search(block) else None)


def _evidence_frame(lines: Iterable[str]) -> tuple[str, str] | None:
    """Return the own frame that lines of evidence name: a line of a traceback or a dump, or the words of a hang."""
    matches = [match for line in lines for match in (FRAME.match(line), PLACE.search(line)) if match]
    return next((own for match in matches if (own := _own([(match["file"], match["function"])]))), None)


def _record_frame(error: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return file and function of a record that has no traceback: its `your_code` or `where`."""
    for name in ("your_code", "where"):
        place, _, function = _word(error.get(name)).rpartition(" ")
        file = place.rpartition(":")[0]
        if file:
            return _short(file), function
    return None


def _own(frames: list[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the innermost frame of the user's, else of ocrlab's, innermost last; a named function rather than none."""
    owners = [_owner(file) for file, _ in frames]
    for owner in ("user", "ocrlab"):
        own = [frame for frame, its_owner in zip(frames, owners, strict=True) if its_owner == owner]
        if own:
            file, function = ([frame for frame in own if not frame[1].startswith("<")] or own)[-1]
            return _short(file), function.rpartition(".")[2]
    return None


@lru_cache(maxsize=4096)  # the same few files make up thousands of tracebacks
def _owner(file: str) -> str:
    if OURS.search(file):
        return "ocrlab"
    return "user" if NOTEBOOK.search(file) or not LIBRARY.search(file) else "library"


@lru_cache(maxsize=4096)
def _short(file: str) -> str:
    """Return a file as every machine knows it: by its name, ours from `ocrlab/` on, a cell as a cell."""
    if NOTEBOOK.search(file):
        return "notebook cell"
    own = OURS.search(file)
    path = PurePosixPath(file)
    return own[1] if own else "/".join(path.parts[-2:]) if path.name.startswith("__") else path.name


def _word(value: object) -> str:
    return value[-LONGEST:] if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
