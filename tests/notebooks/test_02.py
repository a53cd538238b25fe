"""The memory notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

from __future__ import annotations

from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError

TINY = {"batch_size": 1, "crop": 64, "followed": 1, "workers": 0, "overrides": ["width=16"]}


@pytest.mark.slow
def test_it_finds_the_planted_leak_from_any_folder(execute: Any, finished: Any) -> None:
    _, html = finished(execute(**TINY), "PASS")
    for part in ("encoder.layer4", "activations", "kept.append(output)", "high-water mark"):
        assert part in html


def test_bad_parameters_stop_it_at_once(execute: Any) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        execute(followed="many", leek="outputs")
    assert "followed='many' cannot be used" in str(caught.value)
    assert "Unknown parameter: leek. Did you mean leak?" in str(caught.value)
