"""`make gpu` on a CPU: every stage runs to its end with stand-ins, so that no time on a card is spent on a slip."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run.py"


@pytest.mark.timeout(900)
def test_every_stage_finishes_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--dry-run", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, cwd=tmp_path, check=False)
    rows = json.loads((tmp_path / "out" / "gpu.json").read_text(encoding="utf-8"))
    missed = [row for row in rows if row["met"] is False]
    assert not missed and done.returncode == 0, f"{missed}\n{done.stderr[-3000:]}"
    stages = [row["what"] for row in rows if row["what"].startswith("stage ")]
    assert len(stages) == 10 and (tmp_path / "out" / "logs.zip").exists()
