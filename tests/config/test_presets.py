"""Hardware presets: each is valid, says why, and differs from the defaults only by settings that exist."""

from __future__ import annotations

import pytest

from ocrlab.config.fields import flat
from ocrlab.config.presets import PRESETS
from ocrlab.config.schema import keys, load


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_and_takes_effect(name):
    preset = PRESETS[name]
    assert preset.settings.keys() <= keys().keys()
    assert 20 < len(preset.why) < 120 and "\n" not in preset.why
    assert preset.settings.items() <= flat(load(hardware=name)).items()


def test_the_promised_presets_are_there():
    assert {"cpu_2core", "rtx3060_12gb_i5_16core"} <= PRESETS.keys()
    assert PRESETS["rtx3060_12gb_i5_16core"].settings["trainer.precision"] == "bf16"
