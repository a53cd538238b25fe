"""The sanity notebook as a user runs it: papermill, from another folder, with defaults, a defect and bad parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.notebooks import results


@pytest.mark.slow
def test_it_runs_from_any_folder_and_every_check_is_reported(execute: Any, cells: Any, html_of: Any) -> None:
    path = execute(batch_size=1)
    result = results.load(path)
    assert (result.name, result.outcome) == ("01_sanity", "PASS")
    html = html_of(path)
    for check in ("round trip of polygons", "contract of a step", "bf16 against fp32", "one page by heart"):
        assert check in html
    assert "INCOMPLETE" not in html and not re.search(r'(src|href)="(?!data:|#)', html)
    assert cells(path)[-1]["outputs"][0]["text"] == ["01_sanity: PASS\n"]
    assert path.stat().st_size < 400_000
    assert [name.name for name in path.parent.iterdir()] == ["out.ipynb"]


@pytest.mark.slow
def test_a_setting_that_loses_polygons_is_reported(execute: Any, cells: Any, html_of: Any) -> None:
    """unclip 6 makes every polygon too large, so that also what was learned by heart is not found."""
    path = execute(crop=64, batch_size=1, overrides=["width=16", "post.unclip=6", "runtime.threads=1"])
    result = results.load(path)
    assert (result.name, result.outcome) == ("01_sanity", "FAIL")
    html = html_of(path)
    assert "round trip of polygons" in html and "do not agree" in html
    assert "INCOMPLETE" not in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert cells(path)[-1]["outputs"][0]["text"] == ["01_sanity: FAIL\n"]
    assert path.stat().st_size < 400_000
    assert [name.name for name in path.parent.iterdir()] == ["out.ipynb"]


def test_bad_parameters_stop_it_at_once(execute: Any, tmp_path: Path, html_of: Any) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        execute(decoder="fnp", crop=100)
    assert "decoder" in str(caught.value) and "crop" in str(caught.value)
    assert "INCOMPLETE" in html_of(Path("out.ipynb"))
    assert not (tmp_path / "runs").exists()
