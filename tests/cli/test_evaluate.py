"""`ocrlab evaluate`: which pages, which settings, the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ocrlab.cli import main

FIGURES = {f"{figure}@{at}" for figure in ("hmean", "precision", "recall") for at in (0.5, 0.7, 0.8)}


def test_the_answer_holds_every_figure(calls, capsys):
    assert main(["evaluate", "--checkpoint", "c.ckpt", "data=receipts", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == FIGURES | {"schema", "pages", "seconds", "checkpoint", "data", "split"}
    assert (found["pages"], found["split"], found["data"]) == (3, "val", "receipts")
    assert calls.load.checkpoint == Path("c.ckpt")


def test_people_get_a_table(calls, capsys):
    assert main(["evaluate", "--checkpoint", "c.ckpt", "data=receipts"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["IoU", "hmean", "precision", "recall"]


def test_settings_are_laid_over_those_of_the_checkpoint(calls):
    words = ["data=d", "split=test", "post.threshold=0.4", "evaluate.long_side=960", "trainer.accelerator=cpu"]
    assert main(["evaluate", "--checkpoint", "c.ckpt", *words, "runtime.threads=2"]) == 0
    config = calls.evaluate.detector.config
    assert (config.post.threshold, config.evaluate.long_side, config.crop) == (0.4, 960, 256)
    assert (calls.evaluate.data, calls.evaluate.split, calls.evaluate.exif) == ("d", "test", True)
    assert (calls.load.device, calls.threads) == ("cpu", 2)
    assert main(["evaluate", "--checkpoint", "c.ckpt", "data=d", "exif=false"]) == 0
    assert calls.evaluate.exif is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--checkpoint", "c"], "data=DIR"),
        (["data=d"], "--checkpoint"),
        (["--checkpoint", "c", "data=d", "encoder=resnet18"], "no effect on a finished detector"),
        (["--checkpoint", "c", "data=d", "val_split=test"], "no effect"),
        (["--checkpoint", "c", "data=d", "hardware=cpu_2core"], "no effect"),
        (["--checkpoint", "c", "data=d", "post.treshold=1"], "The nearest is post.threshold"),
        (["--checkpoint", "c", "data=d", "post.threshold=2"], "from 0 to 1"),
        (["--checkpoint", "c", "data=d", "page.jpg"], "key=value"),
        (["--checkpoint", "c", "data="], "not empty"),
        (["--checkpoint", "c", "data=d", "split="], "split"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_loaded(words, told, calls, capsys):
    assert main(["evaluate", *words]) == 2
    assert told in capsys.readouterr().err
    assert calls.load is None
