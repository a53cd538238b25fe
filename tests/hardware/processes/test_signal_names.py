"""Signals in words, and exit codes as signals."""

from __future__ import annotations

import signal

import pytest

from ocrlab.hardware.processes import signal_names


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
    assert signal_names.of_exit(code) == name


def test_every_signal_that_kills_by_itself_has_words() -> None:
    for name in ("SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGINT", "SIGHUP"):
        assert signal_names.meaning(name)
    assert set(signal_names.MEANINGS) <= {member.name for member in signal.Signals}
    assert signal_names.meaning(None) == signal_names.meaning("SIGWINCH") == ""
