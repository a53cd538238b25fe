"""Text of a program as numbered lines, without what a launcher or a logger puts before each."""

import re
from collections.abc import Callable

import pytest

from ocrlab.debug.diagnosis import log_text
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.log_text import Line, clean_lines, clean_log
from ocrlab.records import Incident


def test_nul_bytes_and_colours_are_dropped() -> None:
    expected = [Line(1, "RuntimeError: bad"), Line(2, "next")]
    assert clean_lines(b"\x1b[31mRuntime\0Error:\x1b[0m bad\n\x1b]0;title\x07next") == expected


def test_of_a_progress_bar_the_last_state_stays_and_a_message_between_too() -> None:
    text = "  1%|  | 1/99 [00:01]\r  2%|  | 2/99 [00:02]\rRuntimeError: bad\r  3%|  | 3/99 [00:03]\nend"
    assert [line.text.strip() for line in clean_lines(text)] == ["RuntimeError: bad", "3%|  | 3/99 [00:03]", "end"]
    assert [line.number for line in clean_lines(text)] == [1, 1, 2]


@pytest.mark.parametrize(
    "prefix",
    ["[rank3]:", "[rank3]: ", "[default0]:", "(train pid=411, ip=10.0.0.1) ", "worker-1  | ", "[1,0]<stderr>:"],
)
def test_what_a_launcher_puts_before_a_line_is_dropped(prefix: str) -> None:
    assert clean_lines(f"{prefix}KeyError: 'x'")[0].text == "KeyError: 'x'"


def test_advice_is_blanked_and_offsets_lead_back_to_the_line() -> None:
    text = clean_log("log", "first\nsee max_split_size_mb here\nthird error", re.compile("max_split_size_mb"))
    assert "max_split" not in text.text
    assert text.line(text.text.index("third")) == Line(3, "third error")


def test_of_many_lines_alike_the_first_and_the_last_stay() -> None:
    text = "\n".join(f"step {step} loss {step / 7:.3f}" for step in range(5000)) + "\nKeyError: 'x'"
    cleaned = clean_log("log", text)
    assert len(cleaned.numbers) < 20
    assert cleaned.numbers[0] == 1
    assert cleaned.line(cleaned.text.index("KeyError")).number == 5001


def test_a_text_that_a_web_page_escaped_is_read_as_it_was() -> None:
    text = "  File &quot;fit.py&quot;, line 3, in &lt;module&gt;<br>\nKeyError: &#39;x&#39;"
    assert [line.text for line in clean_lines(text)] == ['  File "fit.py", line 3, in <module>', "KeyError: 'x'"]
    assert clean_lines("a < b && c<br")[0].text == "a < b && c<br"


@pytest.mark.parametrize("quote", ['"', '\\"'])
def test_a_traceback_in_a_line_of_json_is_many_lines_with_the_same_number(quote: str) -> None:
    frames = f"Traceback (most recent call last):\\n  File {quote}f.py{quote}, line 3, in f\\nKeyError: 1"
    text = f'x\n{{"message": "{frames}"}}'
    lines = clean_lines(text)
    assert [line.number for line in lines] == [1, 2, 2, 2]
    assert lines[2].text == '  File "f.py", line 3, in f'
    assert lines[3].text.startswith("KeyError: 1")


@pytest.mark.parametrize(
    "lead",
    ["ERROR: ", "2026-03-04 05:06:07,031 - fit - ERROR - ", "[05:06:07] [ERROR] ", "it ends with: ", "报错：", "`"],
)
def test_an_exception_behind_other_words_is_a_line_of_its_own(lead: str) -> None:
    assert clean_lines(f"{lead}pkg.mod.OddError: bad")[-1] == Line(1, "pkg.mod.OddError: bad")


@pytest.mark.parametrize("line", [
    "WARNING - OddError: bad, going on",
    "skipping page 3: OSError: truncated",
    "RuntimeError: cannot import x because of: ModuleNotFoundError: No module named 'y'",
    "    raise OddError: bad",
    "ocrlab: ValueError: bad",
])  # fmt: skip
def test_but_not_a_handled_exception_or_the_cause_of_another(line: str) -> None:
    assert clean_lines(line) == [Line(1, line)]


END = """Traceback (most recent call last):
  File "/w/fit.py", line 40, in <module>
    run(pages)
  File "/w/fit.py", line 12, in run
    best = scores["hmean"]
KeyError: 'hmean'"""
WARNED = "UserWarning: libjpeg.so.9: cannot open shared object file: No such file or directory"
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


def test_a_frame_in_a_box_loses_both_sides() -> None:
    boxed = [f"│ {line:<60} │" for line in END.split("\n")]
    assert log_text.strip_prefixes(boxed) == END.split("\n")


@pytest.mark.parametrize("lines", [
    [],
    ["  0%|    | 0/9 [00:00<?]Traceback (most recent call last):", *END.split("\n")[1:]],
    ["KeyError        Traceback (most recent call last)", "----> 1 run(pages)", "KeyError: 'hmean'"],
    ['x  File "a.py", line 1, in f', "y"],
    END.split("\n"),
])  # fmt: skip
def test_nothing_else_is_taken_away(lines: list[str]) -> None:
    assert log_text.strip_prefixes(lines) == lines


def test_a_byte_order_mark_and_the_fences_of_a_page_are_no_part_of_a_log() -> None:
    assert [line.text for line in clean_lines("\ufeff```bash\nKilled\n```\n")] == ["", "Killed", ""]
