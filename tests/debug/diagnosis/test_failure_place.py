"""Where in the program's own code it happened."""

from __future__ import annotations

import pytest

from ocrlab.debug.diagnosis import failure_place
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.log_records import DURING
from ocrlab.debug.diagnosis.log_text import clean_log
from ocrlab.debug.diagnosis.verdict_files import sentence
from ocrlab.records import Cause, Evidence, Incident

TRACED = "Traceback (most recent call last):"

LOG = """step 1
Traceback (most recent call last):
  File "/data/x/train.py", line 30, in main
    read()
  File "/data/x/__init__.py", line 7, in read
    torch.load("a")
    ^^^^^^^^^^^^^^^
  File "/data/x/lib/python3.11/site-packages/torch/serialization.py", line 9, in load
    raise EOFError
EOFError
"""


@pytest.mark.parametrize(
    "line, place",
    [
        ('  File "/data/x/data.py", line 7, in read', "read (data.py:7)"),
        ('  File "/data/x/data.py", line 7 in read', "read (data.py:7)"),
        ('  File "/data/x/pages/__init__.py", line 7, in read', "read (pages/__init__.py:7)"),
        ('  File "/data/x/lib/python3.11/site-packages/torch/x.py", line 7, in read', None),
        ("KeyError: 'x'", None),
    ],
)
def test_a_frame_in_words(line: str, place: str | None) -> None:
    assert failure_place.own_frame(line) == place


def test_the_innermost_own_frame_is_added_to_the_exception() -> None:
    cause = Cause("ckpt.corrupt", 0.8, [Evidence("log_tail.txt", 10, "EOFError")])
    lines = failure_place.add_place(cause, [clean_log("log_tail.txt", LOG)]).evidence
    assert [(line.line, failure_place.own_frame(line.text)) for line in lines] == [
        (10, None),
        (5, "read (x/__init__.py:7)"),
    ]


def test_a_cause_that_no_traceback_shows_stays_as_it_is() -> None:
    for evidence in ([], [Evidence("facts", None, "x")], [Evidence("log_tail.txt", 1, "step 1")]):
        cause = Cause("host.oom_kill", 0.8, evidence)
        assert failure_place.add_place(cause, [clean_log("log_tail.txt", LOG)]) == cause


def test_the_cell_is_the_users_code_and_what_runs_it_is_not() -> None:
    runs = '  File "/somewhere/ocrlab/notebook/child_main.py", line 178 in _run'
    assert failure_place.own_frame(runs) is None
    assert failure_place.own_frame('  File "<isolated cell>", line 2 in <module>') == "<module> (<isolated cell>:2)"


def test_an_exception_of_libraries_stands_where_its_cause_does() -> None:
    chain = (
        'Traceback (most recent call last):\n  File "/p/lines.py", line 6, in read\n    next(lines)\nStopIteration\n\n'
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        '  File "/v/site-packages/torch/utils/data/_utils/fetch.py", line 35, in fetch\n    next(it)\n'
        "RuntimeError: generator raised StopIteration\n"
    )
    first = Evidence("log_tail.txt", 11, "RuntimeError: generator raised StopIteration")
    lines = failure_place.add_place(Cause("data.sample", 0.8, [first]), [clean_log("log_tail.txt", chain)]).evidence
    assert [line.line for line in lines] == [11, 2]


def test_where_the_main_process_was_when_a_worker_died_is_no_place():
    handler = '  File "/v/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler'
    died = "RuntimeError: DataLoader worker (pid 38) is killed by signal: Segmentation fault."
    for before in ((), (TRACED, '  File "/p/fit.py", line 3, in read', "KeyError: 'a'", "", DURING, "")):
        log = "\n".join((*before, TRACED, '  File "/p/losses.py", line 12, in dice', "    return x", handler, died))
        verdict = classify(Incident("failed", 1, texts={"log_tail.txt": log}))
        assert verdict.causes[0].id == "loader.worker_crash"
        assert [line.text for line in verdict.causes[0].evidence] == [died]
        assert "dice" not in sentence(verdict)


ABORT = """step 11
terminate called after throwing an instance of 'std::runtime_error'
  what():  bad record header
Fatal Python error: Aborted

{whose} 0x00007f6498469b80 (most recent call first):
  File "/p/feed.py", line 5 in next_batch
  File "/p/feed.py", line 8 in <module>
"""


@pytest.mark.parametrize(
    ("whose", "last"),
    [
        ("Current thread", 'File "/p/feed.py", line 5 in next_batch'),
        ("Thread", "the main thread was in next_batch (feed.py:5)"),
    ],
    ids=["a thread of Python's", "a thread of C++'s"],
)
def test_the_last_words_before_abort_come_first(whose: str, last: str) -> None:
    log = ABORT.format(whose=whose)
    verdict = classify(Incident("killed", None, "SIGABRT", texts={"log_tail.txt": log}))
    assert verdict.causes[0].id == "native.abort"
    lines = [line.text for line in verdict.causes[0].evidence]
    assert (lines[0], lines[-1]) == ("what():  bad record header", last)
    without = log.replace("what():  bad record header", "step 12").replace("terminate called", "it is")
    quiet = classify(Incident("killed", None, "SIGABRT", texts={"log_tail.txt": without}))
    assert quiet.causes[0].evidence[0].text == "Fatal Python error: Aborted"
