"""A small config, the receipts that ship, and a batch of them."""

from pathlib import Path

import pytest

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.data.dataset import Batch, Crops
from ocrlab.data.formats import reader
from ocrlab.training.sanity import data_checks


@pytest.fixture
def config(root: Path) -> Config:
    small = {"crop": 128, "batch_size": 2, "width": 16, "trainer.precision": "fp32", "runtime.cache": "none"}
    return configs.load(overrides={"data": str(root / "data_samples"), **small})


@pytest.fixture
def samples(config: Config) -> list[reader.Sample]:
    return reader.load(config.data, "train").samples[:8]


@pytest.fixture
def batch(config: Config, samples: list[reader.Sample]) -> Batch:
    return data_checks.first_batch(Crops, samples, config)
