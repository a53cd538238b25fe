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

from ocrlab import safe_read
from ocrlab.errors import ConfigError, DataError
from ocrlab.redaction import is_secret
from ocrlab.reports.html import document
from ocrlab.reports.notebooks import executed_file, parameters, parameters_to_config, results
from ocrlab.reports.notebooks.outcome import Outcome
from ocrlab.reports.notebooks.papermill_engine import Engine

KERNEL = "python3"
PASSED = ("PASS", "WARN")


@dataclass(frozen=True)
class Prepared:
    """A notebook with its parameters in it, ready to run."""

    notebook: Any
    source: Path
    kernel: str
    ours: bool  # it calls `notebook.setup`, so that an end without an outcome is a failure


@dataclass(frozen=True)
class NotebookResult:
    """How it ended: the word and the sentence of the outcome, and the exit status of `ocrlab run`."""

    outcome: str
    sentence: str
    exit_status: int


def prepare(path: Path, arguments: Sequence[Sequence[str]]) -> Prepared:
    """Read a notebook and put parameters, as (name, text), into it; raises ConfigError with all that is wrong."""
    if path.suffix != ".ipynb" and path.exists():  # papermill would warn, and try
        do = f"ocrlab watch -- python {path}" if path.suffix == ".py" else None
        raise ConfigError(f"{path} is not a notebook", need="a file that ends in .ipynb", do=do)
    try:
        executed_file.read(path)  # says what is wrong with a broken file
        notebook = load_notebook_node(str(path))
    except FileNotFoundError:
        raise ConfigError(f"There is no notebook {path}", do="Name a file that ends in .ipynb") from None
    except DataError:
        raise
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is not a notebook", got=f"{type(error).__name__}: {error}") from error
    ours = any("notebook.setup(" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    cell = next((cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])), None)
    spec = notebook.metadata.get("kernelspec", {})
    kernel, language = spec.get("name") or KERNEL, spec.get("language") or "python"
    values = _values(cell, arguments, ours, language)
    if values:
        notebook = parameterize_notebook(notebook, values, kernel_name=kernel, language=language)
    notebook.metadata.papermill.setdefault("parameters", {})
    return Prepared(notebook, path, kernel, ours)


def _values(cell: str | None, arguments: Sequence[Sequence[str]], ours: bool, language: str) -> dict[str, Any]:
    """Return the values of the given parameters as their types want them; raises ConfigError.

    `cell` is the source of the parameters cell, None if the notebook has none.
    """
    if cell is None and arguments:
        names, do = ", ".join(name for name, _ in arguments), "Give the cell with the defaults the tag `parameters`"
        raise ConfigError(f"This notebook has no parameters cell for {names}", need="a cell with that tag", do=do)
    if ours:
        declared = parameters.read(cell or "")
    else:  # a third-party notebook: read only if needed, and only Python can be read
        declared = parameters.read_foreign(cell or "") if arguments and language == "python" else []
    kinds = {parameter.name: parameter.kind for parameter in declared}
    values = {name: read(text, kinds.get(name, "")) for name, text in arguments}
    if ours:
        every = {parameter.name: parameter.default for parameter in declared} | values
        parameters.check_paths(declared, values)
        parameters.check_values(declared, every, also=parameters_to_config.fields())
        parameters_to_config.configure(every)
    elif language == "python":
        parameters.check_values(declared, values)
    for name in filter(is_secret, values):
        raise parameters.secret_error(name)
    return values


def read(text: str, kind: str) -> Any:
    """Return a parameter's value as its type wants it: `8` stays text for a str; YAML for everything but numbers."""
    if kind == "str":
        return text
    for parse in (int, float, yaml.safe_load):
        with contextlib.suppress(ValueError, yaml.YAMLError):
            return parse(text)
    return text


def reserve(prepared: Prepared, folder: Path) -> Path:
    """Write the notebook, not yet executed, under a name that nobody has, and return its path.

    Raises ConfigError for an unfit folder.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{prepared.source.stem}"
    first = folder / f".{name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        executed_file.write(prepared.notebook, str(first))
    except OSError as error:
        what, do = f"Nothing can be written into {folder}", "Choose another: --out DIR"
        raise ConfigError(what, got=error.strerror, do=do) from error
    for number in itertools.count(1):
        path = folder / f"{name}{'' if number == 1 else f'-{number}'}.ipynb"
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False)  # fails if somebody has the name, also in the same moment
            first.replace(path)
            break
    prepared.notebook.metadata.papermill.update(input_path=str(prepared.source), output_path=str(path))
    return path


def execute(prepared: Prepared, path: Path, *, progress_bar: bool, **limits: Any) -> None:
    """Execute the notebook into `path`; raises KeyboardInterrupt and SystemExit when that is written."""
    Engine.execute_notebook(prepared.notebook, prepared.kernel, str(path), progress_bar=progress_bar, **limits)


def finish(path: Path, *, with_html: bool) -> NotebookResult:
    """Write HTML and JSON beside an executed notebook, and return how it ended; raises OSError, DataError."""
    notebook = nbformat.reads(safe_read.read(path).decode(), as_version=4)
    about, metadata = notebook.metadata.papermill, notebook.metadata.get("ocrlab", {})
    if with_html:
        document.write(path, path.with_suffix(".html"))
    try:
        result = results.load(path)
        status = metadata.get("exit_status", 0 if result.outcome in PASSED else 1)
    except DataError:
        code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        complete = all(cell.metadata.get("papermill", {}).get("status") == "completed" for cell in code_cells)
        ended = about.get("exception") is not True and complete
        text = "It ran to its end, but nothing in it was judged." if ended else "It did not run to its end."
        incomplete = Outcome(path.stem, "INCOMPLETE", text)
        result = results.build(incomplete, metrics={}, parameters=about.get("parameters", {}))
        status = 0 if ended else 1
    results.write_beside(path, result, metadata.get("redacted"))
    return NotebookResult(result.outcome, result.sentence, int(status))
