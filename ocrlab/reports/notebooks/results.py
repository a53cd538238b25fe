"""The result of a notebook as data: one output of its own type in the notebook, and the same JSON in the run folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ocrlab._version import __version__
from ocrlab.errors import DataError
from ocrlab.hardware import host
from ocrlab.records import from_json, to_json
from ocrlab.redaction import clean, clean_record
from ocrlab.reports.notebooks.outcome import Judgement, Outcome
from ocrlab.run_folder import write_json

MIME = "application/vnd.ocrlab.result+json"
FILE = "report.json"  # in a run folder, beside report.ipynb
PACKAGES = (
    "torch",
    "torchvision",
    "lightning",
    "numpy",
    "opencv-python",
    "shapely",
    "pyclipper",
    "numba",
    "matplotlib",
)


@dataclass(frozen=True)
class Result:
    """How a notebook ended, with everything needed to compare it with another.

    `metrics` maps a name to {"value", "unit", "limit", "warn"}, None where there is no limit; `artefacts` holds
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
    """Return the result of a notebook; nothing in it names this person, and no secret is kept."""
    measured = {name: {"value": value, "unit": "", "limit": None, "warn": None} for name, value in metrics.items()}
    measured |= {judgement.metric: _limited(judgement) for judgement in outcome.judgements}
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


def bundle(result: Result) -> dict[str, Any]:
    """Return the notebook output that holds a result."""
    return {MIME: json.loads(json.dumps(to_json(result), default=str))}


def from_bundle(data: Mapping[str, Any]) -> Result | None:
    """Return the result in a notebook output's data, None where it holds none that can be read."""
    content = data.get(MIME)
    words = ("name", "outcome", "sentence")
    if not isinstance(content, Mapping) or not all(isinstance(content.get(word), str) for word in words):
        return None
    return Result(**{key: content[key] for key in Result.__dataclass_fields__ if key in content})


def save(result: Result, folder: Path) -> Path:
    """Write `report.json` into a run folder and return its path; raises OSError."""
    path = folder / FILE
    write_json(path, clean_record(to_json(result)))
    return path


def load(path: Path | str) -> Result:
    """Read the result of an executed notebook, of a JSON file, or of a run folder; raises DataError naming the file."""
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        do = "Execute the notebook first; it ends in lab.finish()"
        raise DataError(
            f"{path} cannot be read", got=str(error), need="an executed notebook or its JSON", do=do
        ) from None
    if path.suffix == ".ipynb":
        text = json.dumps(_from_notebook(text, path))
    content = from_json(text, source=str(path))
    if not isinstance(content.get("name"), str) or content.get("outcome") is None:
        raise DataError(f"{path} holds no result", got=f"keys {', '.join(sorted(content))}", need="name and outcome")
    return Result(**{key: content[key] for key in Result.__dataclass_fields__ if key in content})


def copy_beside(notebook: Path | str) -> Path:
    """Write the result of an executed notebook as JSON beside it, and return that file; raises DataError, OSError."""
    path = Path(notebook).with_suffix(".json")
    metadata = json.loads(Path(notebook).read_bytes()).get("metadata", {}).get("ocrlab", {})
    write_json(path, clean_record({**to_json(load(notebook)), "redacted": metadata.get("redacted")}))
    return path


def _from_notebook(text: str, path: Path) -> Any:
    """Return the last result among the outputs of a notebook."""
    try:
        cells = json.loads(text)["cells"]
        outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
        contents = [data[MIME] for data in outputs if MIME in data]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is not a notebook", got=got, need="a .ipynb file") from error
    if not contents:
        raise DataError(f"{path} holds no result", need="an output of type " + MIME, do="Execute the notebook first")
    return contents[-1]


def _limited(judgement: Judgement) -> dict[str, Any]:
    return {key: value for key, value in asdict(judgement).items() if key != "metric"}


def _artefact(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}
