"""The record of an exception: type, message, the innermost frame, and the innermost frame of the user's code."""

from __future__ import annotations

import json

import pytest

from ocrlab.run_folder.exception_record import TRACEBACK_LIMIT, describe


def caught(action: object, *arguments: object) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011
        action(*arguments)  # type: ignore[operator]
    return info.value


def test_where_is_the_innermost_frame_and_your_code_the_innermost_outside_of_packages() -> None:
    description = describe(caught(lambda: json.loads("{")))
    assert description["type"] == "json.decoder.JSONDecodeError"
    assert "decoder.py:" in description["where"]
    assert description["your_code"].startswith(__file__)
    assert description["your_code"].endswith("<lambda>")
    assert "json.loads" in description["traceback"]


@pytest.mark.parametrize(
    ("error", "message"), [(KeyboardInterrupt(), "interrupted"), (SystemExit(143), "exit status 143")]
)
def test_interrupts_and_exits_are_described_in_words(error: BaseException, message: str) -> None:
    description = describe(error)
    assert description["message"] == message
    assert description["where"] is None  # it was never raised


def test_an_error_without_a_text_is_still_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    assert describe(Mute())["message"] == "it has no text: ValueError"


def test_a_long_traceback_keeps_its_head_and_its_tail() -> None:
    def fail() -> None:
        raise RuntimeError("x" * 2 * TRACEBACK_LIMIT + "the end")

    text = describe(caught(fail))["traceback"]
    assert len(text) < TRACEBACK_LIMIT + 100
    assert text.startswith("Traceback")
    assert text.endswith("the end\n")


def test_a_chain_of_errors_is_complete() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("second") from error

    text = describe(caught(fail))["traceback"]
    assert "KeyError: 'first'" in text
    assert "RuntimeError: second" in text


def test_endless_recursion_is_reported() -> None:
    def fail(depth: int) -> int:
        return fail(depth + 1) + 1

    description = describe(caught(fail, 0))
    assert description["type"] == "RecursionError"
    assert description["your_code"].startswith(__file__)
