"""The tracker's process: one line of an error, pictures removed, and an end also where nobody ends it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ocrlab.hardware.processes import process_tree
from ocrlab.training.tracking import process


def test_an_error_is_a_single_line_without_advice_that_is_not_ours() -> None:
    error = RuntimeError("Timed out\n while retrying. Consider increasing the init_timeout" + "x" * 300)
    assert process.short(error) == "RuntimeError: Timed out while retrying."
    assert len(process.short(RuntimeError("x" * 500))) == 160


def test_pictures_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    for name in ("page.jpg", "best.ckpt"):
        (tmp_path / name).write_bytes(b"x")
    process.remove({"do": "pictures", "files": [{"file": str(tmp_path / "page.jpg")}, {"file": "gone"}]})
    process.remove({"do": "artifact", "file": str(tmp_path / "best.ckpt")})
    assert [file.name for file in tmp_path.iterdir()] == ["best.ckpt"]


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
