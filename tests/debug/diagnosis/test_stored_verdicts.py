"""What a notebook stores of its ending is read with care: anybody can write a notebook."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ocrlab.debug.diagnosis import load_input, verdict_files
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Incident, to_json


def test_a_verdict_comes_back_as_it_was() -> None:
    verdict = classify(Incident(status="failed", exit_code=1, texts={"log_tail.txt": "MemoryError\n"}))
    again = load_input.read_verdict(to_json(verdict))
    assert again is not None
    assert (again.causes, again.status, again.exit_code) == (verdict.causes, "failed", 1)


@pytest.mark.parametrize("stored", [None, [], {}, {"causes": {}}, {"causes": [{"id": "x.y"}]}, {"causes": [1]}])
def test_a_stored_verdict_needs_a_cause_of_the_catalogue(stored: object) -> None:
    assert load_input.read_verdict(stored) is None


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
    verdict = classify(load_input.read_incident(str(replayed(tmp_path / "run", FAULT))))
    assert verdict.causes[0].id == "num.nonfinite" and verdict.causes[0].confidence >= 0.9
    assert verdict.causes[0].evidence[0].file == "replay.json"
    assert "op `aten::log`; sample `a.png`" in verdict.causes[0].evidence[0].text
    assert verdict.causes[1].id == "native.segv"


def test_the_newest_answer_counts(tmp_path: Path) -> None:
    run = replayed(tmp_path / "run", {"kind": "exception"})
    (run / "incident" / "replay-2.json").write_text(json.dumps({"answer": "newer", "fault": {"kind": "hang"}}))
    (run / "incident" / "replay-4.json").write_text("{torn")
    for name in ("replay", "replay-2"):
        os.utime(run / "incident" / f"{name}.json", (1, 1))
    answer = load_input.read_replay(run)
    assert answer is not None and (answer["file"], answer["answer"]) == ("replay-2.json", "newer")
    verdict = classify(load_input.read_incident(str(run)))
    assert verdict.causes[0].id == "native.segv" and verdict.causes[0].evidence[-1].text == "newer"
    assert load_input.read_replay(tmp_path) is None and load_input.add_replay([], {}) == []


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
    verdict = classify(incident)
    assert verdict.causes[0].id == "native.segv" and "num.nonfinite" not in [cause.id for cause in verdict.causes]
    assert "\n\nReplay: could not be reproduced.\n\n" in verdict_files.markdown(verdict, incident.facts)


def test_a_replay_answer_is_shown_once(tmp_path: Path) -> None:
    run = replayed(tmp_path / "run", {"kind": "exception"}, "first fault at step 3.")
    (run / "incident" / "log_tail.txt").write_text("step 3\n")
    incident = load_input.read_incident(str(run))
    verdict = classify(incident)
    assert verdict.causes == []
    assert "Replay: first fault at step 3.\n" in verdict_files.markdown(verdict, incident.facts)
    run_with_fault = replayed(tmp_path / "known", FAULT)
    incident = load_input.read_incident(str(run_with_fault))
    assert verdict_files.markdown(classify(incident), incident.facts).count("first fault") == 1
