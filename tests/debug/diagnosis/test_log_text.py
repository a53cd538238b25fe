"""Text of a program as numbered lines."""

from __future__ import annotations

import re

import pytest

from ocrlab.debug.diagnosis.log_text import LONGEST, Line, clean_lines, clean_log


def test_nul_bytes_and_colours_are_dropped() -> None:
    assert clean_lines(b"\x1b[31mRuntime\0Error:\x1b[0m bad\n\x1b]0;title\x07next") == [
        Line(1, "RuntimeError: bad"),
        Line(2, "next"),
    ]


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


def test_windows_line_ends_do_not_count_as_bars() -> None:
    assert [line.text for line in clean_lines("a\r\nb\r\n")] == ["a", "b"]


def test_a_long_line_keeps_both_ends() -> None:
    [line] = clean_lines("a" * 10_000 + "z")
    assert len(line.text) <= LONGEST
    assert line.text.startswith("aaa")
    assert line.text.endswith("az")


@pytest.mark.parametrize("data", [b"", "", b"\0\0", b"\xff\xfe\xfa", "\n\n"])
def test_nothing_and_junk_are_no_lines_or_harmless_ones(data: bytes | str) -> None:
    assert all(isinstance(line.text, str) for line in clean_lines(data))


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


def test_random_bytes_in_an_output_are_blank() -> None:
    noise = bytes(range(128, 256)) + b"MemoryError NaN \x01\x02"
    assert [line.text for line in clean_lines(b"step 1\n" + noise + b"\nstep 2")] == ["step 1", "", "step 2"]
    assert clean_lines("caf\xe9: KeyError".encode("latin-1"))[0].text.endswith("KeyError")


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


@pytest.mark.parametrize(
    "line",
    [
        "WARNING - OddError: bad, going on",
        "skipping page 3: OSError: truncated",
        "RuntimeError: cannot import x because of: ModuleNotFoundError: No module named 'y'",
        "    raise OddError: bad",
        "ocrlab: ValueError: bad",
    ],
)
def test_but_not_a_handled_exception_or_the_cause_of_another(line: str) -> None:
    assert clean_lines(line) == [Line(1, line)]


def test_a_byte_order_mark_and_the_fences_of_a_page_are_no_part_of_a_log() -> None:
    assert [line.text for line in clean_lines("\ufeff```bash\nKilled\n```\n")] == ["", "Killed", ""]
    assert clean_log("log", "```\nKilled\n```").text == "Killed"
