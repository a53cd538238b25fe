"""What is left to do after `ocrlab watch` has seen a failure."""

from __future__ import annotations

import pytest

from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Incident

FACTS = {"main_pid": 4100, "pids": [4100], "exits": [], "kernel_log_read": True, "oom_kills": 0}


def test_a_bare_kill_that_was_watched_asks_who_sent_it() -> None:
    verdict = classify(Incident("killed", None, "SIGKILL", {"log_tail.txt": "epoch 1\n"}, facts=FACTS))
    best = verdict.causes[0]
    assert best.id == "ext.signal"
    assert "ocrlab watch" not in best.experiment
    assert len(best.experiment.partition("    ")[0]) < 80, "one step that can be read"
    assert "--explain ext.signal" in best.experiment
    assert "signal_generate" in catalogue.explain("ext.signal")
    assert not any("counter" in thing for thing in verdict.missing)
    assert any("who sent" in thing for thing in verdict.missing)


def test_a_counted_kill_asks_which_process_needs_the_memory() -> None:
    facts = {**FACTS, "oom_kills": 1}
    best = classify(Incident("killed", None, "SIGKILL", {"log_tail.txt": ""}, facts=facts)).causes[0]
    assert best.id == "host.oom_kill"
    assert best.experiment.startswith("COMMAND with num_workers=0")


@pytest.mark.parametrize("status", ["log", "failed"])
def test_a_bare_log_asks_for_a_watched_run(status: str) -> None:
    log = "RuntimeError: DataLoader worker (pid 8554) is killed by signal: Killed."
    verdict = classify(Incident(status, texts={"log_tail.txt": log}))
    assert "ocrlab watch" in verdict.causes[0].experiment
    assert any("counter" in thing for thing in verdict.missing)


def test_a_form_of_a_hang_keeps_the_experiment_that_belongs_to_it() -> None:
    why = "the main thread waits for a lock on the file cache.lock in open_cache (data.py:6), held by process 12"
    hang = {"id": "hang.deadlock", "confidence": 0.8, "pid": 7, "why": why, "evidence": []}
    best = classify(Incident("hung", facts={"main_pid": 7, "hang": hang}, texts={"stacks.txt": ""})).causes[0]
    assert best.experiment.startswith("lslocks")
    assert "LOCK_NB" in best.fix
