"""The sections of the sanity notebook over real checks, over a report with a failure, and over one that has nothing."""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ocrlab.config.schema import Config, load
from ocrlab.notebook import sanity
from ocrlab.records import Check
from ocrlab.training.sanity import sanity_checks as checks
from ocrlab.training.sanity.model_checks import Learned


@pytest.fixture
def config(root: Path) -> Config:
    small = {"crop": 64, "batch_size": 2, "width": 16, "trainer.precision": "fp32"}
    return load(overrides={"data": str(root / "data_samples"), **small})


@pytest.fixture
def seen(config: Config) -> sanity.Found:
    """Return what the contract found, with a page that was half learned."""
    report = checks.check(config, only=["contract"])
    box = np.array([[10, 10], [60, 10], [60, 30], [10, 30]], np.float32)
    curve = [{"step": float(i), "loss": 5.0 / i} for i in range(1, 11)]
    curve[-1]["hmean@0.5"] = 2 / 3
    blank = np.full((256, 256, 3), 200, np.uint8)
    report.learned = Learned("page_1", blank, [box, box + 90], np.zeros(2, bool), [box + 1], curve)
    return sanity.found(report, config)


def with_checks(seen: sanity.Found, *judgements: str) -> sanity.Found:
    every = [Check(f"check {i}", word, "seen <1>", "limit", "do") for i, word in enumerate(judgements)]
    return sanity.Found(every, ["[fail] rule at place"], *list(vars(seen).values())[2:])


def test_every_section_is_drawn(seen: sanity.Found) -> None:
    assert sanity.table(seen).text.startswith("Data, model and loss agree: 2 of 2 checks are ok")
    assert sanity.targets(seen).html.count("<svg") == 5
    view = sanity.learned(seen)
    assert view.text == "hmean@0.5 0.667 on a part of one page after 10 steps"
    assert "1 of 2 boxes found" in view.html and "missed" in view.html
    assert re.match(r"All 95 parameters have a gradient", sanity.gradients(seen).text)
    for one in (sanity.table(seen), sanity.targets(seen), view, sanity.gradients(seen)):
        assert not re.search(r'(src|href)="(?!data:|#)', one.html)
        assert len(one.html) < 150_000


def test_what_the_child_sends_back_needs_no_torch(seen: sanity.Found) -> None:
    code = (
        "import pickle, sys; sys.modules['torch'] = None; found = pickle.load(sys.stdin.buffer)\n"
        "from ocrlab.notebook import sanity; print(sanity.table(found).text, sanity.learned(found).text)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(seen), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert b"checks are ok" in done.stdout


def test_failures_and_warnings_are_told_first(seen: sanity.Found) -> None:
    bad = sanity.table(with_checks(seen, "ok", "fail", "warn", "skip"))
    assert bad.text.startswith("Data, model and loss do not agree: 1 of 3 checks fail")
    assert "seen &lt;1&gt;" in bad.html and "1 skipped." in bad.html and "[fail] rule at place" in bad.html
    assert sanity.table(with_checks(seen, "ok", "warn")).text.startswith("Nothing fails; 1 of 2")


@pytest.mark.parametrize(
    ("judgements", "word"), [("ok ok skip", "PASS"), ("ok warn", "WARN"), ("ok fail warn", "FAIL"), ("skip", "FAIL")]
)
def test_the_outcome(seen: sanity.Found, judgements: str, word: str) -> None:
    from ocrlab.reports.notebooks.outcome import Judgement

    told: list[Judgement] = []
    lab: Any = SimpleNamespace(
        outcome=lambda name, value, limit, warn: told.append(Judgement(name, value, limit, warn))
    )
    sanity.judge(lab, with_checks(seen, *judgements.split()))
    assert [one.word for one in told] == [word]


def test_gradients_that_are_missing_are_marked(seen: sanity.Found) -> None:
    norms = {"encoder.a": 1.0, "encoder.b": 0.0, "head.c": math.nan}
    spoilt = sanity.Found([], [], norms, *list(vars(seen).values())[3:])
    assert sanity.gradients(spoilt).text.startswith("2 of 3 parameters have none")


def test_a_report_without_anything(config: Config) -> None:
    empty = sanity.found(checks.Report(), config)
    assert sanity.targets(empty).text == "No batch could be loaded"
    assert sanity.learned(empty).text == "No page was learned by heart"
    bare = checks.Report(learned=Learned("page_1", np.zeros((8, 8, 3), np.uint8)))
    assert "no legible box" in sanity.learned(sanity.found(bare, config)).text
    assert sanity.gradients(empty).text == "No gradient was measured"
    assert "0 of 0" in sanity.table(empty).text
