"""From parameters to a config: leaf names, folders that do not depend on where one stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.config import schema
from ocrlab.errors import ConfigError
from ocrlab.reports.notebooks import parameters_to_config


def test_every_setting_has_a_flat_name() -> None:
    assert set(parameters_to_config.fields().values()) == set(schema.keys())
    assert parameters_to_config.fields()["max_steps"] == "trainer.max_steps"
    assert parameters_to_config.fields()["threshold"] == "post.threshold"
    assert parameters_to_config.fields()["data"] == "data"


def test_parameters_become_a_config(tmp_path: Path) -> None:
    values = {
        "name": "x",
        "data": "",
        "lr": 0.01,
        "max_steps": 7,
        "limit": 0.5,
        "overrides": ["augment.rotate=2", "lr=0.5"],
    }
    config = parameters_to_config.configure(values | {"runs": str(tmp_path)})
    assert (config.name, config.optim.lr, config.trainer.max_steps, config.augment.rotate) == ("x", 0.5, 7, 2)
    assert config.runs == str(tmp_path)


def test_empty_folders_are_those_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = parameters_to_config.configure({"data": ""})
    assert config.data == str(root / "data_samples")
    assert config.runs == str(root / "runs")


def test_a_named_folder_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parameters_to_config.configure({"data": "receipts"}).data == str(tmp_path / "receipts")


def test_without_a_checkout_data_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters_to_config, "homes", list)
    monkeypatch.chdir(tmp_path)
    assert parameters_to_config.runs() == tmp_path / "runs"
    with pytest.raises(ConfigError, match="ocrlab samples make"):
        parameters_to_config.configure({"data": ""})


def test_a_checkout_that_cannot_be_written_gets_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters_to_config.os, "access", lambda *_: False)
    monkeypatch.chdir(tmp_path)
    assert parameters_to_config.runs() == tmp_path / "runs"


def test_a_notebook_is_watched() -> None:
    trainer = parameters_to_config.configure({"data": "", "max_steps": 300}).trainer
    assert (trainer.log_every, trainer.val_every, trainer.val_pages) == (5, 100, 16)
    config = parameters_to_config.configure(
        {"data": "", "max_steps": 300, "val_every": 300, "overrides": ["trainer.val_pages=none"]}
    )
    assert (config.trainer.val_every, config.trainer.val_pages) == (300, None)


def test_epochs_replace_the_steps_that_the_notebook_has() -> None:
    trainer = parameters_to_config.configure({"data": "", "max_steps": 300, "max_epochs": 2}).trainer
    assert trainer.max_epochs == 2


def test_a_slip_of_the_pen_and_a_wrong_value_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean batch_size?"):
        parameters_to_config.configure({"data": "", "batchsize": 4})
    with pytest.raises(ConfigError, match="a whole number from 1 to"):
        parameters_to_config.configure({"data": "", "batch_size": 0})
    with pytest.raises(ConfigError, match="crop"):
        parameters_to_config.configure({"data": "", "crop": 100})
