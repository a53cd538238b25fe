"""The sections of the layers notebook: maps, histograms, the table, and faults found where they were planted."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from ocrlab.config.schema import Config, load
from ocrlab.errors import ConfigError
from ocrlab.notebook import layers, layers_job


@pytest.fixture
def config(root: Any) -> Config:
    data = {"data": str(root / "data_samples"), "crop": 64, "batch_size": 2, "width": 16, "trainer.max_steps": 3}
    return load(overrides=data)


def ignore(_event: dict[str, Any]) -> None:
    """Progress for nobody."""


def test_maps_of_a_page_and_the_sheet_of_all(config: Config) -> None:
    page_maps = layers_job.look(config, "fusion", 1, "")
    view = layers.maps(page_maps)
    assert view.text.startswith("decoder.fusion gives 32 maps of ")
    assert "included" in view.html
    only = replace(page_maps, maps=page_maps.maps[:1], figures=page_maps.figures[:1])
    assert layers.maps(only).text.startswith("decoder.fusion gives one map of ")
    assert layers.slider(only).text.startswith("The only map of decoder.fusion")
    assert 2 <= view.html.count("<svg") <= 1 + layers.STRONGEST
    channels = page_maps.different(layers.STRONGEST)
    assert len(set(channels)) == len(channels) and channels[0] == page_maps.strongest[0]
    slider = layers.slider(page_maps)
    assert slider.html.count("<svg") == 32
    bundle = slider._repr_mimebundle_()
    assert set(bundle) >= {"text/html", "text/plain", "application/vnd.jupyter.widget-view+json"}
    box = slider.widget.children
    before = box[1].value
    box[0].value = 3
    assert box[1].value != before and f"map {page_maps.strongest[3]}" in box[1].value


def test_a_page_that_there_is_not_is_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"no page 999. Needed: 0 to \d+, of val"):
        layers_job.look(config, "decoder.fusion", 999, "")


def test_a_module_without_maps_is_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match="nearest are decoder.fusion"):
        layers_job.look(config, "decoder.fussion", 0, "")
    with pytest.raises(ConfigError, match="one name"):
        layers_job.look(config, "decoder.fusion.*", 0, "")


def test_a_short_training_gives_histograms_and_the_table_of_all_modules(config: Config) -> None:
    events: list[dict[str, Any]] = []
    training = layers_job.learn(config, "decoder.fusion", 2, events.append)
    assert sorted(training.outputs) == sorted(training.gradients) == [0, 2]
    assert {name: events[-1][name] for name in ("unit", "step", "total")} == {"unit": "step", "step": 3, "total": 3}
    assert all(event["kind"] != "end" for event in events) and len(training.losses) == 3, "faults are planted after it"
    assert re.match(r"decoder.fusion: \d+ % zeros at first", layers.histograms(training).text)
    table = layers.modules(training)
    assert "every value finite" in table.text and "decoder.fusion.0" in table.html
    assert "along 98 modules" in layers.curves(training).text


def test_a_single_step_has_a_middle() -> None:
    values = {0: np.linspace(1, 2, 99, dtype=np.float32)}
    view = layers.histograms(layers_job.ShortTraining("m", [1.0], values, values))
    assert "loss 1.00 to 1.00 in one step" in view.text
    assert re.findall(r">([\d.−-]+)</text>", view.html)[0] == "0", "a step has no fractions"


def test_empty_histograms_are_labelled() -> None:
    dead = {0: np.zeros(9, np.float32), 2: np.zeros(9, np.float32)}
    view = layers.histograms(layers_job.ShortTraining("m", [1.0, 1.0], dead, {}))
    assert "There was no output" in view.text and "100 % zeros" in view.text


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_faults_are_located_where_they_were_planted(config: Config, seed: int) -> None:
    config.seed = seed
    faults = layers_job.plant(config, "", ignore)
    assert [fault.right for fault in faults] == [True, True, True], [fault.reported for fault in faults]
    assert layers.share(faults) == 1
    view = layers.faults(faults)
    assert "3 of 3 planted faults" in view.text and view.html.count("<svg") == 1
    assert all(max(share for _, share in fault.spread) > 0 for fault in faults)
    svg = view.html[view.html.index("<svg") :]
    assert all(f"{fault.short}<" in svg for fault in faults), "each plot names its fault"
    first = [next(name for name, share in fault.spread if share > 0) for fault in faults]
    assert all(f"from {name} on" in svg for name in first) and svg.count("in backward order") == 1


def page_maps(maps: list[np.ndarray]) -> layers_job.PageMaps:
    figures = [
        {"min": 0.0, "max": 1.0, "std": float(m.std()), "zeros": int((m == 0).sum()), "count": m.size} for m in maps
    ]
    canvas = np.zeros((32, 32, 3), np.uint8)
    return layers_job.PageMaps("page", "included", "decoder.fusion", canvas, np.stack(maps).astype(np.uint8), figures)


def test_the_strongest_maps_come_first_and_duplicates_are_passed_over() -> None:
    rng = np.random.default_rng(0)
    strong, other = rng.integers(0, 256, (32, 32)), rng.integers(0, 128, (32, 32))
    maps = page_maps([other, strong, strong // 2, 255 - strong, other // 4])
    assert maps.strongest[0] in (1, 3)
    assert maps.different(9) == [maps.strongest[0], 0], "a map, and its negative, show the same as the strongest"
    assert maps.different(1) == [maps.strongest[0]]


def test_a_pattern_must_mean_a_single_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert layers_job.find_module(model, "0").name == "0"
    with pytest.raises(ConfigError, match="3 modules"):
        layers_job.find_module(model, "*")
