"""The four commands on real pages with the real learning half: made, trained for two steps, evaluated, predicted."""

import json
import stat
from pathlib import Path

import pytest

from ocrlab.cli import main

TINY = [
    "batch_size=1", "crop=64", "width=16", "encoder=mobilenet_v3_large", "trainer.max_steps=2", "trainer.val_every=2",
    "trainer.accelerator=cpu", "trainer.precision=fp32", "runtime.channels_last=false", "runtime.threads=1",
    "runtime.workers=0", "evaluate.long_side=256", "optim.warmup_steps=1", "trainer.log_every=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A working folder with a few synthetic pages and one finished run."""
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["samples", "make", "receipts", "--train", "2", "--val", "1"]) == 0
        assert main(["train", "data=receipts", *TINY]) == 0
    return folder


@pytest.fixture
def run(place, monkeypatch) -> Path:
    """The run folder, with `place` as the working folder."""
    monkeypatch.chdir(place)
    (folder,) = Path("runs").glob("*-*")
    return folder


def test_train_leaves_a_run_that_can_be_run_again(run):
    assert json.loads((run / ".SUCCESS").read_text())["status"] == "success"
    assert stat.S_IMODE((run / "config.yaml").stat().st_mode) == 0o600
    assert list((run / "checkpoints").glob("best-*.ckpt"))


def test_evaluate_answers_with_every_figure(run, capsys):
    (checkpoint,) = (run / "checkpoints").glob("best-*.ckpt")
    assert main(["evaluate", "--checkpoint", str(checkpoint), "data=receipts", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["pages"] == 1
    assert all(0 <= record[name] <= 1 for name in ("hmean@0.5", "hmean@0.7", "hmean@0.8"))
    assert record["seconds"] > 0


def test_predict_writes_all_formats_and_never_over_a_file(run, capsys):
    (image,) = Path("receipts/val/images").iterdir()
    for _ in range(2):
        assert main(["predict", str(image), "--out", "found", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["predictions"][0]["image"] == image.name
    assert len(list(Path("found").iterdir())) == 6
