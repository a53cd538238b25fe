"""The sections of the layers notebook: maps, histograms, the table, and faults found where they were planted."""

from dataclasses import replace
from typing import Any

import numpy as np
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


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
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
