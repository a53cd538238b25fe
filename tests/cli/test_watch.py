"""`ocrlab watch`: words to options, the answer, `--json`, an old Python, and how little it costs to start."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.cli import main
from ocrlab.cli import watch as command
from ocrlab.debug.watch.lifecycle import Ended, Options
from ocrlab.records import Cause, Verdict

HEAVY = (
    "torch", "numpy", "pydantic", "yaml", "rich", "cv2", "ocrlab.config.schema", "ocrlab.debug.diagnosis",
    "ocrlab.hardware.host",
)  # fmt: skip


@pytest.fixture
def watch_call(monkeypatch) -> dict:
    """Replace `watch` by something that notes what it is asked, and answers with a killed program."""
    noted: dict = {}

    def watch(words, options):
        noted.update(words=words, options=options)
        verdict = Verdict(status="killed", signal="SIGKILL", causes=[Cause("host.oom_kill", 0.9)])
        return Ended("killed", None, "SIGKILL", verdict, Path("runs/x"), 137)

    monkeypatch.setattr(command, "watch", watch)
    return noted


def test_the_words_before_the_dashes_are_ours(watch_call, capsys):
    words = ["--run-dir", "out", "--silence", "60", "--timeout", "3600", "--debug-cuda", "--on-hang", "kill"]
    assert main(["watch", *words, "--", "prog", "--json", "--timeout", "7", "--", "x"]) == 137
    assert watch_call["words"] == ["prog", "--json", "--timeout", "7", "--", "x"]
    assert watch_call["options"] == Options(Path("out"), 60.0, 3600.0, True, "kill")
    assert capsys.readouterr().out == "", "the program's --json is not ours"


def test_json_is_a_single_object(watch_call, capsys):
    assert main(["watch", "--json", "--", "prog"]) == 137
    record = json.loads(capsys.readouterr().out)
    expected = ("killed", "SIGKILL", 137, "runs/x")
    assert (record["status"], record["signal"], record["exit_status"], record["run"]) == expected
    assert record["verdict"]["causes"][0]["id"] == "host.oom_kill"


@pytest.mark.parametrize("words", [[], ["--"], ["python", "x.py"], ["--on-hang", "dance", "--", "x"]])
def test_wrong_use(words, watch_call, capsys):
    assert main(["watch", *words]) == 2
    assert watch_call == {}
    assert capsys.readouterr().err.startswith("ocrlab: watch")


def test_nothing_heavy_is_imported_before_the_program_runs(root):
    code = f"import sys, ocrlab.cli.watch; sys.exit(str([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.stderr == "[]\n"


def test_it_runs_on_python_310(tmp_path):
    places = [shutil.which("python3.10"), *Path.home().glob(".pyenv/versions/3.10.*/bin/python3")]
    test = ["-c", "import sys; sys.exit(sys.version_info[:2] != (3, 10))"]
    old = [
        str(place) for place in places if place and subprocess.run([place, *test], capture_output=True).returncode == 0
    ]
    if not old:
        pytest.skip("no Python 3.10")
    done = start(old[0], ["--run-dir", "out", "--", "sh", "-c", "echo here; kill -11 $$"], tmp_path)
    assert (done.returncode, done.stdout) == (139, "here\n")
    assert json.loads((tmp_path / "out" / "incident" / "verdict.json").read_text())["signal"] == "SIGSEGV"


def start(python: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    line = [python, "-m", "ocrlab", "watch", *words]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", [["python", "x.py"], ["--silence", "5", "python", "-u", "x.py", "--lr", "1"]])
def test_a_command_without_dashes_is_an_error(words, watch_call, capsys):
    assert main(["watch", *words]) == 2
    stderr = capsys.readouterr().err
    assert "put -- before the command: python" in stderr and "...." not in stderr
