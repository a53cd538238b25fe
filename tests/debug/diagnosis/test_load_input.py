"""A log, a run folder, a notebook or stdin as an incident; what a stranger stored is read with care."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from ocrlab import run_folder
from ocrlab.debug.diagnosis import load_input, verdict_files
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.first_failed_rank import find_failed_rank
from ocrlab.debug.diagnosis.log_text import HEAD, TAIL, clean_lines, read_excerpt
from ocrlab.errors import DataError
from ocrlab.records import Incident, to_json
from ocrlab.run_folder.launcher import write_exits


def test_stdin_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"MemoryError\n")))
    assert classify(load_input.read_incident("-")).causes[0].id == "host.alloc_fail"


@pytest.mark.parametrize("name", ["absent.log", "nothing"])
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError):
        load_input.read_incident(str(tmp_path / name))


def test_a_run_folder_tells_its_failure(runs: Path) -> None:
    folder = run_folder.create(runs, "x")
    try:
        raise FileNotFoundError(2, "No such file or directory", "data/train.txt")
    except FileNotFoundError as error:
        folder.fail(error)
    incident = load_input.read_incident(str(folder.path))
    assert incident.status == "failed"
    assert "test_load_input.py" in incident.texts["traceback.txt"]
    assert classify(incident).causes[0].id == "io.missing"


def test_a_folder_with_an_incident_keeps_status_and_signal(tmp_path: Path) -> None:
    place = tmp_path / "incident"
    place.mkdir()
    (place / "verdict.json").write_text(json.dumps({"schema": 1, "status": "killed", "signal": "SIGILL"}))
    (place / "log_tail.txt").write_text("step 1\n")
    incident = load_input.read_incident(str(tmp_path))
    assert (incident.status, incident.signal) == ("killed", "SIGILL")
    assert classify(incident).causes[0].id == "build.cpu_isa"


def test_a_torn_sentinel_does_not_hide_the_log_and_a_newer_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".FAILURE").write_text('{"schema": 1, "err')
    (tmp_path / "train.log").write_text("MemoryError")
    assert classify(load_input.read_incident(str(tmp_path))).causes[0].id == "host.alloc_fail"
    (tmp_path / ".FAILURE").write_text('{"schema": 99}')
    with pytest.raises(DataError, match="newer"):
        load_input.read_incident(str(tmp_path))


def test_ranks_without_a_watcher_are_read_from_their_records(tmp_path: Path) -> None:
    """Plain torchrun: the sentinel is rank 0's, which has only lost the other one."""
    lost = {
        "type": "RuntimeError",
        "message": "Connection reset by peer",
        "traceback": "RuntimeError: Connection reset",
    }
    failure = {"schema": 1, "status": "failure", "started": "x", "ended": "y", "metrics": {}, "error": lost}
    (tmp_path / ".FAILURE").write_text(json.dumps(failure))
    (tmp_path / "flight" / "ranks").mkdir(parents=True)
    ends = ({"how": "failed", "time": 1.0, "step": None, "error": lost}, None)
    for rank, end in enumerate(ends):
        record = {"schema": 1, "rank": rank, "world": 2, "pid": 40 + rank, "end": end}
        (tmp_path / "flight" / "ranks" / f"rank-{rank}.json").write_text(json.dumps(record))
    rank_ = find_failed_rank(load_input.read_run_folder(tmp_path))
    assert rank_ is not None and rank_.rank == 1
    assert "rank 1 of 2 (process 41) died without a word: killed, crashed, or ended by os._exit; rank 0" in rank_.why
    assert (rank_.file, rank_.line) == ("flight/ranks/rank-1.json", None), "there is no ranks.txt to point at"
    (tmp_path / ".FAILURE").unlink()
    (tmp_path / ".RUNNING").write_text(json.dumps({**failure, "status": "running", "error": None}))
    assert find_failed_rank(load_input.read_run_folder(tmp_path)) is None, "they live"


def unwatched(place: Path, gpus: list[bool | None]) -> Path:
    """Make the folder of a failed run of two ranks of which rank 1 has left no word."""
    error = {"type": "RuntimeError", "message": "Connection reset by peer"}
    failure = {"schema": 1, "status": "failure", "started": "x", "ended": "y", "metrics": {}, "error": error}
    (place / "flight" / "ranks").mkdir(parents=True)
    (place / ".FAILURE").write_text(json.dumps(failure))
    for rank, gpu in enumerate(gpus):
        end = None if rank else {"how": "failed", "time": 1.0, "step": None, "error": error}
        record = {"schema": 1, "rank": rank, "world": 2, "pid": 40 + rank, "gpu": gpu, "end": end}
        (place / "flight" / "ranks" / f"rank-{rank}.json").write_text(json.dumps(record))
    return place


def test_an_exit_that_a_watcher_has_left_in_the_run_tells_how_a_rank_died(tmp_path: Path) -> None:
    write_exits(unwatched(tmp_path, [False, False]) / "flight", [{"rank": 1, "pid": 41, "exit_code": -11}])
    failed_rank = find_failed_rank(load_input.read_run_folder(tmp_path))
    assert failed_rank is not None and (failed_rank.how, failed_rank.signal) == ("killed", "SIGSEGV")
    verdict = classify(load_input.read_run_folder(tmp_path))
    assert verdict.causes[0].id == "native.segv"
    assert not any(cause.id.startswith(("dist.", "hw.")) for cause in verdict.causes)
    write_exits(tmp_path / "flight", [{"rank": 1, "pid": 7, "exit_code": -11}])
    failed_rank = find_failed_rank(load_input.read_run_folder(tmp_path))
    assert failed_rank is not None and failed_rank.how == "silent", "that was an earlier start"


def test_a_flight_record_alone_is_read_by_its_replay(tmp_path: Path) -> None:
    """What `recording(...)` leaves: no log and no sentinel, as the program's output went elsewhere."""
    (tmp_path / "flight").mkdir()
    (tmp_path / "flight" / "ring-0-0.bin").write_bytes(b"")
    with pytest.raises(DataError, match="ocrlab replay"):
        load_input.read_run_folder(tmp_path)
    (tmp_path / "incident").mkdir()
    fault = {"kind": "target", "text": "first fault at step 2"}
    answer = {"schema": 1, "answer": "first fault at step 2", "fault": fault}
    (tmp_path / "incident" / "replay.json").write_text(json.dumps(answer), encoding="utf-8")
    assert load_input.read_run_folder(tmp_path).facts["replay"]["answer"] == "first fault at step 2"


def test_outputs_and_errors_of_a_notebook(tmp_path: Path) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["epoch 1\n", "epoch 2\n"]},
        {"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": "aaaa"}},
        {
            "output_type": "error", "ename": "ValueError", "evalue": "x",
            "traceback": ["\x1b[31mstack expects each tensor to be equal size\x1b[0m"],
        },
    ]  # fmt: skip
    book = {"cells": [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": outputs}, "junk"]}
    (tmp_path / "run.ipynb").write_text(json.dumps(book))
    incident = load_input.read_incident(str(tmp_path / "run.ipynb"))
    assert classify(incident).causes[0].id == "data.sample"


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_what_is_no_notebook_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.ipynb").write_text(text)
    with pytest.raises(DataError, match="notebook"):
        load_input.read_incident(str(tmp_path / "bad.ipynb"))


def test_of_a_huge_stream_head_tail_and_first_error_stay_with_their_numbers() -> None:
    lines = [f"step {number} loss 0.1" for number in range(200_000)]
    lines[90_000] = "RuntimeError: CUDA error: misaligned address"
    text = read_excerpt(io.BytesIO("\n".join(lines).encode()))
    assert len(text) < 2 * (HEAD + TAIL)
    by_number = {line.number: line.text for line in clean_lines(text)}
    assert by_number[1] == lines[0]
    assert by_number[90_001] == lines[90_000]
    assert by_number[200_000] == lines[-1]
    assert all(by_number[number] in lines[number - 1] for number in (50, 90_010, 199_990))


def executed(tmp_path: Path, result: object, *outputs: dict[str, object]) -> str:
    stored = {
        "output_type": "display_data",
        "data": {load_input.RESULT: result, "text/plain": "FAIL: CUDA out of memory"},
    }
    book = tmp_path / "done.ipynb"
    book.write_text(json.dumps({"cells": [{"cell_type": "code", "outputs": [stored, *outputs]}]}))
    return str(book)


def test_a_notebook_that_ocrlab_ran_tells_its_stored_ending(tmp_path: Path) -> None:
    lines = [{"file": "facts", "line": None, "text": "the control group's oom_kill counter grew by 1"}]
    before = {"status": "killed", "signal": "SIGKILL", "causes": [{"id": "host.oom_kill", "confidence": 0.95}]}
    before["causes"][0]["evidence"] = lines  # type: ignore[index]
    result = {"outcome": "CRASHED", "ending": {"status": "killed", "signal": "SIGKILL", "verdict": before}}
    verdict = classify(load_input.read_incident(executed(tmp_path, result)))
    assert (verdict.status, verdict.signal) == ("killed", "SIGKILL")
    assert (verdict.causes[0].id, verdict.causes[0].evidence[0].text) == ("host.oom_kill", lines[0]["text"])
    assert verdict.causes[0].fix


def test_our_own_words_in_a_notebook_are_no_log(tmp_path: Path) -> None:
    result = {"outcome": "FAIL", "environment": {"cpu_flags": ["avx", "avx512f"]}, "note": "illegal instruction"}
    result |= {"ending": {"status": "failed", "exit_status": 1, "verdict": {"causes": []}}}
    ours = {"output_type": "error", "ename": "CellStuck", "evalue": "Cell [2] hangs", "traceback": ["hangs"]}
    error = {"output_type": "error", "ename": "KeyError", "evalue": "'lr'", "traceback": []}
    incident = load_input.read_incident(executed(tmp_path, result, ours, error))
    assert incident.texts == {"done.ipynb": "KeyError: 'lr'"}
    verdict = classify(incident)
    assert (verdict.status, verdict.exit_code, verdict.causes) == ("failed", 1, [])


def test_a_folder_that_is_no_run_is_read_where_it_holds_a_single_log(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("MemoryError\n")
    assert list(load_input.read_incident(str(tmp_path)).texts) == ["a.log"]
    (tmp_path / "b.log").write_text("KeyError: 'x'\n")
    with pytest.raises(DataError, match="not a run folder"):
        load_input.read_incident(str(tmp_path))


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01" + b"\0" * 99, bytes(range(256)) * 20, b"PK\x03\x04zip"])
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "core").write_bytes(data)
    with pytest.raises(DataError, match="is not a text file"):
        load_input.read_incident(str(tmp_path / "core"))


def test_a_log_of_another_encoding_is_text(tmp_path: Path) -> None:
    (tmp_path / "gbk.log").write_bytes("epoch 1\n错误: 内存\nMemoryError: failed to allocate\n".encode("gbk"))
    (tmp_path / "wide.log").write_bytes("step 1\nMemoryError\n".encode("utf-16-le") * 9)
    for name in ("gbk.log", "wide.log"):
        assert classify(load_input.read_incident(str(tmp_path / name))).causes[0].id == "host.alloc_fail"


def test_a_verdict_comes_back_as_it_was() -> None:
    verdict = classify(Incident(status="failed", exit_code=1, texts={"log_tail.txt": "MemoryError\n"}))
    again = load_input.read_verdict(to_json(verdict))
    assert again is not None
    assert (again.causes, again.status, again.exit_code) == (verdict.causes, "failed", 1)


@pytest.mark.parametrize("stored", [None, [], {}, {"causes": {}}, {"causes": [{"id": "x.y"}]}, {"causes": [1]}])
def test_a_stored_verdict_needs_a_cause_of_the_catalogue(stored: object) -> None:
    assert load_input.read_verdict(stored) is None


FAULT = {"kind": "nonfinite", "op": "aten::log"}


def replayed(run, fault, answer="first fault at step 3, loss, op `aten::log`; sample `a.png`."):
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


def test_a_newer_answer_without_a_fault_counts_and_is_no_evidence(tmp_path: Path) -> None:
    run = replayed(tmp_path / "run", FAULT)
    os.utime(run / "incident" / "replay.json", (1, 1))
    (run / "flight").mkdir()
    (run / "flight" / "replay.json").write_text(json.dumps({"answer": "could not be reproduced.", "fault": None}))
    incident = load_input.read_incident(str(run))
    expected = {"file": "flight/replay.json", "answer": "could not be reproduced.", "fault": None}
    assert incident.facts["replay"] == expected
    verdict = classify(incident)
    assert verdict.causes[0].id == "native.segv" and "num.nonfinite" not in [cause.id for cause in verdict.causes]
    assert "\n\nReplay: could not be reproduced.\n\n" in verdict_files.markdown(verdict, incident.facts)
