"""Which modules a pattern means, and the nearest names where it means none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.errors import ConfigError
from ocrlab.model.dbnet import Detector


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("decoder.fusion.*", ["decoder.fusion.0", "decoder.fusion.1", "decoder.fusion.2"]),
        ("fusion", ["decoder.fusion"]),
        (nn.ConvTranspose2d, ["head.probability.3", "head.probability.6", "head.threshold.3", "head.threshold.6"]),
        (["decoder.fusion", "head"], ["decoder.fusion", "head"]),
        ("decoder.laterals.[01]", ["decoder.laterals.0", "decoder.laterals.1"]),
    ],
)
def test_which_modules_are_meant(which: Any, names: list[str]) -> None:
    assert [name for name, _ in layer_watch.watch(Detector(width=16), which).modules] == names


def test_the_module_itself_and_wrapped_models() -> None:
    model = Detector(width=16)
    assert layer_watch.watch(model, model.decoder.fusion).modules == [("decoder.fusion", "Sequential")]
    assert layer_watch.watch(nn.DataParallel(model)).modules == [("decoder.fusion", "Sequential")]
    assert ("(Detector)", "Detector") in layer_watch.watch(torch.compile(model), "*").modules
    assert layer_watch.watch(model, "").modules == [("(Detector)", "Detector")]
    assert layer_watch.watch(nn.LSTM(2, 2), "").modules == [("(LSTM)", "LSTM")]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("decoder.fussion", "decoder.fusion"),
        ("decoder.laterals", "decoder.laterals.*"),
        (nn.LSTM, "no LSTM"),
        (nn.Linear(1, 1), "not a module of the model"),
        (7, "a name, a glob"),
    ],
)
def test_unknown_modules_get_the_nearest_right_names(which: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        layer_watch.watch(Detector(width=16), which)
    assert message in str(caught.value)
