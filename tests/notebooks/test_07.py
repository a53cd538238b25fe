"""The comparing notebook as a user runs it: two runs that are the same one, so that nobody can tell."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.inference import pretrained


@pytest.mark.slow
def test_the_same_detector_twice_is_a_warning_and_not_a_winner(
    execute: Any, root: Path, tmp_path: Path, cells: Any, finished: Any
) -> None:
    folders = []
    for rate in (0.001, 0.002):
        words = [f"data={root / 'data_samples'}", f"optim.lr={rate}"]
        run = run_folder.create(tmp_path / "runs", f"r{rate:g}", configs.dump(configs.load(overrides=words)))
        shutil.copy(pretrained.find(), run.checkpoints / "best-x.ckpt")
        run.succeed({"hmean@0.5": 0.9})
        folders.append(str(run.path))
    path = execute(compared=folders, pages=6)
    result, html = finished(path, "WARN")
    assert result.metrics["share of draws in which B is ahead of A"]["value"] == 0.5
    assert "One setting differs: optim.lr" in html
    assert "cannot tell on 6 pages" in html
    assert "0 pages better, 0 worse, 6 the same" in html
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    assert any("application/vnd.jupyter.widget-view+json" in bundle for bundle in bundles)


def test_runs_that_are_not_there_stop_it_in_words(execute: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PapermillExecutionError, match="child failed"):
        execute(compared=[str(tmp_path / "empty")])
    assert "There are not two runs to compare" in Path("out.ipynb").read_text(encoding="utf-8")
