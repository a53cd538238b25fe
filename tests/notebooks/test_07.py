"""The comparing notebook as a user runs it: two runs that are the same one, so that nobody can tell."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.inference import pretrained
from ocrlab.reports.notebooks import parameters, results
from ocrlab.reports.notebooks.parameters_to_config import fields


@pytest.fixture
def notebook(root: Path) -> Path:
    return root / "notebooks" / "07_compare.ipynb"


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_same_detector_twice_is_a_warning_and_not_a_winner(execute: Any, root: Path, tmp_path: Path) -> None:
    folders = []
    for rate in (0.001, 0.002):
        words = [f"data={root / 'data_samples'}", f"optim.lr={rate}"]
        run = run_folder.create(tmp_path / "runs", f"r{rate:g}", configs.dump(configs.load(overrides=words)))
        shutil.copy(pretrained.find(), run.checkpoints / "best-x.ckpt")
        run.succeed({"hmean@0.5": 0.9})
        folders.append(str(run.path))
    path = execute(compared=folders, pages=6)
    result = results.load(path)
    assert (result.name, result.outcome) == ("07_compare", "WARN")
    assert result.metrics["share of draws in which B is ahead of A"]["value"] == 0.5
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    html = "\n".join("".join(bundle.get("text/html", "")) for bundle in bundles)
    assert "One setting differs: optim.lr" in html
    assert "cannot tell on 6 pages" in html
    assert "0 pages better, 0 worse, 6 the same" in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)  # nothing is fetched
    assert any("application/vnd.jupyter.widget-view+json" in bundle for bundle in bundles)
    assert path.stat().st_size < 1_000_000


def test_runs_that_are_not_there_stop_it_in_words(execute: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PapermillExecutionError, match="child failed"):
        execute(compared=[str(tmp_path / "empty")])
    assert "There are not two runs to compare" in Path("out.ipynb").read_text(encoding="utf-8")


def test_the_committed_notebook(notebook: Path) -> None:
    [cell] = [cell for cell in cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    declared = parameters.read("".join(cell["source"]))
    assert list(papermill.inspect_notebook(str(notebook))) == [parameter.name for parameter in declared]
    assert all(parameter.help for parameter in declared)
    assert all(parameters.find_problem(parameter, parameter.default) is None for parameter in declared)
    assert {p.name for p in declared} - set(fields()) == {"compared", "pages"}
    title = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    assert "?" in title.splitlines()[0]
    assert re.search(r"\d+ seconds", title) and "pass" in title
    *others, last = cells(notebook)
    assert [output["text"] for output in last["outputs"]] == [["07_compare: PASS\n"]]
    assert last["execution_count"] and not any(cell["outputs"] for cell in others)
