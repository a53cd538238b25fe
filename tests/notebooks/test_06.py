"""The crash notebook as a user runs it: `ocrlab run`, a planted fault, a verdict, and the kernel lives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.reports.notebooks import results


def test_a_planted_fault_is_caught_and_named(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(notebook.parents[1]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    command = [sys.executable, "-m", "ocrlab", "run", str(notebook), "-p", "runs", "runs", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["outcome"] == "PASS"
    result = results.load(tmp_path / answer["notebook"])
    assert (result.name, result.outcome, result.ending) == ("06_crash", "PASS", None)
    [run] = [path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]
    verdict = json.loads((run / "incident" / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["causes"][0]["id"] == "native.segv"
    html = (tmp_path / answer["html"]).read_text(encoding="utf-8")
    assert "The cause that was planted is the cause that was named" in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert len(html) < 150_000
