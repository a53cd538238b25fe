"""The loader's notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError

SMALL = {"batch_size": 1, "crop": 64, "width": 16, "threads": 1, "accelerator": "cpu", "precision": "fp32"}
# What is faster on a machine that tests other things meanwhile is not the question.
FAST = {"channels_last": True, "workers_tried": [0, 1], "seconds": 0.2, "limit": 0.1}


@pytest.mark.slow
def test_it_runs_from_any_folder_and_recommends_what_it_measured(execute: Any, tmp_path: Path, finished: Any) -> None:
    _, html = finished(execute(**SMALL, **FAST), "PASS")
    assert re.search(r"ocrlab train runtime.workers=[01] runtime.threads=1", html)
    assert "receipt" in html and "ui.perfetto.dev" in html
    assert re.search(r"<td[^>]*>(encoder|decoder|head)[.\w]*</td>", html)  # an operator's module
    [trace] = (tmp_path / "runs" / "profiles").iterdir()
    assert trace.name.endswith(".json.gz")


def test_bad_parameters_stop_it_at_once(execute: Any) -> None:
    with pytest.raises(PapermillExecutionError, match="seconds=0 cannot be used"):
        execute(seconds=0)
    assert "INCOMPLETE" in Path("out.ipynb").read_text(encoding="utf-8")
