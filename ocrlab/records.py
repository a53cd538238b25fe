"""What crosses a process border, as dataclasses that turn into JSON and back; standard library only.

Every JSON object carries `"schema": 1`. A reader refuses a newer schema by name and reads every older one.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from ocrlab.errors import DataError

SCHEMA = 1


@dataclass(frozen=True)
class Detection:
    """One text region: `polygon` is a list of [x, y] in pixels of the original image, `score` is in 0..1."""

    polygon: list[list[float]]
    score: float


@dataclass(frozen=True)
class Prediction:
    """All text regions of one image, whose size in pixels is `width` x `height`."""

    image: str
    width: int
    height: int
    detections: list[Detection] = field(default_factory=list)


@dataclass(frozen=True)
class RunRecord:
    """The content of a sentinel (`.RUNNING`, `.SUCCESS`, `.FAILURE`); times are ISO 8601 in UTC."""

    status: str  # running, success, failure
    started: str
    ended: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    error: dict[str, Any] | None = None  # {"type", "message", "where", "traceback"}
    verdict: str | None = None


@dataclass(frozen=True)
class Reading:
    """A probed value, or the reason why there is none."""

    name: str
    value: Any = None
    missing: str | None = None


@dataclass(frozen=True)
class Evidence:
    """One line that supports a cause: its file in the incident (log_tail.txt), its number from 1, and its text."""

    file: str
    line: int | None
    text: str


@dataclass(frozen=True)
class Cause:
    """Why it failed: an id of the catalogue, how sure (0..1), evidence, confirming experiment, fix.

    `explanation` is the cause in the program's own names, numbers and lines; `edit` the line to change, as
    {"file", "line", "before", "after"}.
    """

    id: str
    confidence: float
    evidence: list[Evidence] = field(default_factory=list)
    experiment: str = ""
    fix: str = ""
    explanation: str | None = None
    edit: dict[str, Any] | None = None


@dataclass(frozen=True)
class RuledOut:
    """A cause or a message that was looked at and is not the reason: a follow-up, a wrapper, advice."""

    id: str
    why: str


@dataclass(frozen=True)
class Verdict:
    """The diagnosis of an incident, most probable cause first; no cause at all means that it is unknown.

    `status` is failed, killed, hung, suspected or log; `signal` a name (SIGKILL); `symptom` what surfaced; `values`
    sentences on what the failing line of the program used.
    """

    id: str | None = None
    status: str = "log"
    exit_code: int | None = None
    signal: str | None = None
    symptom: str | None = None
    causes: list[Cause] = field(default_factory=list)
    ruled_out: list[RuledOut] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Incident:
    """Everything that is known of one failure, and all that a diagnosis may look at.

    `texts` holds whole texts by file name, oldest line first: log_tail.txt (the program's output), traceback.txt,
    stacks.txt (py-spy's or faulthandler's format), kernel_log.txt, errors.txt (those that it hid).
    `context` is what a person said about it.
    `facts` are measured from outside, each key only where it is known:
      oom_kills (int, by how much the counter of the program's own control group grew), kernel_log_read (True),
      oom_pids (the program's pids in kernel_log.txt; in a container they differ from `pids`),
      pids (all that ever belonged to the command), main_pid, exits ([{"pid", "role", "exit_code", "signal"}]),
      silent_seconds, run_seconds, ended_by ("user" Ctrl-C, "limit" the watcher, "outside" another signal sender),
      hang ({"id", "confidence", "pid", "why", "evidence"} of `diagnose.hang`), heartbeat ({"step", "phase", "age"}),
      record (where its flight record ends, a sentence that decides no cause),
      memory_limit_bytes, memory_peak_bytes, shm_free_bytes, disk_free_bytes, fd_limit, platform ("wsl2" or "linux"),
      memory ({"seconds", "tree", "shm"}: bytes of all its processes over time; "group", "processes"),
      values (the last frames of the exception that ended it, with the values that their lines used; never stored),
      explained (its explanation, as it was made while the values were there), cells (of a notebook, never stored),
      silent (which handler may have taken the first error, by the source),
      gpus ({"cards"} at its first out-of-memory message), address_space_bytes (RLIMIT_AS),
      cpu_flags (list), gpu ({"name", "capability", "driver"}), torch ({"version", "cuda", "arch_list"}).
    """

    status: str = "log"
    exit_code: int | None = None
    signal: str | None = None
    texts: dict[str, str] = field(default_factory=dict)
    context: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A probe with a judgement (ok, warn, fail, skip): what was observed, what is needed, the fix."""

    name: str
    judgement: str
    observed: str
    need: str = ""
    do: str = ""
    step: int = 0  # of the ladder, 1..10
    cause: str | None = None  # an id of the catalogue, where it names one
    seconds: float = 0.0


def check_record(check: Check) -> dict[str, Any]:
    """Return a check as the dict that is written to JSON, where `observed` is called `seen`."""
    return {"seen" if name == "observed" else name: value for name, value in asdict(check).items()}


def to_json(record: Any, **extra: Any) -> dict[str, Any]:
    """Return a dataclass as a JSON-ready dict with its schema number; NaN and infinities become None (RFC 8259)."""
    return {"schema": SCHEMA, **finite(asdict(record)), **finite(extra)}


def finite(value: Any) -> Any:
    """Return `value` with every float that JSON cannot hold (NaN, infinities) replaced by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def fitting(value: Any, shape: Any) -> Any:
    """Return what of a stranger's value has a shape, None where nothing has.

    A shape is a type or several; `[shape]`, of which the items that fit stay; or an object of keys and their shapes,
    of which a key with another value goes, and one that the shape does not have stays.
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return None
        fit = {key: fitting(item, shape[key]) if key in shape else item for key, item in value.items()}
        return {key: item for key, item in fit.items() if item is not None or value[key] is None}
    if isinstance(shape, list):
        items = value if isinstance(value, list) else []
        return [fit for item in items if (fit := fitting(item, shape[0])) is not None] if items == value else None
    good = isinstance(value, shape) and (not isinstance(value, float) or math.isfinite(value))
    return value if good and (not isinstance(value, bool) or shape is not int) else None


def from_json(text: str | bytes, *, source: str) -> dict[str, Any]:
    """Parse one JSON object written by ocrlab and check its schema number; raises DataError naming `source`."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for 100,000 lists in each other
        raise DataError(f"{source} is not JSON", got=str(error), need="a file written by ocrlab") from error
    if not isinstance(record, dict):
        raise DataError(f"{source} is not a JSON object", got=type(record).__name__, need="an object with a schema")
    schema = record.get("schema", SCHEMA)
    if not isinstance(schema, int) or schema > SCHEMA:
        need = f"schema {SCHEMA} or older"
        raise DataError(
            f"{source} was written by a newer ocrlab", got=f"schema {schema}", need=need, do="Update ocrlab"
        )
    return record
