"""The way of a notebook from its file to a report: parameters, a name of its own, the execution, and what is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import yaml
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from ocrlab.errors import ConfigError, DataError
from ocrlab.records import to_json
from ocrlab.redaction import clean_record
from ocrlab.reports.html import document
from ocrlab.reports.notebooks import executed_file, parameters, parameters_to_config, results
from ocrlab.reports.notebooks.outcome import Outcome
from ocrlab.reports.notebooks.papermill_engine import Engine
from ocrlab.run_folder import write_json

KERNEL = "python3"
PASSED = ("PASS", "WARN")


@dataclass(frozen=True)
class Prepared:
    """A notebook with its parameters in it, ready to run."""

    notebook: Any
    source: Path
    kernel: str
    ours: bool  # it calls `notebook.setup`, so that an end without an outcome is no good end


@dataclass(frozen=True)
class Files:
    """What an execution leaves: notebook, HTML and JSON beside each other under one name."""

    notebook: Path

    @property
    def html(self) -> Path:
        """Return the report's file."""
        return self.notebook.with_suffix(".html")

    @property
    def json(self) -> Path:
        """Return the result's file."""
        return self.notebook.with_suffix(".json")


@dataclass(frozen=True)
class NotebookResult:
    """How it ended: the word and the sentence of the outcome, and the exit status of `ocrlab run`."""

    outcome: str
    sentence: str
    exit_status: int


def prepare(path: Path, arguments: Sequence[Sequence[str]]) -> Prepared:
    """Read a notebook and put parameters, as (name, text), into it; raises ConfigError with all that is wrong."""
    if path.suffix != ".ipynb" and path.exists():  # papermill would warn, and try
        raise ConfigError(f"{path} is not a notebook", need="a file that ends in .ipynb", do=_rather(path))
    try:
        notebook = load_notebook_node(str(path))
    except FileNotFoundError:
        raise ConfigError(f"There is no notebook {path}", do="Name a file that ends in .ipynb") from None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is not a notebook", got=f"{type(error).__name__}: {error}") from error
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    ours = any("notebook.setup(" in source for source in sources)
    cell = next((c.source for c in notebook.cells if "parameters" in c.metadata.get("tags", [])), None)
    kernel = notebook.metadata.get("kernelspec", {}).get("name") or KERNEL
    language = notebook.metadata.get("kernelspec", {}).get("language") or "python"
    values = _values(cell, arguments, ours, language)
    if values:
        notebook = parameterize_notebook(notebook, values, kernel_name=kernel, language=language)
    notebook.metadata.papermill.setdefault("parameters", {})
    return Prepared(notebook, path, kernel, ours)


def _rather(path: Path) -> str | None:
    """Return what runs a program, as that is what was meant."""
    return f"ocrlab watch -- python {path}" if path.suffix == ".py" else None


def reserve(prepared: Prepared, folder: Path) -> Files:
    """Write the notebook, not yet executed, under a name that nobody has; raises ConfigError for an unfit folder."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{prepared.source.stem}"
    first = folder / f".{name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        executed_file.write(prepared.notebook, str(first))
    except OSError as error:
        raise ConfigError(
            f"Nothing can be written into {folder}", got=error.strerror, do="Choose another: --out DIR"
        ) from error
    for number in itertools.count(1):
        files = Files(folder / f"{name}{'' if number == 1 else f'-{number}'}.ipynb")
        with contextlib.suppress(FileExistsError):
            files.notebook.touch(exist_ok=False)  # fails where somebody has the name, also in the same moment
            first.replace(files.notebook)
            break
    prepared.notebook.metadata.papermill.update(input_path=str(prepared.source), output_path=str(files.notebook))
    return files


def execute(prepared: Prepared, path: Path, *, progress_bar: bool, **limits: Any) -> None:
    """Execute the notebook into `path`; raises KeyboardInterrupt and SystemExit when that is written."""
    Engine.execute_notebook(prepared.notebook, prepared.kernel, str(path), progress_bar=progress_bar, **limits)


def finish(files: Files, *, with_html: bool) -> NotebookResult:
    """Write HTML and JSON of an executed notebook, and return how it ended; raises OSError, DataError."""
    notebook = nbformat.read(str(files.notebook), as_version=4)
    metadata = notebook.metadata.get("ocrlab", {})
    if with_html:
        document.write(files.notebook, files.html)
    try:
        result = results.load(files.notebook)
    except DataError:
        ended = notebook.metadata.papermill.get("exception") is not True and not _left(notebook)
        text = "It ran to its end, but nothing in it was judged." if ended else "It did not run to its end."
        incomplete = Outcome(files.notebook.stem, "INCOMPLETE", text)
        result = results.build(incomplete, metrics={}, parameters=notebook.metadata.papermill.get("parameters", {}))
        write_json(files.json, clean_record({**to_json(result), "redacted": metadata.get("redacted")}))
        return NotebookResult(result.outcome, result.sentence, 0 if ended else 1)
    write_json(files.json, clean_record({**to_json(result), "redacted": metadata.get("redacted")}))
    status = metadata.get("exit_status", 0 if result.outcome in PASSED else 1)
    return NotebookResult(result.outcome, result.sentence, int(status))


def _left(notebook: Any) -> bool:
    """Tell whether a code cell has not been completed."""
    statuses = [cell.metadata.get("papermill", {}).get("status") for cell in notebook.cells if cell.cell_type == "code"]
    return any(status != "completed" for status in statuses)


def _values(cell: str | None, arguments: Sequence[Sequence[str]], ours: bool, language: str) -> dict[str, Any]:
    """Return the values of the given parameters as their types want them; raises ConfigError.

    `cell` is the source of the parameters cell, None where the notebook has none.
    """
    if cell is None and arguments:
        names, do = ", ".join(name for name, _ in arguments), "Give the cell with the defaults the tag `parameters`"
        raise ConfigError(f"This notebook has no parameters cell for {names}", need="a cell with that tag", do=do)
    if ours:
        declared = parameters.read(cell or "")
    else:  # somebody else's: read only where it is needed, and only Python can be read
        declared = parameters.read_foreign(cell or "") if arguments and language == "python" else []
    kinds = {parameter.name: parameter.kind for parameter in declared}
    values = {name: read(text, kinds.get(name, "")) for name, text in arguments}
    if ours:
        injected = "\n".join([parameters.INJECTED, *(f"{name} = {value!r}" for name, value in values.items())])
        defaults = {parameter.name: parameter.default for parameter in declared}
        parameters.check_paths(declared, values)
        parameters_to_config.configure(
            parameters.check([cell or "", injected], defaults | values, also=parameters_to_config.fields())
        )
    elif language == "python":
        parameters.check_values(declared, values)
    secrets = [name for name in values if parameters.is_secret(name)]
    if secrets:
        raise parameters.secret_error(secrets[0])
    return values


def read(text: str, kind: str) -> Any:
    """Return a parameter's value as its type wants it: `8` stays text for a str; YAML for everything but numbers."""
    if kind == "str":
        return text
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    with contextlib.suppress(yaml.YAMLError):
        return yaml.safe_load(text)
    return text
