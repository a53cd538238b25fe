"""The detector of a config, and the checks of a report by name."""

from collections.abc import Iterable, Sequence

import torch

from ocrlab.config.schema import Config
from ocrlab.model.dbnet import Detector
from ocrlab.records import Check


def words(checks: Iterable[Check]) -> dict[str, str]:
    return {check.name: check.judgement for check in checks}


def check_named(checks: Sequence[Check], name: str) -> Check:
    [check] = [check for check in checks if check.name == name]
    assert check.observed and check.need
    assert check.judgement in ("ok", "skip") or check.do
    return check


def detector(config: Config) -> Detector:
    torch.manual_seed(0)
    return Detector(config.encoder, config.decoder, config.width)
