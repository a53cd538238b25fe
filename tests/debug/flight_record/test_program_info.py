"""What lies beside a flight record: how the training was started, without its secrets, and a notebook's cells."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ocrlab.debug.flight_record import notebook_cells, program_info
from ocrlab.debug.replay import recorded_step
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


def shell(monkeypatch: pytest.MonkeyPatch, codes: list[str], raws: list[str] | None = None) -> Any:
    history = SimpleNamespace(input_hist_parsed=["", *codes], input_hist_raw=["", *(raws or codes)])
    shell = SimpleNamespace(history_manager=history, starting_dir="there")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(notebook_cells, "BEGAN", set())
    return shell


def test_cells_are_recorded_with_their_numbers_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_shell = shell(monkeypatch, ["a = 1", "b = 2"], ["a = 1", "\n\nb = 2"])
    notebook_cells.save_cells(tmp_path, 0)
    fake_shell.history_manager.input_hist_parsed.append("c = 3")
    fake_shell.history_manager.input_hist_raw.append("c = 3")
    notebook_cells.save_cells(tmp_path, 0)
    content = json.loads((tmp_path / "cells-0.json").read_text())
    expected = [{"number": 1, "code": "a = 1"}, {"number": 2, "code": "\n\nb = 2"}, {"number": 3, "code": "c = 3"}]
    assert content["cells"] == expected
    assert (content["began"], content["cwd"]) == ([2, 3], "there")
    assert (tmp_path / "cells-0.json").stat().st_mode & 0o777 == 0o600


def test_a_plain_program_keeps_nothing_and_no_failure_costs_anything(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    notebook_cells.save_cells(tmp_path, 0)
    assert "IPython" not in sys.modules
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    notebook_cells.save_cells(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_too_large_a_notebook_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, ["x" * (notebook_cells.LIMIT + 1)])
    notebook_cells.save_cells(tmp_path, 0)
    content = json.loads((tmp_path / "cells-0.json").read_text())
    assert content["cells"] == []
    program = {"interactive": True, "argv": ["python"], "executable": sys.executable, "pid": content["pid"]}
    flight: Any = SimpleNamespace(rank=0)
    run: Any = recorded_step.RecordedStep(tmp_path, flight, program, 0, None, None, "died")
    with pytest.raises(RunError, match=r"has executed 2\.0 MB of cells"):
        recorded_step.command(run, tmp_path / "job.json")
    run.program = {**program, "pid": -1}  # of another start: a Python prompt
    with pytest.raises(RunError, match="a notebook or a Python prompt"):
        recorded_step.command(run, tmp_path / "job.json")
    shell(monkeypatch, ["x = 1"])
    notebook_cells.save_cells(tmp_path, 0)
    run.program = program
    words = ["-m", "ocrlab.debug.replay.child.run_cells", str(tmp_path / "cells-0.json")]
    assert recorded_step.command(run, tmp_path / "job.json")[-4:] == [sys.executable, *words]


def test_lines_are_named_as_the_cell(tmp_path: Path) -> None:
    fault = {"line": f"{tmp_path}/cell-5.py:3 forward", "step": 1, "given": [f"{tmp_path}/cell-2.py:1 f"]}
    expected = {"line": "cell-5.py:3 forward", "step": 1, "given": ["cell-2.py:1 f"]}
    assert notebook_cells.shorten_paths(fault, tmp_path) == expected
    assert notebook_cells.shorten_paths(None, tmp_path) is None
