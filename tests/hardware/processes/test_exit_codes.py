"""Signals in words, and exit codes as signals."""

from __future__ import annotations

import signal

import pytest

from ocrlab.hardware.processes import exit_codes


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (-11, "SIGSEGV"),
        (139, "SIGSEGV"),
        (137, "SIGKILL"),
        (-50, "signal 50"),
        (0, None),
        (1, None),
        (255, None),
        (None, None),
    ],
)
def test_an_exit_code_as_subprocess_and_as_a_shell_has_it(code: int | None, name: str | None) -> None:
    assert exit_codes.signal_of_exit(code) == name


def test_every_signal_that_kills_by_itself_has_words() -> None:
    for name in ("SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGINT", "SIGHUP"):
        assert exit_codes.meaning(name)
    assert set(exit_codes.MEANINGS) <= {member.name for member in signal.Signals}
    assert exit_codes.meaning(None) == exit_codes.meaning("SIGWINCH") == ""
