"""Fingerprints: the same failure has one name on every machine, and another failure another one."""

from typing import Any

import pytest

from ocrlab.reports.run_history.fingerprint import fingerprint, normalize_message

TRACEBACK = """Traceback (most recent call last):
  File "{home}/train.py", line {line}, in <module>
    main()
  File "{home}/train.py", line {line}2, in main
    for batch in loader:
  File "{home}/.venv/lib/python3.1{minor}/site-packages/torch/utils/data/dataloader.py", line 708, in __next__
    data = self._next_data()
{kind}: {message}
"""
RELAYED = """Traceback (most recent call last):
  File "/a/train.py", line 3, in main
    for batch in loader:
KeyError: Caught KeyError in DataLoader worker process {worker}.
Original Traceback (most recent call last):
  File "/x/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop
    data = fetcher.fetch(index)
  File "/a/pages.py", line {line}, in __getitem__
    return [self.read(i) for i in index]
  File "/a/pages.py", line {line}, in <listcomp>
    return [self.read(i) for i in index]
KeyError: 'page {line}'
"""


def error(home: str = "/mnt/ann/x", line: int = 7, minor: int = 1, kind: str = "ValueError", message: str = "bad 1"):
    text = TRACEBACK.format(home=home, line=line, minor=minor, kind=kind, message=message)
    return {"type": kind, "message": message, "where": None, "traceback": text}


def verdict(cause: str, *lines: str, status: str = "failed", signal: str | None = None) -> dict[str, Any]:
    evidence = [{"file": "log_tail.txt", "line": None, "text": line} for line in lines]
    return {"status": status, "signal": signal, "symptom": cause, "causes": [{"id": cause, "evidence": evidence}]}


def test_another_machine_line_version_and_number_are_the_same_failure() -> None:
    first = fingerprint(error())
    assert first.title == "ValueError in main (train.py)"
    for other in (
        error(home="/opt/bob"),
        error(line=9),
        error(minor=3),
        error(message="bad 12 at 0x7f02c5b4e8e8"),
        error(kind="mine.ValueError"),
    ):
        assert fingerprint(other) == first


def test_another_type_function_file_cause_or_symptom_is_another_failure() -> None:
    record = error()
    names = {
        fingerprint(record).id,
        fingerprint(error(kind="TypeError")).id,
        fingerprint({**record, "traceback": record["traceback"].replace("in main", "in run")}).id,
        fingerprint({**record, "traceback": record["traceback"].replace("train.py", "other.py")}).id,
        fingerprint(record, verdict("gpumem.capacity")).id,
        fingerprint(record, {**verdict("gpumem.capacity"), "symptom": None}).id,
    }
    assert len(names) == 6
    assert all(len(name) == 10 and set(name) <= set("0123456789abcdef") for name in names)


def test_names_stay_from_version_to_version() -> None:
    """Whoever changes the recipe must change its VERSION: names stand in bug reports."""
    assert fingerprint(error()).id == "a9c25c8ce0"
    assert fingerprint({"type": "Killed", "message": "killed by SIGKILL"}, verdict("host.oom_kill")).id == "fbf98e176b"


def test_the_exception_of_a_worker_is_placed_in_the_worker() -> None:
    texts = [RELAYED.format(worker=worker, line=line) for worker, line in ((0, 30), (5, 33))]
    first, second = (fingerprint({"type": "KeyError", "message": "Caught", "traceback": text}) for text in texts)
    assert first == second
    assert first.place == "__getitem__ (pages.py)"  # the function around the comprehension


def test_our_own_frames_count_only_where_the_user_has_none() -> None:
    frames = '  File "/q/ocrlab/ocrlab/data/folder_layouts.py", line 3, in find\n    x\nocrlab.errors.DataError: no\n'
    head = "Traceback (most recent call last):\n"
    mine = '  File "/q/project/go.py", line 3, in go\n    find()\n'
    record = {"type": "ocrlab.errors.DataError", "message": "no"}
    assert (
        fingerprint({**record, "traceback": head + frames}).title == "DataError in find (ocrlab/data/folder_layouts.py)"
    )
    assert fingerprint({**record, "traceback": head + mine + frames}).title == "DataError in go (go.py)"
    installed = frames.replace("/q/ocrlab/", "/v/lib/python3.12/site-packages/")
    assert fingerprint({**record, "traceback": head + installed}) == fingerprint({**record, "traceback": head + frames})


def test_a_watched_program_is_identified_by_its_output() -> None:
    record = {"type": "Failed", "message": "failed, exit status 1", "where": None, "pid": 9266}
    log = "epoch 3\n" + error()["traceback"] + "wandb: synced 5 files\n"
    failure = fingerprint(record, {"status": "failed", "causes": []}, "unknown", log)
    assert failure == fingerprint(error())
    assert fingerprint(record, None, "unknown", "no traceback").title == "failed, exit status 1"


def test_a_crash_is_identified_by_signal_and_frame_of_the_evidence() -> None:
    record = {"type": "Killed", "message": "killed by SIGSEGV"}
    dump = 'File "/a/bad.py", line 12 in main'
    failure = fingerprint(record, verdict("native.segv", "the process died", dump, status="killed", signal="SIGSEGV"))
    assert failure.title == "native.segv: SIGSEGV in main (bad.py)"
    hang = verdict("hang.deadlock", "the main thread waits for a lock in D.take (/a/bad.py:15)", status="hung")
    assert fingerprint({"type": "Hung", "message": "x"}, hang).place == "take (bad.py)"


@pytest.mark.parametrize("broken", [
    {"type": 3, "message": None, "traceback": ["x"], "your_code": 5},
    {"type": "", "message": "", "traceback": "Traceback (most recent call last):\n" * 2000},
    {"your_code": "no colon", "where": ":"},
    {"type": "A" * 100_000, "message": "'" * 100_000},
])  # fmt: skip
def test_nonsense_has_a_fingerprint_too(broken: dict[str, Any]) -> None:
    for judged in (None, {"causes": 3}, {"causes": [None, {"id": 4, "evidence": [1, {"text": 2}]}], "signal": []}):
        failure = fingerprint(broken, judged, None, "\x1b[31m")
        assert len(failure.id) == 10
        assert failure.title


def test_messages_count_without_what_changes() -> None:
    text = "Cannot read '/data/a b.jpg' (page 12 of 63, 0x7f00) in /tmp/run-3/x; id 9f8b3c1d-aaaa-bbbb\nmore"
    assert normalize_message(text) == "Cannot read <text> (page <number> of <number>, <hex>) in <path>; id <hex>"


def test_the_errors_of_libraries_in_small_letters_have_a_name() -> None:
    log = 'Traceback (most recent call last):\n  File "/x/a.py", line 1, in read\n    cv2.imread(1)\n'
    failures = [fingerprint(None, log=f"{log}{last}\nbye\n") for last in ("cv2.error: OpenCV(4.10)", "E: x")]
    assert [failure.kind for failure in failures] == ["error", "E"] and failures[0].id != failures[1].id
