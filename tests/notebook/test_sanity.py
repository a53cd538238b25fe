"""The sections of the sanity notebook over real checks, over a report with a failure, and over one that has nothing."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ocrlab.config.schema import Config, load
from ocrlab.notebook import sanity
from ocrlab.records import Check
from ocrlab.training.sanity import sanity_checks as checks
from ocrlab.training.sanity.model_checks import LearnedPage


@pytest.fixture(scope="module")
def config(root: Path) -> Config:
    small = {"crop": 64, "batch_size": 2, "width": 16, "trainer.precision": "fp32"}
    return load(overrides={"data": str(root / "data_samples"), **small})


@pytest.fixture(scope="module")
def report(config: Config) -> sanity.SanityReport:
    """Return what the contract found, with a page that was half learned."""
    report = checks.check(config, only=["contract"])
    box = np.array([[10, 10], [60, 10], [60, 30], [10, 30]], np.float32)
    curve = [{"step": float(i), "loss": 5.0 / i} for i in range(1, 11)]
    curve[-1]["hmean@0.5"] = 2 / 3
    blank = np.full((256, 256, 3), 200, np.uint8)
    report.learned = LearnedPage("page_1", blank, [box, box + 90], np.zeros(2, bool), [box + 1], curve)
    return sanity.summarize(report, config)


def with_checks(report: sanity.SanityReport, *judgements: str) -> sanity.SanityReport:
    every = [Check(f"check {i}", word, "seen <1>", "limit", "do") for i, word in enumerate(judgements)]
    return sanity.SanityReport(every, ["[fail] rule at place"], *list(vars(report).values())[2:])


def test_every_section_is_rendered(report: sanity.SanityReport) -> None:
    assert sanity.table(report).text.startswith("Data, model and loss agree: 2 of 2 checks are ok")
    assert sanity.targets(report).html.count("<svg") == 5
    view = sanity.learned(report)
    assert view.text.startswith("hmean@0.5 0.667 on a part of one page after 10 steps")
    assert "1 of 2 boxes found" in view.html and "missed" in view.html
    for section in (sanity.table(report), sanity.targets(report), view):
        assert not re.search(r'(src|href)="(?!data:|#)', section.html)
        assert len(section.html) < 150_000


def test_failures_and_warnings_come_first(report: sanity.SanityReport) -> None:
    bad = sanity.table(with_checks(report, "ok", "fail", "warn", "skip"))
    assert bad.text.startswith("Data, model and loss do not agree: 1 of 3 checks fail")
    assert "seen &lt;1&gt;" in bad.html and "1 skipped." in bad.html and "[fail] rule at place" in bad.html
    assert sanity.table(with_checks(report, "ok", "warn")).text.startswith("Nothing fails; 1 of 2")


@pytest.mark.parametrize(
    ("judgements", "word"), [("ok ok skip", "PASS"), ("ok warn", "WARN"), ("ok fail warn", "FAIL"), ("skip", "FAIL")]
)
def test_the_outcome(report: sanity.SanityReport, judgements: str, word: str) -> None:
    from ocrlab.reports.notebooks.outcome import Judgement

    judged: list[Judgement] = []
    lab: Any = SimpleNamespace(
        outcome=lambda name, value, limit, warn: judged.append(Judgement(name, value, limit, warn))
    )
    sanity.judge(lab, with_checks(report, *judgements.split()))
    assert [judgement.word for judgement in judged] == [word]
