"""The training notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.notebooks import results

SMALL = {"max_steps": 2, "batch_size": 1, "crop": 64, "width": 16, "threads": 1, "accelerator": "cpu"}
FAST = ["runtime.channels_last=true", "evaluate.long_side=96", "trainer.val_pages=1"]


@pytest.mark.slow
def test_it_runs_from_any_folder_and_reports_how_it_ended(execute: Any, tmp_path: Path, finished: Any) -> None:
    result, html = finished(execute(**SMALL, precision="fp32", overrides=FAST), "FAIL")  # two steps teach nothing
    assert result.metrics["hmean@0.5"]["limit"] == 0.85
    assert result.metrics["pages"]["value"] == 16
    assert result.parameters["max_steps"] == 2
    [run] = [folder for folder in (tmp_path / "runs").iterdir() if (folder / ".SUCCESS").exists()]
    assert results.load(run) == result
    assert result.artefacts[0]["file"].startswith("best-")
    assert not list((tmp_path / "runs" / ".stacks").iterdir())  # nothing crashed
    assert "2 of 2" in html
    assert len(re.findall(r"<svg", html)) <= len(re.findall(r"aria-(label|hidden)=", html))


def test_bad_parameters_stop_it_at_once_with_everything_that_is_wrong(
    execute: Any, tmp_path: Path, cells: Any, html_of: Any
) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        execute(batch_size="eight", limit=7, max_stepps=3, wandb_api_key="hunter2hunter2")
    message = str(caught.value)
    for part in (
        "batch_size='eight' cannot be used. Needed: a whole number",
        "limit=7 cannot be used",
        "Unknown parameter: max_stepps. Did you mean max_steps?",
        "wandb_api_key looks like a secret",
    ):
        assert part in message
    assert "hunter2" not in message
    path = Path("out.ipynb")
    assert "INCOMPLETE" in html_of(path)
    assert [bool(cell["outputs"]) for cell in cells(path)[4:]] == [False] * len(cells(path)[4:])  # no cell after it ran
    assert not (tmp_path / "runs").exists()


def test_stopped_in_the_middle_it_stays_incomplete(execute: Any, tmp_path: Path, html_of: Any) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PapermillExecutionError, match="DataError"):
        execute(data=str(tmp_path / "empty"))
    result = results.load(Path("out.ipynb"))
    assert result.outcome == "INCOMPLETE"
    assert re.search(r"It stopped in cell \[\d+\]. DataError", html_of(Path("out.ipynb")))
