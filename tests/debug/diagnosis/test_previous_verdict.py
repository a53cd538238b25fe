"""What a notebook stores of its ending is read with care: anybody can write a notebook."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ocrlab.debug.diagnosis import load_input, previous_verdict, verdict_files
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Incident, to_json


def test_a_verdict_comes_back_as_it_was() -> None:
    made = classify(Incident(status="failed", exit_code=1, texts={"log_tail.txt": "MemoryError\n"}))
    again = previous_verdict.read_verdict(to_json(made))
    assert again is not None
    assert (again.causes, again.status, again.exit_code) == (made.causes, "failed", 1)


@pytest.mark.parametrize("found", [None, [], {}, {"causes": {}}, {"causes": [{"id": "x.y"}]}, {"causes": [1]}])
def test_what_names_no_known_cause_is_no_verdict(found: object) -> None:
    assert previous_verdict.read_verdict(found) is None


FAULT = {"kind": "nonfinite", "op": "aten::log"}


def replayed(
    run: Path, fault: object, answer: str = "first fault at step 3, loss, op `aten::log`; sample `a.png`."
) -> Path:
    (run / "incident").mkdir(parents=True)
    (run / ".FAILURE").write_text('{"schema": 1, "status": "failure", "started": "x", "metrics": {}}')
    (run / "incident" / "log_tail.txt").write_text("Segmentation fault (core dumped)\n")
    (run / "incident" / "replay.json").write_text(json.dumps({"schema": 1, "answer": answer, "fault": fault}))
    return run


def test_the_answer_of_a_replay_is_evidence_of_the_cause_that_it_shows(tmp_path: Path) -> None:
    found = classify(load_input.read_incident(str(replayed(tmp_path / "run", FAULT))))
    assert found.causes[0].id == "num.nonfinite" and found.causes[0].confidence >= 0.9
    assert found.causes[0].evidence[0].file == "replay.json"
    assert "op `aten::log`; sample `a.png`" in found.causes[0].evidence[0].text
    assert found.causes[1].id == "native.segv"


def test_the_newest_answer_counts(tmp_path: Path) -> None:
    run = replayed(tmp_path / "run", {"kind": "exception"})
    (run / "incident" / "replay-2.json").write_text(json.dumps({"answer": "newer", "fault": {"kind": "hang"}}))
    (run / "incident" / "replay-4.json").write_text("{torn")
    for name in ("replay", "replay-2"):
        os.utime(run / "incident" / f"{name}.json", (1, 1))
    told = previous_verdict.read_replay(run)
    assert told is not None and (told["file"], told["answer"]) == ("replay-2.json", "newer")
    found = classify(load_input.read_incident(str(run)))
    assert found.causes[0].id == "native.segv" and found.causes[0].evidence[-1].text == "newer"
    assert previous_verdict.read_replay(tmp_path) is None and previous_verdict.add_replay([], {}) == []


def test_a_newer_answer_without_a_fault_counts_and_is_no_evidence(tmp_path: Path) -> None:
    run = replayed(tmp_path / "run", FAULT)
    os.utime(run / "incident" / "replay.json", (1, 1))
    (run / "flight").mkdir()
    (run / "flight" / "replay.json").write_text(json.dumps({"answer": "could not be reproduced.", "fault": None}))
    incident = load_input.read_incident(str(run))
    assert incident.facts["replay"] == {
        "file": "flight/replay.json",
        "answer": "could not be reproduced.",
        "fault": None,
    }
    found = classify(incident)
    assert found.causes[0].id == "native.segv" and "num.nonfinite" not in [cause.id for cause in found.causes]
    assert "\n\nReplay: could not be reproduced.\n\n" in verdict_files.markdown(found, incident.facts)


def test_an_answer_is_told_where_no_cause_is_known_and_not_twice_where_it_is_evidence(tmp_path: Path) -> None:
    run = replayed(tmp_path / "run", {"kind": "exception"}, "first fault at step 3.")
    (run / "incident" / "log_tail.txt").write_text("step 3\n")
    incident = load_input.read_incident(str(run))
    found = classify(incident)
    assert found.causes == []
    assert "Replay: first fault at step 3.\n" in verdict_files.markdown(found, incident.facts)
    known = replayed(tmp_path / "known", FAULT)
    incident = load_input.read_incident(str(known))
    assert verdict_files.markdown(classify(incident), incident.facts).count("first fault") == 1


def test_an_ending_of_other_types_says_nothing() -> None:
    ending = {"status": 3, "exit_code": "x", "signal": 9}
    assert (previous_verdict.status(ending), previous_verdict.exit_code(ending), previous_verdict.signal(ending)) == (
        "log",
        None,
        None,
    )
