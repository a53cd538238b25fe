"""The tracker's process: one line of an error, pictures removed, and an end also where nobody ends it."""

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ocrlab import run_folder
from ocrlab.config.schema import Tracking
from ocrlab.hardware.processes import process_tree
from ocrlab.training import loop
from ocrlab.training.tracking import client
from tests.training.test_loop import pages, tiny  # noqa: F401  # a fixture


def test_past_its_deadline_it_ends_itself_and_what_it_started() -> None:
    code = """
import subprocess, sys, time
from ocrlab.training.tracking import process as tracking_process
tracking_process.SPARE = 0.2
with tracking_process.deadline(0.1):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(600)
"""
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, time.monotonic() - before < 30) == (1, True)
    child = int(done.stdout)
    while (
        left := process_tree.read_process(child)
    ) is not None and left.state != "Z":  # a kill takes effect when the kernel gets to it
        assert time.monotonic() - before < 30
        time.sleep(0.01)


def test_without_its_training_it_ends_itself_whatever_it_waits_for() -> None:
    code = """
import os, threading, time
from ocrlab.training.tracking import process as tracking_process
tracking_process.LOOK = tracking_process.SPARE = 0.05
threading.Thread(target=tracking_process.outlive, args=(os.getppid(), 0.0), daemon=True).start()
time.sleep(0.5)
print("training lives", flush=True)
threading.Thread(target=tracking_process.outlive, args=(-1, 0.0), daemon=True).start()
time.sleep(600)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "training lives\n")


accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(folder: Path):  # type: ignore[no-untyped-def]
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    return events.Reload()


def test_a_training_leaves_scalars_and_settings(pages: Path, runs: Path, capfd) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    result = loop.fit(tiny(pages, runs, "tracking=tensorboard", "tracking.deadline=120"))
    assert "tensorboard" not in capfd.readouterr().err
    events = read(result.folder)
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 3, 4]
    assert all(math.isfinite(event.value) for event in losses)
    assert [event.step for event in events.Scalars("val/hmean")][:1] == [3]
    hparams = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    for words in (b"batch_size", b"optim.lr", b"<path>/"):
        assert words in hparams
    assert str(runs).encode() not in hparams
    assert run_folder.status(result.folder).status == "success"


@pytest.mark.slow
def test_a_resumed_run_counts_each_step_once(tmp_path: Path) -> None:
    settings = Tracking(mode="tensorboard", deadline=120)
    for steps, value in (((1, 2, 3), 1.0), ((3, 4), 2.0)):
        tracker = client.start(settings, "first", tmp_path, {"a": {"b": 1}, "c": None}, steps[0] - 1)
        for step in steps:
            tracker.log({"loss": value}, step)
        tracker.finish("failed" if value == 1 else "completed")
        assert tracker.warning is None
    events = read(tmp_path).Scalars("loss")
    assert [(event.step, event.value) for event in events] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


def test_a_package_that_is_not_there_is_a_single_sentence(tmp_path: Path, monkeypatch, capfd) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path / "path" / "tensorboard"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise ModuleNotFoundError('No module', name='tensorboard')\n")
    monkeypatch.setenv("PYTHONPATH", str(place.parent))
    (tmp_path / "run").mkdir()
    tracker = client.start(Tracking(mode="tensorboard", deadline=60), "first", tmp_path / "run", {})
    tracker.log({"loss": 1.0}, 1)
    tracker.finish("completed")
    stderr = capfd.readouterr().err
    assert stderr == (
        "ocrlab: tensorboard: tracking is off: tensorboard is not installed; "
        "pip install 'ocrlab[tensorboard]', or tracking=disabled\n"
    )
