"""A verdict in words and on disk."""

import json
from dataclasses import replace

import pytest

from ocrlab.debug.diagnosis import load_input, verdict_files
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Incident, Verdict


def test_the_sentence_of_a_crash_names_the_place() -> None:
    log = """Fatal Python error: Segmentation fault

Current thread 0x00007f06b3e63b80 (most recent call first):
  File "/data/x/.venv/lib/python3.11/site-packages/cv2/gapi.py", line 5 in imread
  File "/data/x/pages.py", line 60 in <genexpr>
  File "/data/x/pages.py", line 61 in decode
  File "/data/x/train.py", line 9 in <module>
"""
    text = verdict_files.sentence(classify(Incident("killed", None, "SIGSEGV", {"log_tail.txt": log})))
    assert text.startswith("The program was killed by SIGSEGV in decode (pages.py:61); likely cause: a segm")
    assert text.endswith(".")


def test_the_sentence_of_a_bad_sample_names_worker_and_exception() -> None:
    log = """Traceback (most recent call last):
  File "/data/x/train.py", line 9, in <module>
    for batch in loader:
  File "/data/x/lib/python3.11/site-packages/torch/_utils.py", line 804, in reraise
    raise exception
KeyError: Caught KeyError in DataLoader worker process 3.
Original Traceback (most recent call last):
  File "/data/x/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch
    data = [self.dataset[idx] for idx in possibly_batched_index]
  File "/data/x/pages.py", line 33, in __getitem__
    return self.load(index)
  File "/data/x/pages.py", line 40, in load
    return fields["total"]
KeyError: 'total'
"""
    verdict = classify(Incident("failed", 1, None, {"log_tail.txt": log}))
    assert [line.line for line in verdict.causes[0].evidence[:1]] == [14], "the exception comes first"
    text = verdict_files.sentence(verdict)
    for part in ("in load (pages.py:40)", "in data worker 3", "KeyError: 'total'", "data.sample"):
        assert part in text


def test_a_run_folder_is_judged_alike_twice(tmp_path) -> None:
    facts = {"shm_free_bytes": 2**40, "pids": [7]}
    log = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It may be out of shared memory."
    incident = Incident("failed", 1, None, {"log_tail.txt": log}, "", facts)
    once = classify(incident)
    verdict_files.write_verdict(tmp_path / "incident", once, incident)
    again = classify(load_input.read_incident(str(tmp_path)))
    assert [(cause.id, cause.confidence) for cause in again.causes] == [(c.id, c.confidence) for c in once.causes]
    assert once.causes[0].id == "loader.worker_crash"


@pytest.mark.parametrize("status", ["failed", "killed", "hung", "suspected", "log", "something new"])
def test_unknown_says_so_and_what_is_missing(status: str) -> None:
    page = verdict_files.markdown(Verdict(status=status, missing=["the exit code"]))
    assert "unknown" in page
    assert "the exit code" in page
    assert "## Fix" not in page


def test_what_is_written_is_whole_and_without_secrets(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "abcdefgh12345678")
    texts = {"log_tail.txt": "key abcdefgh12345678\nMemoryError", "../evil.txt": "x"}
    incident = Incident("failed", 1, None, texts)
    verdict_files.write_verdict(tmp_path / "incident", classify(incident), incident)
    expected = ["log_tail.txt", "verdict.json", "verdict.md"]
    assert sorted(path.name for path in (tmp_path / "incident").iterdir()) == expected
    record = json.loads((tmp_path / "incident/verdict.json").read_text())
    assert (record["schema"], record["causes"][0]["id"]) == (1, "host.alloc_fail")
    written = {"schema", "id", "status", "exit_code", "signal", "symptom", "causes", "ruled_out", "missing", "values"}
    assert set(record) == written | {"redacted"} and record["redacted"] > 0
    assert "Review before sharing" in (tmp_path / "incident/verdict.md").read_text()
    assert "abcdefgh" not in "".join(path.read_text() for path in (tmp_path / "incident").iterdir())
    assert not (tmp_path / "evil.txt").exists()


def test_the_end_of_the_flight_record_is_shown_next_to_the_causes(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/var/lib/ada")
    record = "the record ends at step 22, backward; samples /var/lib/ada/page_003.png"
    incident = Incident("killed", None, "SIGKILL", {"log_tail.txt": "step 22\n"}, "", {"record": record})
    without = classify(replace(incident, facts={}))
    verdict = classify(incident)
    assert verdict == without, "it decides nothing"
    verdict_files.write_verdict(tmp_path, verdict, incident)
    clean = "he record ends at step 22, backward; samples ~/page_003.png"
    assert f"\n\nT{clean}.\n\n" in (tmp_path / "verdict.md").read_text()
    for name in ("verdict.json", "facts.json"):
        assert json.loads((tmp_path / name).read_text())["record"] == f"t{clean}"
