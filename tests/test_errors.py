"""Errors and records: every part in one readable text, and JSON that any reader takes."""

import inspect
import json

import pytest

from ocrlab import errors, records
from ocrlab.errors import DataError


def test_the_text_has_all_four_parts_and_they_stay_apart():
    error = errors.DataError("Page a.jpg is empty.", got="0 bytes", need="an image", do=(do := "Copy it again."))
    assert str(error) == "Page a.jpg is empty. Given: 0 bytes. Needed: an image. Copy it again."
    assert (error.what, error.got, error.need, error.do) == ("Page a.jpg is empty.", "0 bytes", "an image", do)


def test_what_the_caller_named_and_is_not_there_is_wrong_use():
    assert errors.ConfigError("no such key").wrong_use
    assert errors.DataError("no such folder", missing=True).wrong_use
    assert not errors.DataError("it is damaged").wrong_use


def test_the_tree_in_the_docstring_names_every_error():
    kinds = [
        name for name, member in inspect.getmembers(errors, inspect.isclass) if issubclass(member, errors.OcrlabError)
    ]
    assert all(name in errors.__doc__ for name in kinds)


def test_a_full_stop_is_taken_off_and_dots_that_mean_something_stay() -> None:
    text = str(errors.OcrlabError("It leaves the folder.", need="a path", do="Write it without .."))
    assert text == "It leaves the folder. Needed: a path. Write it without ..."
    assert str(errors.DataError("No", got="an attack.", need="peace.")) == "No. Given: an attack. Needed: peace."
    assert str(errors.ConfigError("No key lrr", do="Did you mean lr?")) == "No key lrr. Did you mean lr?"


def test_json_has_a_schema_and_no_nan():
    text = records.to_json(records.RunRecord("success", "2026-01-01", metrics={"a": float("nan"), "b": 0.5}))
    assert json.loads(json.dumps(text, allow_nan=False))["metrics"] == {"a": None, "b": 0.5}
    assert text["schema"] == records.SCHEMA


def test_prediction_has_the_fixed_form():
    page = records.Prediction("page.jpg", 900, 1280, [records.Detection([[0, 0], [1, 0], [1, 1]], 0.97)])
    assert records.to_json(page) == {
        "schema": 1, "image": "page.jpg", "width": 900, "height": 1280,
        "detections": [{"polygon": [[0, 0], [1, 0], [1, 1]], "score": 0.97}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("[]", "not a JSON object"), ('{"schema": 2}', "newer ocrlab.*schema 2")]
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(DataError, match=rf"x\.json.*{message}"):
        records.from_json(text, source="x.json")
