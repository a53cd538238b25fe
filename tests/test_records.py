"""Records become JSON that any reader takes, and a newer schema is refused by name."""

from __future__ import annotations

import json

import pytest

from ocrlab import records
from ocrlab.errors import DataError


def test_json_has_a_schema_and_no_nan():
    text = records.to_json(records.RunRecord("success", "2026-01-01", metrics={"a": float("nan"), "b": 0.5}))
    assert json.loads(json.dumps(text, allow_nan=False))["metrics"] == {"a": None, "b": 0.5}
    assert text["schema"] == records.SCHEMA


def test_prediction_has_the_fixed_form():
    page = records.Prediction("page.jpg", 900, 1280, [records.Detection([[0, 0], [1, 0], [1, 1]], 0.97)])
    assert records.to_json(page) == {
        "schema": 1,
        "image": "page.jpg",
        "width": 900,
        "height": 1280,
        "detections": [{"polygon": [[0, 0], [1, 0], [1, 1]], "score": 0.97}],
    }


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("[]", "not a JSON object"), ('{"schema": 2}', "newer ocrlab.*schema 2")]
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(DataError, match=rf"x\.json.*{message}"):
        records.from_json(text, source="x.json")


def test_an_older_file_without_a_schema_is_read():
    assert records.from_json('{"a": 1}', source="x.json") == {"a": 1}
