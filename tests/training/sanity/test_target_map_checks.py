"""Ranges of the target maps and how they lie to each other; each broken once."""

from dataclasses import replace
from typing import Any

import pytest

from ocrlab.data.dataset import Batch, Crops
from ocrlab.training.sanity import data_checks, sanity_checks
from tests.training.sanity.checks import check_named


def test_ranges_and_relations_of_the_maps(config, batch: Batch) -> None:
    assert list(data_checks.relations(batch)) == []
    assert list(data_checks.values(batch, config)) == []
    shrink, mask, border, band = batch.maps
    wrong = {
        "targets.mask": (shrink, 1 - mask, border, band),
        "targets.border_mask": (shrink, mask, border, 1 - band),
        "targets.border": (shrink, mask, 1 - border, band),
        "targets.shape": (shrink[..., :64], mask, border, band),
    }
    for rule, case_maps in wrong.items():
        findings = list(data_checks.relations(replace(batch, maps=case_maps)))
        assert rule in {finding.rule for finding in findings}
        assert any(
            batch.pages[0] in f.where or batch.pages[1] in f.where or rule[8:] in ("border", "shape") for f in findings
        )


@pytest.mark.parametrize(("which", "value", "message"), [
    (2, float("nan"), "maps.2"),
    *(
        pytest.param(which, value, f"maps.{which}", marks=pytest.mark.slow)
        for which, value in enumerate((2.0, 0.5, 0.9, -1.0))
    ),
])  # fmt: skip
def test_a_target_out_of_range_is_named_by_page_and_pixel(config, which, value, message):
    class Spoilt(Crops):
        def __getitem__(self, index: tuple[int, int]) -> Any:
            crop, maps, name, problems = super().__getitem__(index)
            maps.maps[which][17, 40] = value
            return crop, maps, name, problems

    report = sanity_checks.check(config, data=lambda s, c: Spoilt(s, c), only=["contract"])
    assert check_named(report.checks, "contract of a step").judgement == "fail"
    assert report.contract is not None and report.batch is not None
    finding = next(f for f in report.contract.findings if message in f.where)
    assert f"sample {report.batch.pages[0]!r}" in finding.where and "x=40 y=17" in finding.where
