"""The failing line is found in what a failure leaves, and sources are opened of one's own run only."""

from __future__ import annotations

from pathlib import Path

from ocrlab.reports.bug_report import sources

SOURCE = "import json\n\n\ndef read(page):\n    return json.loads(page)['boxes']\n\n\nread('{}')\n"


def traceback(file: Path) -> str:
    lib = "/usr/lib/python3.11/json/__init__.py"
    return (
        "epoch 1\nTraceback (most recent call last):\n"
        f"  File \"{file}\", line 8, in <module>\n    read('{{}}')\n"
        f'  File "{file}", line 5, in read\n    return json.loads(page)\n'
        f'  File "{lib}", line 346, in loads\n    return x\n'
        "KeyError: 'boxes'\nafterwards: something else\n"
    )


def test_the_programs_own_innermost_line_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    stack = sources.find_stack({"log_tail.txt": traceback(file)}, own=True)
    assert stack.frame and (stack.frame.function, stack.frame.line, stack.file) == ("read", 5, "log_tail.txt")
    assert (
        ">     5      return json.loads(page)['boxes']" in stack.source and "      4  def read(page):" in stack.source
    )
    assert stack.whole.endswith("KeyError: 'boxes'") and "epoch" not in stack.whole


def test_of_a_strangers_run_no_file_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    stack = sources.find_stack({"log_tail.txt": traceback(file)}, own=False)
    assert stack.frame and stack.source == "" and "nothing proves" in stack.why_none
    secret = tmp_path / "id_rsa.pem"
    secret.write_text("x\n" * 20)
    assert sources.source_lines(secret, 5) == "" and sources.source_lines(tmp_path / "gone.py", 1) == ""
    assert sources.source_lines(file, 99) == "" and sources.source_lines(Path("a\0.py"), 1) == ""
    key = tmp_path / "id_rsa"
    key.write_text("x\n" * 20)
    assert sources.source_lines(key, 5) == "", "without a suffix only a script with #! is one"


def test_a_dump_of_a_signal_begins_with_the_innermost_frame() -> None:
    text = (
        "step 3\nFatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent call first):\n"
        '  File "/x/train.py", line 60 in decode\n  File "/x/train.py", line 80 in main\n'
    )
    stack = sources.find_stack({"log_tail.txt": text}, own=False)
    assert stack.frame and (stack.frame.function, stack.frame.line) == ("decode", 60)


def test_a_hang_uses_its_stacks_and_an_empty_incident_has_none() -> None:
    text = 'Process 12: python train.py\n\nThread 0x7F (active): "MainThread"\n'
    text += "    wait (/x/train.py:9)\n    main (/x/train.py:3)\n"
    stack = sources.find_stack({"stacks.txt": text, "log_tail.txt": "x"}, own=False)
    assert stack.file == "stacks.txt" and stack.frame and stack.frame.function == "wait"
    assert sources.find_stack({"log_tail.txt": "nothing here"}, own=True).whole == ""


def test_a_huge_traceback_is_cut_in_its_middle() -> None:
    text = (
        "Traceback (most recent call last):\n"
        + '  File "/x/a.py", line 1, in f\n' * 5000
        + "RecursionError: too deep\n"
    )
    whole, _ = sources.last_failure(text)
    assert len(whole) < 1.1 * sources.LONGEST and whole.endswith("RecursionError: too deep")
