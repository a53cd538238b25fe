"""What ocrlab itself fails at is kept away from the program, and written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.run_folder import own_errors
from ocrlab.run_folder.own_errors import NAME, append_own_error, guarded


def test_an_error_is_written_with_its_traceback_and_goes_no_further(tmp_path: Path) -> None:
    (tmp_path / "flight").mkdir()
    for number in range(2):
        with guarded(tmp_path, "watch: the hang"):
            raise ValueError(f"number {number}")
    log = tmp_path / "flight" / NAME
    text = log.read_text()
    assert text.count("watch: the hang\nTraceback (most recent call last):") == 2
    assert "ValueError: number 0" in text and "ValueError: number 1" in text and "test_own_errors.py" in text
    assert log.stat().st_mode & 0o777 == 0o600


def test_without_a_flight_folder_it_lies_beside_the_verdict(tmp_path: Path) -> None:
    append_own_error(tmp_path, "diagnose", "a traceback of another process")
    assert "a traceback of another process" in (tmp_path / "incident" / NAME).read_text()


def test_nothing_is_raised_where_nothing_can_be_written_and_the_log_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_own_error(None, "x", ValueError())
    append_own_error(tmp_path / "not" / "there", "x", ValueError())
    monkeypatch.setattr(own_errors, "MOST", 300)
    for _ in range(50):
        append_own_error(tmp_path, "x", "y" * 100)
    assert (tmp_path / "incident" / NAME).stat().st_size < 600


def test_what_ends_a_program_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), guarded(tmp_path, "x"):
        raise KeyboardInterrupt
