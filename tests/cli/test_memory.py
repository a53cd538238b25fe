"""`ocrlab memory`: its words, wrong use, and what it says of a fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.cli import main, memory_estimate, memory_fit
from ocrlab.data.synthetic import generate
from ocrlab.debug.memory.fit_trials import MemoryTrial
from ocrlab.debug.memory.largest_batch import Fit
from ocrlab.debug.memory.memory_limit import Limit

MIB = 1 << 20
LIMIT = Limit(1000 * MIB, "resident", "--limit", True)


def fitted(batch: int, proven: str, **more: object) -> Fit:
    tries = [
        MemoryTrial(4, True, 800 * MIB, "train", "", 1.0, 3.5),
        MemoryTrial(5, False, 950 * MIB, "train", "ended", 1.0),
    ]
    return Fit(batch, 800 * MIB, LIMIT, 950 * MIB, ["batch_size=4"], 48, proven, tries, **more)  # type: ignore[arg-type]


def test_every_word_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("fit", "estimate"):
        assert main(["memory", word, "--help"]) == 0
        assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit", "-2"], "--limit"),
        (["--margin", "1"], "--margin"),
        (["--minutes", "0"], "--minutes"),
        (["croop=3"], "crop"),
        (["trainer.accelerator=cpu", "--limit", "0"], "--limit"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_started(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", "fit", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("proven", "message"),
    [("batch + 1 fails", "5 does not fit"), ("close", "close"), ("most", "48"), ("time", "time")],
)
def test_the_sentence_says_why_there_is_nothing_larger(proven: str, message: str) -> None:
    result = fitted(4, proven)
    assert message in memory_fit.sentence(result)
    assert "800 MiB of 1,000 MiB" in memory_fit.sentence(result)
    assert memory_fit.record(result)["status"] == "fits"
    assert "batch_size=4" in memory_fit.text(result)


def test_nothing_fits_is_reported_with_what_to_change() -> None:
    good = MemoryTrial(1, True, 700 * MIB, "train", changes={"crop": "256"})
    result = fitted(0, "batch + 1 fails", remedies=[good], left_out={"frozen BatchNorm": "no setting"})
    assert "crop=256" in memory_fit.sentence(result)
    assert "700 MiB" in memory_fit.sentence(result)
    assert memory_fit.record(result)["status"] == "nothing fits"
    assert "frozen BatchNorm" in memory_fit.text(result)
    assert "no change" in memory_fit.sentence(fitted(0, "batch + 1 fails"))


@pytest.mark.parametrize("proven", ["time", "slow", "unverified", "not measured"])
def test_what_was_not_measured_is_not_called_nothing_fits(proven: str) -> None:
    assert memory_fit.record(fitted(0, proven))["status"] == "not measured"
    assert memory_fit.sentence(fitted(0, proven)).startswith("Not measured")
    assert "othing fits" not in memory_fit.text(fitted(0, proven))


def test_an_estimate_is_read_part_by_part() -> None:
    parts = {"parameters": 11 * MIB, "activations": 50 * MIB, "validation": 0}
    estimate = {"parts": parts, "peak": 61 * MIB, "slope": 9.0 * MIB, "module": "head", "phase": "forward"}
    text = memory_estimate.text(estimate, 4)
    assert "activations" in text
    assert "61.0 MiB" in text
    assert "validation" not in text
    assert "head, forward" in text
    assert "9.0 MiB" in text


@pytest.mark.slow
def test_a_real_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    generate.make(tmp_path / "pages", train=3, val=1)
    words = ["crop=64", "width=16", "evaluate.long_side=128", "trainer.accelerator=cpu", "trainer.precision=fp32"]
    words += ["runtime.channels_last=true", "runtime.workers=0", "runtime.threads=1", f"data={tmp_path / 'pages'}"]
    code = "import sys; from ocrlab import cli; cli.COMMANDS.setdefault('memory', 'memory'); sys.exit(cli.main())"
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "memory",
            "fit",
            *words,
            "batch_size=3",
            "--limit",
            "1.2",
            "--minutes",
            "2",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["batch"] > 3, "three pages, and crops of them again"
    assert record["settings"] == [f"batch_size={record['batch']}", "trainer.accumulate_grad_batches=1"]
    assert not (tmp_path / "runs").exists()
    assert not [left for left in (tmp_path / "tmp").iterdir() if left.name.startswith("ocrlab-")]
