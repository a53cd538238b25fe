"""An error of the recorder is said, and ends nothing but the recorder."""

from __future__ import annotations

import sys

from ocrlab.debug.recorder.fail_safe import harmless, say


class Part:
    def __init__(self):
        self.on, self.errors = True, []

    def give_up(self, error):
        self.on = False
        self.errors.append(error)

    @harmless
    def half(self, number):
        return 1 / number


def test_an_error_switches_off_and_is_not_raised():
    part = Part()
    assert part.half(2) == 0.5
    assert part.half(0) is None
    assert [type(error) for error in part.errors] == [ZeroDivisionError]
    assert part.half(2) is None, "it is off"


def test_words_are_lost_in_silence_where_nobody_can_read_them(monkeypatch, capsys):
    say("one word")
    assert capsys.readouterr().err == "ocrlab: flight recorder: one word\n"
    monkeypatch.setattr(sys, "stderr", None)
    say("another")
