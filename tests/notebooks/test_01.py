"""The sanity notebook as a user runs it: papermill, from another folder, with defaults, a defect and bad parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "outcome", "words"),
    [
        ({}, "PASS", ["contract of a step", "bf16 against fp32", "one page by heart"]),
        # unclip 6 makes every polygon too large, so that also what was learned by heart is not found
        ({"crop": 64, "overrides": ["width=16", "post.unclip=6", "runtime.threads=1"]}, "FAIL", ["do not agree"]),
    ],
)
def test_every_check_is_reported(
    execute: Any, finished: Any, values: dict[str, Any], outcome: str, words: list[str]
) -> None:
    _, html = finished(execute(batch_size=1, **values), outcome, 400_000)
    assert all(text in html for text in ["round trip of polygons", *words])


def test_bad_parameters_stop_it_at_once(execute: Any, tmp_path: Path, html_of: Any) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        execute(decoder="fnp", crop=100)
    assert "decoder" in str(caught.value) and "crop" in str(caught.value)
    assert "INCOMPLETE" in html_of(Path("out.ipynb"))
    assert not (tmp_path / "runs").exists()
