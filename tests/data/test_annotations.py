"""Problems and their errors."""

from __future__ import annotations

import pickle
from pathlib import Path

from ocrlab.data.annotations import PageError, Problem
from ocrlab.errors import DataError


def test_an_error_knows_its_place_and_keeps_it() -> None:
    error = PageError(
        "field 1 is not a number", file=Path("gt_1.txt"), line=3, got="'a'", need="8 numbers", do="Fix it"
    )
    text = "gt_1.txt:3: field 1 is not a number. Given: 'a'. Needed: 8 numbers. Fix it."
    assert isinstance(error, DataError)
    assert str(error) == str(error.problem) == text
    assert error.problem == Problem(Path("gt_1.txt"), 3, text.removeprefix("gt_1.txt:3: "))
    for copy in (pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(error.problem))):
        assert str(copy) == text
        assert (copy.file, copy.line) == (Path("gt_1.txt"), 3)


def test_an_error_can_be_built_from_its_text_alone() -> None:
    error = PageError("gt_1.txt:3: bad.")  # as torch's DataLoader does with the error of a worker
    assert str(error) == "gt_1.txt:3: bad."
    assert error.problem == Problem(None, None, "gt_1.txt:3: bad.")
