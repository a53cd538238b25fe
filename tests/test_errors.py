"""Every error says what, got, need and do, in one readable text."""

from __future__ import annotations

import inspect

import pytest

from ocrlab import errors


def test_the_text_has_all_four_parts_and_they_stay_apart():
    error = errors.DataError("Page a.jpg is empty.", got="0 bytes", need="an image", do="Copy it again.")
    assert str(error) == "Page a.jpg is empty. Given: 0 bytes. Needed: an image. Copy it again."
    assert (error.what, error.got, error.need, error.do) == (
        "Page a.jpg is empty.",
        "0 bytes",
        "an image",
        "Copy it again.",
    )


def test_a_question_keeps_its_mark():
    assert str(errors.ConfigError("There is no key lrr", do="Did you mean lr?")).endswith("Did you mean lr?")


def test_what_the_caller_named_and_is_not_there_is_wrong_use():
    assert errors.ConfigError("no such key").wrong_use
    assert errors.DataError("no such folder", missing=True).wrong_use
    assert not errors.DataError("it is damaged").wrong_use


def test_got_may_be_zero_or_false():
    assert "Given: 0." in str(errors.ShapeError("Too small", got=0, need="1"))


@pytest.mark.parametrize(
    ("kind", "base"), [("ConfigError", ValueError), ("DataError", ValueError), ("RunError", RuntimeError)]
)
def test_they_are_also_what_python_calls_them(kind, base):
    assert issubclass(getattr(errors, kind), base)


def test_the_tree_in_the_docstring_names_every_error():
    kinds = [
        name for name, member in inspect.getmembers(errors, inspect.isclass) if issubclass(member, errors.OcrlabError)
    ]
    assert all(name in errors.__doc__ for name in kinds)


def test_a_full_stop_is_taken_off_and_dots_that_mean_something_stay() -> None:
    text = str(errors.OcrlabError("It leaves the folder.", need="a path", do="Write it without .."))
    assert text == "It leaves the folder. Needed: a path. Write it without ..."
    assert str(errors.DataError("No", got="an attack.", need="peace.")) == "No. Given: an attack. Needed: peace."
