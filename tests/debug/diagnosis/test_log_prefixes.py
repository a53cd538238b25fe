"""What stands before every line of a traceback or of stacks is not a part of them, whoever put it there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ocrlab.debug.diagnosis import log_text
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Incident

END = """Traceback (most recent call last):
  File "/w/fit.py", line 40, in <module>
    run(pages)
  File "/w/fit.py", line 12, in run
    best = scores["hmean"]
KeyError: 'hmean'"""
WARNED = "UserWarning: libjpeg.so.9: cannot open shared object file: No such file or directory"
STUCK = """Thread 0x00007f10aa (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/w/fit.py", line 9 in wait_for_ever
  File "/w/fit.py", line 30 in <module>"""
FORMS: list[Callable[[int], str]] = [
    lambda n: f"2026-03-04T05:06:{n:02d}.000417Z ",
    lambda n: f"2026-03-04T05:06:{n:02d}.000417Z stderr F ",
    lambda n: f"2026-03-04 05:06:{n:02d},031 - fit - ERROR - ",
    lambda n: f"[2026-03-04 05:06:{n:02d}] [ERROR] ",
    lambda n: f"03-04 05:06:{n:02d} | INFO | relay | ERROR 03-04 engine.py:{400 + n}] ",
    lambda n: "[pod/fit-worker-0/main] ",
    lambda n: f"Mar 04 05:06:{n:02d} node7 fit[4133]: ",
    lambda n: f"2026-03-04 05:06:{n:02d}.977 [12/fit/57 (pid 28{n})] [5f0c11ee-a44c-4795-967c-7183a83b3160] ",
    lambda n: "> ",
    lambda n: "        ",
    lambda n: f"{n + 1:>6}\t",
    lambda n: "+",
    lambda n: f"[   7.{n}s] ",
]


def led(form: Callable[[int], str], text: str) -> str:
    return "\n".join(f"{form(number)}{line}" for number, line in enumerate(text.split("\n")))


@pytest.mark.parametrize("form", FORMS)
def test_a_traceback_is_read_behind_what_stands_before_each_of_its_lines(form: Callable[[int], str]) -> None:
    assert log_text.clean_log("x", led(form, END)).text == log_text.clean_log("x", END).text


@pytest.mark.parametrize("form", FORMS)
def test_a_warning_is_not_believed_before_a_traceback_of_that_form(form: Callable[[int], str]) -> None:
    verdict = classify(Incident(texts={"log": led(form, f"{WARNED}\nloading\n{END}")}))
    assert [cause.id for cause in verdict.causes if cause.confidence > 0.4] == []
    assert "KeyError: 'hmean'" in verdict.missing[0]


@pytest.mark.parametrize("form", FORMS)
def test_stacks_are_read_behind_it_as_well(form: Callable[[int], str]) -> None:
    plain, behind = (classify(Incident(texts={"log": text})) for text in (STUCK, led(form, STUCK)))
    assert [cause.id for cause in behind.causes] == [cause.id for cause in plain.causes]


def test_a_frame_in_a_box_loses_both_sides() -> None:
    boxed = [f"│ {line:<60} │" for line in END.split("\n")]
    assert log_text.strip_prefixes(boxed) == END.split("\n")


def test_a_line_of_another_level_keeps_what_says_so() -> None:
    lines = led(lambda n: f"05:06:{n:02d} ERROR fit: ", END).split("\n")
    lines.append("05:07:00 WARNING fit: no space left on the scratch disk, writing elsewhere")
    assert log_text.strip_prefixes(lines)[-1] == lines[-1]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["  0%|    | 0/9 [00:00<?]Traceback (most recent call last):", *END.split("\n")[1:]],
        ["KeyError        Traceback (most recent call last)", "----> 1 run(pages)", "KeyError: 'hmean'"],
        ['x  File "a.py", line 1, in f', "y"],
        END.split("\n"),
    ],
)
def test_nothing_else_is_taken_away(lines: list[str]) -> None:
    assert log_text.strip_prefixes(lines) == lines


def test_as_many_lines_stay_as_there_were() -> None:
    text = f"first\n\n{led(FORMS[0], END)}\n\nlast"
    assert len(log_text.strip_prefixes(text.split("\n"))) == len(text.split("\n"))
