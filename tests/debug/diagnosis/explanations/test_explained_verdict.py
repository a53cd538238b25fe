"""An explanation belongs to a cause that it fits, and what a stranger's folder holds never breaks a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Incident, Verdict

LOG = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    F.cross_entropy(out, y)\n'
    '  File "/lib/python3.11/site-packages/torch/nn/functional.py", line 9, in cross_entropy\n    return f()\n'
    "IndexError: Target 7 is out of bounds.\n"
)


def judge(**facts: Any) -> Verdict:
    return classify(Incident("failed", 1, None, {"log_tail.txt": LOG}, "", facts))


def test_the_number_of_classes_is_not_guessed_from_a_log() -> None:
    cause = judge().causes[0]
    assert cause.id == "data.index_range"
    assert cause.explanation == "`y` holds the label 7, but the model has too few outputs."


def test_a_program_that_a_signal_ended_is_not_explained_by_its_last_exception() -> None:
    verdict = classify(Incident("killed", None, "SIGKILL", {"log_tail.txt": LOG}, "", {}))
    assert not any(cause.explanation for cause in verdict.causes)


@pytest.mark.parametrize(
    "facts",
    [
        {"values": [7]},
        {"values": [{"file": None, "line": "x", "values": 3}]},
        {"values": [{"values": {"x": 5}}]},
        {"cells": [7, {"cell_type": "code", "outputs": 3, "source": 9}]},
        {"explained": {"cause": "data.index_range"}},
        {"explained": {"cause": 1, "explanation": None, "fix": [], "edit": 7}},
    ],
)
def test_facts_of_any_form_leave_the_verdict_as_it_is(facts: dict[str, Any]) -> None:
    assert [cause.id for cause in judge(**facts).causes[:1]] == ["data.index_range"]


def test_a_stored_explanation_is_shown_again_and_a_broken_edit_is_left_out() -> None:
    stored = {"cause": "data.index_range", "explanation": "because", "fix": "do", "edit": {"file": "a.py"}}
    cause = judge(explained=stored).causes[0]
    assert (cause.explanation, cause.fix, cause.edit) == ("because", "do", None)
