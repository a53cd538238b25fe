"""program.json: how a training was started, without its secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.debug.flight_record import program_info
from ocrlab.errors import RunError

ROOT = Path(__file__).parents[3]


def test_the_command_and_the_environment_are_recorded_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_RATE", "0.1")
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    monkeypatch.setenv("PROXY", "http://me:word@proxy/x")
    monkeypatch.setenv("OCRLAB_WATCH", "/tmp/x")
    program_info.write(tmp_path, "loop")
    program = program_info.read(tmp_path)
    assert program["argv"] == sys.orig_argv
    assert (program["kind"], program["cwd"], program["pid"]) == ("loop", os.getcwd(), os.getpid())
    assert program["environment"]["MY_RATE"] == "0.1"
    assert not {"WANDB_API_KEY", "PROXY", "OCRLAB_WATCH"} & program["environment"].keys()
    assert (tmp_path / "program.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_without_a_record_is_refused_in_words(tmp_path):
    with pytest.raises(RunError, match="no record of how it was started"):
        program_info.read(tmp_path)


def test_the_start_folder_survives_chdir(tmp_path):
    """As Hydra does."""
    program = "import os\n{}from ocrlab.debug.flight_record import program_info\n{}program_info.write('..', 'loop')\n"
    (tmp_path / "wd").mkdir()
    away = "os.chdir('wd')\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PWD": str(tmp_path)}
    for text in (program.format("", away), program.format(away, "")):
        (tmp_path / "train.py").write_text(text)
        subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environment, check=True, timeout=60)
        assert program_info.read(tmp_path)["cwd"] == str(tmp_path)
        (tmp_path / "program.json").unlink()
    subprocess.run(
        [sys.executable, "-m", "train"], cwd=tmp_path, env=environment | {"PWD": "/"}, check=True, timeout=60
    )
    assert program_info.read(tmp_path)["cwd"] == str(tmp_path / "wd"), "nobody knows better"
