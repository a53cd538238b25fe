"""What a program draws, from the import of the recorder on, a replay of it draws again."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from ocrlab.flight import record_program
from ocrlab.flight.files import write_json
from ocrlab.recording import beginning


def drawn() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002


def test_the_states_of_the_beginning_and_of_the_import_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "flight"
    folder.mkdir()
    monkeypatch.setattr(beginning, "AT_IMPORT", {})
    beginning.imported()
    first = drawn()
    beginning.note(folder, 0, 3)
    second = drawn()
    beginning.put(folder, 0, 3)
    assert drawn() == second
    beginning.put(folder, 1, 3)  # of another rank nothing was noted
    assert drawn() != second
    write_json(tmp_path / "job.json", {"schema": 1, "run": str(tmp_path), "rank": 0, "start": 3})
    monkeypatch.setenv(record_program.REPLAY, str(tmp_path / "job.json"))
    beginning.imported()
    assert drawn() == first and drawn() == second


def test_a_job_that_cannot_be_read_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said when the program begins its loop."""
    for text in ("{", '{"schema": 1}', '{"schema": 1, "run": "/nowhere", "rank": 0, "start": 0}'):
        (tmp_path / "job.json").write_text(text)
        monkeypatch.setenv(record_program.REPLAY, str(tmp_path / "job.json"))
        before = random.getstate()
        beginning.imported()
        assert random.getstate() == before
