"""From the parameters of a notebook to the config of a run, and the folders that are meant when none is named."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ocrlab.config import schema
from ocrlab.config.aliases import ALIASES, SAMPLES
from ocrlab.config.schema import Config
from ocrlab.errors import ConfigError

ALIKE = 0.85  # of a parameter's name to a field's, above which it is a slip of the pen


def configure(values: Mapping[str, Any]) -> Config:
    """Return the config that the parameters of a notebook stand for; raises ConfigError.

    A parameter named like a config field sets it, `overrides` come on top, other names are the notebook's own. An empty
    `data` means the samples of this checkout, an empty or missing `runs` the folder beside them. Somebody is watching:
    unless set otherwise, a run logs 60 times and validates 3 times, on a few pages.
    """
    keys = fields()
    for name in values:
        slip = [] if name in keys or name == "overrides" else get_close_matches(name, keys, 1, ALIKE)
        if slip:
            raise ConfigError(f"There is no setting {name}", do=f"Did you mean {slip[0]}?")
    overrides = {keys[name]: value for name, value in values.items() if name in keys}
    for key, default in (("data", samples), ("runs", runs)):
        overrides[key] = str(Path(overrides[key]).expanduser().absolute() if overrides.get(key) else default())
    if overrides.get("trainer.max_epochs") is not None:
        overrides.pop("trainer.max_steps", None)  # the notebook always has a number of steps, which epochs replace
    steps = schema.load(overrides=overrides).trainer.max_steps
    pace = {"trainer.log_every": -(-steps // 60), "trainer.val_every": -(-steps // 3), "trainer.val_pages": 16}
    return schema.apply(schema.load(overrides=pace | overrides), values.get("overrides") or [])


def fields() -> dict[str, str]:
    """Return the dotted config key of every name that stands for exactly one: `max_steps` -> `trainer.max_steps`."""
    by_leaf: dict[str, list[str]] = {}
    for key in schema.keys():  # noqa: SIM118 - a function, not a dict
        by_leaf.setdefault(key.rpartition(".")[2], []).append(key)
    short = {name: key for name, key in ALIASES.items() if "." not in name}
    return short | {leaf: keys[0] for leaf, keys in by_leaf.items() if len(keys) == 1}


def samples() -> Path:
    """Return the sample pages of this checkout, wherever the notebook runs; raises ConfigError if there are none."""
    for home in homes():
        if (home / SAMPLES).is_dir():
            return home / SAMPLES
    looked = ", ".join(map(str, homes())) or "no checkout was found"
    what = f"data is empty, and there is no folder {SAMPLES} beside the notebooks"
    raise ConfigError(what, got=looked, need="a data folder", do="Name one with data=DIR, or run: ocrlab samples make")


def runs() -> Path:
    """Return where runs go when nobody says so: into the checkout if it can be written, else into this folder."""
    for home in homes():
        if os.access(home, os.W_OK):
            return home / "runs"
    return Path.cwd() / "runs"


def homes() -> list[Path]:
    """Return the folders that may be the checkout: the package's, the one it was installed from, the notebook's."""
    places = [Path(__file__).parents[3]]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError, OSError):
        written = importlib.metadata.distribution("ocrlab").read_text("direct_url.json")  # PEP 610
        url = urlsplit(json.loads(written or "{}").get("url", ""))
        places += [Path(unquote(url.path))] if url.scheme == "file" else []
    session = os.environ.get("JPY_SESSION_NAME", "")  # JupyterLab's path of the notebook
    places += list(Path(session).parents)[:2] if session.startswith("/") else []
    return list(dict.fromkeys(place for place in places if (place / "notebooks").is_dir()))
