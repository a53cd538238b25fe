"""Samples that are never drawn are reported; a sampler that draws with replacement is not."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler

from ocrlab.debug.recorder.training_health.pass_checks import MOST, SamplerCoverageCheck
from tests.debug.recorder.training_health.test_monitor import data, report


def test_weights_of_classes_in_place_of_weights_of_samples(tmp_path: Path) -> None:
    sampler = WeightedRandomSampler(torch.ones(4), 128)
    text = report(tmp_path, loader=DataLoader(data(), 16, sampler=sampler))
    assert "only 4 of 128 samples were ever drawn, in 256 draws" in text


def test_fair_samplers_are_right(tmp_path: Path) -> None:
    for number, sampler in enumerate((WeightedRandomSampler(torch.rand(128), 128), SubsetRandomSampler(range(40)))):
        assert "drawn" not in report(tmp_path / str(number), loader=DataLoader(data(), 16, sampler=sampler))


def test_few_draws_of_many_samples_give_no_finding() -> None:
    check, rng = SamplerCoverageCheck(), random.Random(0)
    for _ in range(50):
        check.note(str([rng.randrange(1_000_000) for _ in range(16)]))
    assert check.sentence(1_000_000) == "" and check.count == 800
    for _ in range(50):
        check.note("['a.png', 'b.png']")  # keys of another kind
    assert check.sentence(1_000_000) == "" and check.count == 800
    assert SamplerCoverageCheck({"1"}, 99).sentence(1000) == "" and "only 1 of 1000" in SamplerCoverageCheck(
        {"1"}, 100
    ).sentence(1000)
    assert SamplerCoverageCheck({str(i) for i in range(MOST)}, 10 * MOST).sentence(100 * MOST) == ""
    assert SamplerCoverageCheck().sentence(0) == ""
