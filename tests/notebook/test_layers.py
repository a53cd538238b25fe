"""The sections of the layers notebook: maps, histograms, the table, and faults found where they were planted."""

from dataclasses import replace
from typing import Any

import pytest

from ocrlab.config.schema import Config, load
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
    assert view.html.count("<svg") == 1 + layers.STRONGEST
    assert layers.sheet(page_maps).html.count("<svg") == 32


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_planted_faults_are_located_where_they_were_planted(config: Config, seed: int) -> None:
    config.seed = seed
    faults = layers_job.plant(config, "", ignore)
    assert [fault.right for fault in faults] == [True, True], [fault.reported for fault in faults]
    assert layers.share(faults) == 1
    assert "2 of 2 planted faults" in layers.faults(faults).text
