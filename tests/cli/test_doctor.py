"""`ocrlab doctor` as it is called: its exit status, its JSON, its table, and what it leaves behind."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ocrlab.cli import main
from ocrlab.hardware.doctor import doctor_job
from ocrlab.hardware.doctor.check_spec import Options, fail, interpreter, ok, skip, warn
from ocrlab.records import Check

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """Replace the ladder by one whose findings a test puts into this list."""
    checks: list[Check] = []

    def run(options: Options, report: Any = None, planned: Any = None) -> list[Check]:
        for number in range(1, 11) if report else ():
            report({number: [each for each in checks if each.step == number]}, [f"ask {number}"])
        return checks

    monkeypatch.setattr(doctor_job, "run", run)
    return checks


def at(step: int, check: Check) -> Check:
    return Check(**{**vars(check), "step": step})


@pytest.mark.parametrize(
    ("check", "status"),
    [(ok("a", "x"), 0), (warn("a", "x", "y", "z"), 0), (skip("a", "x"), 0), (fail("a", "x", "y", "z"), 1)],
)
def test_exit_status(checks: list[Check], check: Check, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    checks += [at(1, ok("fine", "as it should be")), at(4, check)]
    assert main(["doctor"]) == status
    text = capsys.readouterr().out
    assert " 4  Driver and GPU" in text and "TORCH_USE_CUDA_DSA" in text
    assert "\x1b" not in text  # no colours where nobody looks
    assert main(["doctor", "--json"]) == status
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == 1
    assert record["status"] == ("fail" if status else "warn" if check.judgement == "warn" else "ok")
    assert [step["step"] for step in record["steps"]] == list(range(1, 11))
    assert record["checks"][1]["judgement"] == check.judgement
    assert len(record["notes"]) == 4


@pytest.mark.parametrize("words", [["--python", "nowhere/python"], ["--python", "/"], ["--unknown"], ["more"]])
def test_wrong_use(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert capsys.readouterr().err.startswith("ocrlab: ")


def test_what_python_needs_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    assert main(["doctor", "--python", str(tmp_path)]) == 2
    assert str(link) in capsys.readouterr().err
    assert interpreter(str(link)) == str(link), "a link of a virtual environment, followed, leaves it"


def run(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ocrlab", "doctor", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False)


def test_another_python_that_has_neither_torch_nor_ocrlab(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    done = run("--python", str(bare), "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    record = json.loads(done.stdout)
    assert {check["step"] for check in record["checks"]} == set(range(1, 11))
    failed = [check["name"] for check in record["checks"] if check["judgement"] == "fail"]
    assert "torch installed" in failed
    assert record["python"].endswith("/python")
    assert sorted(place.name for place in tmp_path.iterdir()) == ["python"]  # nothing is left behind


def test_the_table_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal there are colours and a line that says what runs."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "ocrlab", "doctor", "--python", str(bare)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        data = b""
        while True:
            try:
                block = os.read(leader, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            data += block
    os.close(leader)
    assert process.returncode == 1
    text = data.decode()
    assert "\x1b[1;31m✗ fail " in text
    assert "\r\x1b[K" in text
    plain = re.sub(r"\x1b\[[\d;]*[mK]", "", text)
    shown = [line.rpartition("\r")[2] for line in plain.replace("\r\n", "\n").split("\n")]
    assert max(len(line) for line in shown if str(tmp_path) not in line) <= 80  # a path stays whole, to be copied
    assert [line[:2] for line in shown if re.match(r"[ \d]\d  [A-Z]", line)] == [f"{n:>2}" for n in range(1, 11)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_ladder_here(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run("--json", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert done.returncode == int(record["status"] == "fail")
    names = {check["name"]: check["judgement"] for check in record["checks"]}
    for name in ("import torch", "smoke test: CPU", "DataLoader by fork", "DataLoader by spawn"):
        assert names[name] == "ok"
