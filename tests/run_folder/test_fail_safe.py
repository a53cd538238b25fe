"""Errors of ocrlab's own code never reach the program, and are written down."""

import contextlib
import signal
import sys
from typing import Any

import pytest

from ocrlab.run_folder import fail_safe
from ocrlab.run_folder.fail_safe import NAME, InstrumentGuard, append_own_error, guarded


def test_an_error_is_written_with_its_traceback_and_goes_no_further(tmp_path) -> None:
    (tmp_path / "flight").mkdir()
    for number in range(2):
        with guarded(tmp_path, "watch: the hang"):
            raise ValueError(f"number {number}")
    log = tmp_path / "flight" / NAME
    text = log.read_text()
    assert text.count("watch: the hang\nTraceback (most recent call last):") == 2
    assert "ValueError: number 0" in text and "ValueError: number 1" in text and "test_fail_safe.py" in text
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_raises_nothing_and_its_size_is_bounded(tmp_path, monkeypatch):
    append_own_error(None, "x", ValueError())
    append_own_error(tmp_path / "not" / "there", "x", ValueError())
    monkeypatch.setattr(fail_safe, "MAX_BYTES", 300)
    for _ in range(50):
        append_own_error(tmp_path, "x", "y" * 100)
    assert (tmp_path / "incident" / NAME).stat().st_size < 600


def test_reports_are_printed_and_go_to_the_log_of_the_process(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fail_safe, "_logs", [])
    fail_safe.write_errors_to(tmp_path / fail_safe.TRACER_NAME)
    try:
        raise ValueError("mine")
    except ValueError as error:
        fail_safe.report(error, "tracing failed", name="ocrlab replay")
        InstrumentGuard("a test").fail(error)
    text = (tmp_path / "tracer-errors.txt").read_text()
    assert text.count('raise ValueError("mine")') == 2 and "a test ended early" in text
    assert capsys.readouterr().err.startswith("ocrlab replay: tracing failed: ValueError: mine\n")
    monkeypatch.setattr(sys, "stderr", None)
    fail_safe.print_message("nobody can read this")


class Part:
    def __init__(self) -> None:
        self.on, self.errors = True, list[Exception]()

    def give_up(self, error: Exception) -> None:
        self.on = False
        self.errors.append(error)

    @fail_safe.guard
    def half(self, number: int) -> Any:
        return 1 / number


class Check:
    failed = closed = False

    @fail_safe.guard
    def look(self) -> None:
        raise ZeroDivisionError("of the recorder")

    def close(self) -> None:
        self.closed = True


def test_an_error_switches_the_object_off_and_is_not_raised(capsys: pytest.CaptureFixture[str]) -> None:
    part = Part()
    assert part.half(2) == 0.5
    assert part.half(0) is None
    assert [type(error) for error in part.errors] == [ZeroDivisionError]
    assert part.half(2) is None, "it is off"
    check = Check()
    check.look()
    check.look()
    assert check.failed and check.closed
    stderr = "ocrlab: flight recorder: Check is switched off: ZeroDivisionError: of the recorder\n"
    assert capsys.readouterr().err == stderr


def test_an_error_of_a_signal_handler_goes_on_to_the_program() -> None:
    def handler(_number: int, _frame: Any) -> None:
        raise TimeoutError("of the program")

    class Interrupted(Part):
        @fail_safe.guard
        def wait(self) -> None:
            signal.raise_signal(signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, handler)
    instrument, part = InstrumentGuard("a test", stop=lambda _: None), Interrupted()
    try:
        with pytest.raises(TimeoutError), instrument():
            signal.raise_signal(signal.SIGUSR2)
        with pytest.raises(TimeoutError):
            part.wait()
        assert not fail_safe.raised_by_signal(ValueError())
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not instrument.problem and part.on


def test_the_first_error_of_an_instrument_is_printed_with_its_place_and_stops_it(capsys):
    stopped: list[str] = []
    guard = InstrumentGuard("a test", stop=lambda error: stopped.append(str(error)))
    for text in ("first\nof two lines", "second"):
        with guard():
            raise ValueError(text)
    with contextlib.suppress(KeyboardInterrupt), guard():
        raise KeyboardInterrupt
    stderr = capsys.readouterr().err
    assert stderr.startswith("ocrlab: a test ended early; the program continues: ValueError: first (test_fail_safe.py:")
    assert stderr.count("\n") == 1 and stopped == ["first\nof two lines"]


def test_an_error_of_the_programs_kernels_is_logged_and_not_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fail_safe, "_logs", [tmp_path / NAME])
    monkeypatch.setattr(fail_safe, "_device_errors", [lambda error: "CUDA error" in str(error)])
    passed_on = list[Exception]()

    class Look:
        failed = False
        on_program_error = staticmethod(passed_on.append)

        def close(self) -> None:
            self.closed = True

        @fail_safe.guard
        def note(self, text: str) -> None:
            raise RuntimeError(text)

    dead, own = Look(), Look()
    dead.note("CUDA error: an illegal memory access was encountered")
    assert capsys.readouterr().err == "" and dead.failed and dead.closed and len(passed_on) == 1
    assert "illegal memory access" in (tmp_path / NAME).read_text()
    own.note("of ocrlab")
    assert "Look is switched off: RuntimeError: of ocrlab" in capsys.readouterr().err and len(passed_on) == 1
