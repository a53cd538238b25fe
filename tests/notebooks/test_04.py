"""The layers notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.notebooks import results


@pytest.mark.slow
def test_it_runs_from_any_folder_and_locates_what_it_planted(execute: Any, cells: Any, finished: Any) -> None:
    path = execute(max_steps=2, batch_size=2, crop=64)
    _, html = finished(path, "PASS", 2_000_000)
    assert "3 of 3 planted faults are located" in html
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    live = [bundle for bundle in bundles if "application/vnd.jupyter.widget-view+json" in bundle]
    assert len(live) == 1 and "All 32 maps" in "".join(live[0]["text/html"])  # the static side of the slider


@pytest.mark.slow
def test_a_wrong_module_is_refused_with_the_nearest_name(execute: Any) -> None:
    with pytest.raises(PapermillExecutionError, match="decoder.fusion"):
        execute(module="decoder.fussion")
    assert results.load(Path("out.ipynb")).outcome != "PASS"
