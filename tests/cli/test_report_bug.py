"""`ocrlab report bug` from a crash to two files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ocrlab import run_folder
from ocrlab.cli import main
from ocrlab.debug.watch.supervisor import Options, watch
from ocrlab.run_folder import provenance


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("def read():\n    return {}['boxes']\n\n\nread()\n")
    words = [sys.executable, "-m", "ocrlab", "watch", "--", sys.executable, str(tmp_path / "mine.py")]
    watch(words[5:], Options(tmp_path / "run"), output=lambda _stream, _data: None)
    process = tmp_path / "run" / "flight" / "process.json"
    process.write_text(json.dumps({**json.loads(process.read_text()), "command": words, "folder": str(tmp_path)}))
    provenance.sign(process)
    return tmp_path / "run"


def test_it_is_written_into_the_incident_and_verified(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "bug", str(run), "--verify", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == 1 and record["status"] == "reproduced" and record["verified"]["same"] == 1
    text = Path(record["markdown"]).read_text()
    assert Path(record["markdown"]).parent == run / "incident" and Path(record["html"]).is_file()
    assert ">     2      return {}['boxes']" in text and "ocrlab watch -- " in text
    assert main(["report", "bug", str(run / "incident")]) == 0, "its incident is as good"
    assert "KeyError" in capsys.readouterr().out


def test_a_command_of_another_machine_is_not_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = run / "flight" / "process.json"
    marker = run / "ran"
    words = ["touch", str(marker)]
    process.write_text(json.dumps({**json.loads(process.read_text()), "host": "elsewhere", "command": words}))
    assert main(["report", "bug", str(run), "--verify", "--json"]) == 0
    assert "not recorded by you" in json.loads(capsys.readouterr().out)["verified"]["why"] and not marker.exists()


def test_out_and_what_is_there_already(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "bug.md"
    assert main(["report", "bug", str(run), "--out", str(out)]) == 0
    assert out.is_file() and out.with_suffix(".html").is_file()
    assert main(["report", "bug", str(run), "--out", str(out)]) == 2
    assert "Nothing is overwritten" in capsys.readouterr().err
    assert main(["report", "bug", str(run), "--verify", "-1"]) == 2
    assert main(["report", "bug", str(tmp_path / "gone")]) == 2


def test_a_success_has_no_report_unless_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder.create(tmp_path / "runs", "x")
    folder.succeed({})
    assert main(["report", "bug", str(folder.path)]) == 1
    assert "did not fail" in capsys.readouterr().out and not folder.incident.exists()
    assert main(["report", "bug", str(folder.path), "--out", str(tmp_path / "b")]) == 0
