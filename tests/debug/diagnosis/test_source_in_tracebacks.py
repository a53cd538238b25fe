"""Source that a traceback shows is blank, everything else of the page stays where it was."""

from __future__ import annotations

from ocrlab.debug.diagnosis.log_text import blank_source, clean_log

LOG = """start
Traceback (most recent call last):
  File "a.py", line 3, in f
    g("No space left on device")
    ~^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "b.py", line 9, in g
  [Previous line repeated 9 more times]
ValueError: two lines
    of a message
"""


def test_only_the_source_is_blank_and_offsets_stay() -> None:
    before = clean_log("log_tail.txt", LOG)
    after = blank_source(before)
    lines = after.text.split("\n")
    assert [len(line) for line in lines] == [len(line) for line in before.text.split("\n")]
    assert [bool(line.strip()) for line in lines] == [True, True, True, False, False, True, True, True, True]
    assert after.line(after.text.index("ValueError")).number == 8
