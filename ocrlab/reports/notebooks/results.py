"""The result of a notebook as data: one output of its own type in the notebook, and the same JSON in the run folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab._version import __version__
from ocrlab.errors import DataError
from ocrlab.hardware import host
from ocrlab.records import from_json, to_json
from ocrlab.redaction import clean, clean_record
from ocrlab.reports.notebooks.outcome import Outcome
from ocrlab.run_folder import write_json

MIME = "application/vnd.ocrlab.result+json"
FILE = "report.json"  # in a run folder, beside report.ipynb
PACKAGES = frozenset("torch torchvision lightning numpy opencv-python shapely pyclipper numba matplotlib".split())


@dataclass(frozen=True)
class Result:
    """How a notebook ended, with everything needed to compare it with another.

    `metrics` maps a name to {"value", "unit", "limit", "warn"}, None without a limit; `artefacts` holds
    {"file", "bytes", "sha256"}; `ending` is {"status", "cell", "exit_code", "signal", "exit_status", "verdict"} of one
    that did not end by itself.
    """

    name: str
    outcome: str
    sentence: str
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    artefacts: list[dict[str, Any]] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    ending: dict[str, Any] | None = None


def build(
    outcome: Outcome,
    *,
    metrics: Mapping[str, float],
    parameters: Mapping[str, Any],
    artefacts: Iterable[Path] = (),
    seconds: float | None = None,
) -> Result:
    """Return the result of a notebook; nothing in it names this person, and it holds no secret."""
    measured = {name: {"value": value, "unit": "", "limit": None, "warn": None} for name, value in metrics.items()}
    judged = {judgement.metric: asdict(judgement) for judgement in outcome.judgements}
    measured |= {metric: {key: row[key] for key in row if key != "metric"} for metric, row in judged.items()}
    machine = host.environment()
    code = {"ocrlab": __version__, "revision": machine.pop("revision", None)}
    machine["packages"] = {name: version for name, version in machine["packages"].items() if name in PACKAGES}
    return Result(
        name=outcome.name,
        outcome=outcome.word,
        sentence=clean(outcome.sentence),
        metrics=measured,
        artefacts=[_artefact(path) for path in artefacts if path.is_file()],
        parameters=clean(dict(parameters)),
        code=code,
        environment=clean(machine),
        seconds=seconds,
    )


def _artefact(path: Path) -> dict[str, Any]:
    with safe_read.open_file(path) as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def bundle(result: Result) -> dict[str, Any]:
    """Return the notebook output that holds a result."""
    return {MIME: json.loads(json.dumps(to_json(result), default=str))}


def from_bundle(data: Mapping[str, Any]) -> Result | None:
    """Return the result in a notebook output's data, None if it holds none that can be read."""
    return _result(data.get(MIME))


def _result(content: object) -> Result | None:
    texts = ("name", "outcome", "sentence")
    if not isinstance(content, Mapping) or not all(isinstance(content.get(name), str) for name in texts):
        return None
    return Result(**{key: content[key] for key in Result.__dataclass_fields__ if key in content})


def save(result: Result, folder: Path) -> Path:
    """Write `report.json` into a run folder and return its path; raises OSError."""
    path = folder / FILE
    write_json(path, clean_record(to_json(result)))
    return path


def load(path: Path | str) -> Result:
    """Read the result of an executed notebook, of a JSON file, or of a run folder; raises DataError naming the file.

    Of several results in a notebook the last counts.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    try:
        text = safe_read.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        need, do = "an executed notebook or its JSON", "Execute the notebook first; it ends in lab.finish()"
        raise DataError(f"{path} cannot be read", got=str(error), need=need, do=do) from None
    if path.suffix == ".ipynb":
        try:
            outputs = [
                output.get("data", {}) for cell in json.loads(text)["cells"] for output in cell.get("outputs", [])
            ]
            contents = [data[MIME] for data in outputs if MIME in data]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            got = f"{type(error).__name__}: {error}"
            raise DataError(f"{path} is not a notebook", got=got, need="a .ipynb file") from error
        if not contents:
            need, do = "an output of type " + MIME, "Execute the notebook first"
            raise DataError(f"{path} contains no result", need=need, do=do)
        text = json.dumps(contents[-1])
    content = from_json(text, source=str(path))
    if (result := _result(content)) is None:
        got, need = f"keys {', '.join(sorted(content))}", "name, outcome and sentence"
        raise DataError(f"{path} contains no result", got=got, need=need)
    return result


def copy_beside(notebook: Path | str) -> Path:
    """Write the result of an executed notebook as JSON beside it, and return that file; raises DataError, OSError."""
    metadata = json.loads(safe_read.read(Path(notebook))).get("metadata", {}).get("ocrlab", {})
    return write_beside(notebook, load(notebook), metadata.get("redacted"))


def write_beside(notebook: Path | str, result: Result, redacted: int | None) -> Path:
    """Write a result as JSON beside its notebook, in which `redacted` places were replaced; raises OSError."""
    path = Path(notebook).with_suffix(".json")
    write_json(path, clean_record({**to_json(result), "redacted": redacted}))
    return path
