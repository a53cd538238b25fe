"""The smoke ladder on this processor, and that a wrong result does not pass."""

from __future__ import annotations

import pytest

from ocrlab.hardware import smoke_test

torch = pytest.importorskip("torch")


def test_every_rung_of_the_processor_holds() -> None:
    answers = list(smoke_test.ladder("cpu"))
    rungs = answers[-1]["rungs"]
    assert [rung["rung"] for rung in rungs if not rung["ok"]] == []
    assert [rung["rung"] for rung in rungs][-2:] == ["convolution step fp32", "convolution step bf16"]
    for before, after in zip(answers[1::2], answers[2::2], strict=True):
        assert before["at"] == after["rungs"][-1]["rung"]  # each is announced before it is climbed


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_limit_lets_a_right_step_pass_and_stops_a_wrong_step(precision: str) -> None:
    assert smoke_test.step(torch, "cpu", precision, None) is None
    right = torch.ones(3)
    limit = smoke_test.CLOSE[precision]
    assert smoke_test.wrong({"x": (right, right.double())}, limit) is None
    assert "x differs" in (smoke_test.wrong({"x": (right, right + 1)}, limit) or "")
    assert "x differs" in (smoke_test.wrong({"x": (right * float("nan"), right)}, limit) or "")


def test_a_wrong_product_is_reported() -> None:
    climb = smoke_test.rungs(torch, "cpu")
    for name in climb:
        if name == "copy back and compare":
            break
        assert next(climb) is None
    climb.gi_frame.f_locals["product"][0, 0] += 1
    assert "1 of 65536 products differ" in next(climb)
