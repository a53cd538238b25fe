"""Hardware presets: the settings that suit a machine, chosen with `+hardware=NAME`.

A preset lies under the YAML file and under `key=value` on the command line, which win where they say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ocrlab.config.aliases import nearest
from ocrlab.config.overrides import Setting
from ocrlab.errors import ConfigError


@dataclass(frozen=True)
class Preset:
    """What a machine wants: one line that says why, and dotted settings that differ from the defaults."""

    why: str
    settings: dict[str, Any] = field(default_factory=dict)


PRESETS: dict[str, Preset] = {
    "cpu_2core": Preset(
        "two cores: the training process prepares the pages, since a second busy process makes steps many times slower",
        {
            "trainer.accelerator": "cpu",
            "runtime.threads": 2,
            "runtime.workers": 0,
            "runtime.cache_gb": 1.0,
        },
    ),
    "cpu_laptop_8core": Preset(
        "eight cores: six for the step, two that prepare the next pages; the cache leaves memory to the desktop",
        {
            "trainer.accelerator": "cpu",
            "runtime.threads": 6,
            "runtime.workers": 2,
            "runtime.cache_gb": 2.0,
        },
    ),
    "rtx3060_12gb_i5_16core": Preset(
        "12 GB hold 16 crops of 640 pixels in bf16; eight workers keep the card fed and leave cores to the desktop",
        {
            "encoder": "resnet18",
            "width": 128,
            "trainer.accelerator": "cuda",
            "trainer.precision": "bf16",
            "batch_size": 16,
            "crop": 640,
            "runtime.threads": 4,
            "runtime.workers": 8,
            "runtime.channels_last": True,
        },
    ),
    "t4_16gb_4core": Preset(
        "the usual rented notebook: no fast bf16 on this card, and four cores can feed it only from a cache",
        {
            "encoder": "resnet18",
            "width": 128,
            "trainer.accelerator": "cuda",
            "trainer.precision": "fp32",
            "batch_size": 8,
            "crop": 640,
            "runtime.threads": 2,
            "runtime.workers": 3,
        },
    ),
    "h200_16core": Preset(
        "loading limits the speed, not memory: large batches, compiled steps, and all cores but one as workers",
        {
            "encoder": "resnet18",
            "width": 128,
            "trainer.accelerator": "cuda",
            "trainer.precision": "bf16",
            "batch_size": 64,
            "crop": 640,
            "runtime.threads": 4,
            "runtime.workers": 15,
            "runtime.channels_last": True,
            "runtime.compile": True,
            "runtime.cache_gb": 32.0,
        },
    ),
}


def choose(asked: Setting | None) -> dict[str, Setting]:
    """Return the settings of the preset that `asked` names, none of them for None; raises ConfigError."""
    if asked is None or asked.empty:
        return {}
    if asked.value not in PRESETS:
        near = nearest(str(asked.value), PRESETS)
        what = f"hardware={asked.shown} is not a preset ({asked.where})"
        raise ConfigError(what, need=f"one of {', '.join(PRESETS)}", do=f"The nearest is {near}" if near else None)
    where = f"preset {asked.value}"
    return {key: Setting(key, value, str(value), where) for key, value in PRESETS[asked.value].settings.items()}
