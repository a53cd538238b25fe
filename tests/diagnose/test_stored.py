"""What a notebook stores of its ending is read with care: anybody can write a notebook."""

from __future__ import annotations

import pytest

from ocrlab.diagnose import stored
from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, to_json


def test_a_verdict_comes_back_as_it_was() -> None:
    made = classify(Incident(status="failed", exit_code=1, texts={"log_tail.txt": "MemoryError\n"}))
    again = stored.verdict(to_json(made))
    assert again is not None
    assert (again.causes, again.status, again.exit_code) == (made.causes, "failed", 1)


@pytest.mark.parametrize("found", [None, [], {}, {"causes": {}}, {"causes": [{"id": "x.y"}]}, {"causes": [1]}])
def test_what_names_no_known_cause_is_no_verdict(found: object) -> None:
    assert stored.verdict(found) is None


def test_an_ending_of_other_types_says_nothing() -> None:
    ending = {"status": 3, "exit_code": "x", "signal": 9}
    assert (stored.status(ending), stored.exit_code(ending), stored.signal(ending)) == ("log", None, None)
