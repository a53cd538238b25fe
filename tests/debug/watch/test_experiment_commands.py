"""Experiments that can be typed as they stand."""

from __future__ import annotations

import pytest

from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.watch import incident
from ocrlab.records import Cause, Verdict

ENTRIES = catalogue.load().entries


def fitted(experiment: str, command: list[str], run: str = "") -> str:
    return (
        incident.fit_experiments(Verdict(causes=[Cause("x", 0.5, [], experiment, "")]), command, run)
        .causes[0]
        .experiment
    )


def test_the_command_and_the_run_stand_in_the_experiment() -> None:
    experiment = fitted(ENTRIES["kernel.illegal_address"].experiment, ["python", "my train.py"], "runs/a b")
    assert experiment.startswith(
        "ocrlab replay 'runs/a b' ; ocrlab watch --debug-cuda -- python 'my train.py', three times"
    )
    assert "the first: it names module" in experiment


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if "replay RUN" in entry.experiment])
def test_without_a_flight_record_no_replay_is_proposed(name: str) -> None:
    experiment = fitted(ENTRIES[name].experiment, ["python", "train.py"])
    assert "RUN" not in experiment
    assert "flight record" not in experiment
    assert "replay" not in experiment
    assert not experiment.startswith((" ", ";", "else"))
    assert experiment.count("(") == experiment.count(")")


@pytest.mark.parametrize("command", [[], ["python", "-c", "a\nb"], ["python", *["--page=x.jpg"] * 20]])
def test_a_command_that_makes_no_line_stays_a_word(command: list[str]) -> None:
    assert fitted("PYTHONFAULTHANDLER=1 COMMAND", command) == "PYTHONFAULTHANDLER=1 COMMAND"
