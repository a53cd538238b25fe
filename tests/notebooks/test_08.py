"""The inspect notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.html import document
from ocrlab.reports.notebooks import results


@pytest.mark.slow
def test_it_runs_from_any_folder_and_its_report_shows_the_static_side(
    execute: Any, tmp_path: Path, cells: Any, finished: Any
) -> None:
    path = execute(page=3)
    finished(path, "PASS", 1_500_000)
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    live = [bundle for bundle in bundles if "application/vnd.jupyter.widget-view+json" in bundle]
    assert len(live) == 1 and "receipt_003" in "".join(live[0]["text/html"])
    document.write(path, tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert report.count("<image ") == 3 and "Threshold map" in report
    assert "widget-view" not in report and not re.search(r'(src|href)="(?!data:|#)', report)
    assert len(report) < 800_000
    assert not list((tmp_path / "runs").glob("2*"))  # the child left in peace, when its kernel did


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"checkpoint": "nowhere.ckpt"}, "There is no checkpoint"),
        ({"checkpoint": "newest"}, "no successful run"),
        ({"val_split": "tests"}, "tests"),
        ({"page": -1}, "at least 0"),
    ],
)
def test_a_wrong_parameter_gets_a_single_sentence(execute: Any, values: dict[str, Any], words: str, cells: Any) -> None:
    with pytest.raises(PapermillExecutionError, match=words):
        execute(**values)
    [error] = [
        output for cell in cells(Path("out.ipynb")) for output in cell["outputs"] if output["output_type"] == "error"
    ]
    assert len("\n".join(error["traceback"]).splitlines()) == 1
    if "page" not in values:  # which is refused before there is a result
        assert results.load(Path("out.ipynb")).outcome == "INCOMPLETE"
