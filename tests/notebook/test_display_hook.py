"""What an isolated cell displays travels as MIME bundles that JSON can hold, and not without bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ocrlab.notebook import display_hook


@pytest.fixture
def sent() -> list[dict[str, Any]]:
    return []


def test_a_bundle_can_be_written_as_json(sent: list[dict[str, Any]]) -> None:
    display_hook.Display(sent.append).publish({"image/png": b"\x89PNG", "text/plain": "a"}, {"width": 3})
    [event] = sent
    assert json.loads(json.dumps(event))["data"] == {"image/png": "iVBORw==", "text/plain": "a"}
    assert (event["kind"], event["metadata"], event["update"]) == (display_hook.KIND, {"width": 3}, False)


def test_what_is_too_large_is_left_out_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display_hook, "LARGEST", 10)
    assert display_hook.bounded({"text/html": "x" * 11, "text/plain": "short"}) == ({"text/plain": "short"}, 5)
    bundle, _ = display_hook.bounded({"text/html": "x" * 11})
    assert "text/html of more than" in bundle["text/plain"]


def test_a_flood_is_cut_once(sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display_hook, "MOST", 100)
    display = display_hook.Display(sent.append)
    for _ in range(50):
        display.publish({"text/plain": "x" * 30})
    assert [event["data"]["text/plain"] for event in sent[:3]] == ["x" * 30] * 3
    assert len(sent) == 4
    assert "the rest is not shown here" in sent[3]["data"]["text/plain"]


def test_a_value_looks_as_in_a_notebook_and_a_broken_value_has_its_repr() -> None:
    class Rich:
        def _repr_html_(self) -> str:
            return "<b>rich</b>"

    assert display_hook.formatted(Rich())[0]["text/html"] == "<b>rich</b>"
    assert display_hook.formatted([1, 2])[0] == {"text/plain": "[1, 2]"}
    assert not display_hook.is_figure(Rich())
