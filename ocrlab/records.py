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


def from_json(text: str | bytes, *, source: str) -> dict[str, Any]:
    """Parse one JSON object written by ocrlab and check its schema number; raises DataError naming `source`."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{source} is not JSON", got=str(error), need="a file written by ocrlab") from error
    if not isinstance(found, dict):
        raise DataError(f"{source} is not a JSON object", got=type(found).__name__, need="an object with a schema")
    schema = found.get("schema", SCHEMA)
    if not isinstance(schema, int) or schema > SCHEMA:
        need = f"schema {SCHEMA} or older"
        raise DataError(
            f"{source} was written by a newer ocrlab", got=f"schema {schema}", need=need, do="Update ocrlab"
        )
    return found
