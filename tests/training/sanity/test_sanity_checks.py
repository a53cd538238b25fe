"""The whole report: every check is ok on what ships, and what is broken is named in it."""

import random
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from ocrlab.config import schema as configs
from ocrlab.errors import ConfigError, DataError
from ocrlab.training.sanity import sanity_checks
from tests.training.sanity.checks import check_named, words


def random_states() -> list[object]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002


def test_what_trains_is_sane_and_the_global_generators_are_left_alone(config) -> None:
    groups = [name for name in sanity_checks.GROUPS if name != "by_heart"]
    before = random_states()
    report = sanity_checks.check(config, only=groups)
    assert random_states() == before
    assert report.contract is not None and "decoder.fusion" in {stage.name for stage in report.contract.stages}
    assert report.ok, str(report)
    assert set(words(report.checks).values()) <= {"ok", "skip"}
    assert len(report.checks) == 11
    assert all(check.name in str(report) for check in report.checks)


def test_data_without_any_text_fails_for_that_and_for_nothing_that_follows_from_it(config, tmp_path):
    for folder in ("images", "gts"):
        (tmp_path / "train" / folder).mkdir(parents=True)
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"train/images/page_{number}.png"), np.full((180, 150, 3), 240 + number, np.uint8))
        (tmp_path / f"train/gts/gt_page_{number}.txt").write_text("")
    blank = configs.apply(config, {"data": str(tmp_path)})
    report = sanity_checks.check(blank, only=["data", "contract", "by_heart"])
    assert [check.name for check in report.checks if check.judgement == "fail"] == ["text to learn"], str(report)
    assert words(report.checks)["gradients"] == words(report.checks)["one page overfitted"] == "skip"


def test_the_other_decoder_keeps_the_contract(config) -> None:
    report = sanity_checks.check(configs.apply(config, {"decoder": "unet"}), only=["contract"])
    assert words(report.checks) == {"contract of a step": "ok", "gradients": "ok"}
    assert report.contract is not None and "decoder.fusion" in {stage.name for stage in report.contract.stages}


def test_groups_and_pages_that_do_not_exist(config, tmp_path) -> None:
    with pytest.raises(ConfigError, match="by_heart"):
        sanity_checks.check(config, only=["nothing"])
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError):
        sanity_checks.check(configs.apply(config, {"data": str(tmp_path / "data")}))


def test_a_check_that_raises_has_failed_and_the_others_go_on(config) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("by design")

    report = sanity_checks.check(config, loss=broken, only=["contract", "loss"])
    assert check_named(report.checks, "loss").observed.startswith(
        "ZeroDivisionError: by design (test_sanity_checks.py:"
    )
    assert report.contract is not None
    assert "ZeroDivisionError" in check_named(report.checks, "contract of a step").observed
    assert not report.ok
