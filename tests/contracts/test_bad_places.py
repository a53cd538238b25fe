"""Where little can be written: folders without the right to write, and a limit for the size of a file."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

OCRLAB = [sys.executable, "-m", "ocrlab"]
BOOM = "print('x' * 100_000); raise ValueError('boom')"
# Root may write everywhere; without these rights it is an ordinary user, and everybody's interpreter can be read.
ORDINARY = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner"] if os.geteuid() == 0 else []


def run(*words: str, cwd: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'{before}exec "$@"', "bash", *words] if before else list(words)
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    if ORDINARY and shutil.which("setpriv") is None:
        pytest.skip("as root only setpriv makes an ordinary user")
    assert run(*OCRLAB, "watch", "--run-dir", "run", "--", sys.executable, "-c", BOOM, cwd=tmp_path).returncode == 1
    folders = [tmp_path / "run", *(path for path in (tmp_path / "run").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    yield tmp_path
    for folder in folders:
        folder.chmod(0o700)


def test_a_read_only_run_folder_is_read_and_what_cannot_be_written_is_named(read_only: Path) -> None:
    for words in (["diagnose", "run"], ["runs", "run"]):
        done = run(*ORDINARY, *OCRLAB, *words, cwd=read_only)
        assert done.returncode == 0 and "ValueError" in done.stdout, done.stderr
    done = run(*ORDINARY, *OCRLAB, "report", "bug", "run", cwd=read_only)
    assert done.returncode == 1 and ".tmp" not in done.stderr
    assert "cannot be written beside run. Given: Permission denied. Choose another place: --out FILE." in done.stderr
    done = run(*ORDINARY, *OCRLAB, "watch", "--run-dir", "run", "--", sys.executable, "-c", BOOM, cwd=read_only)
    assert done.returncode == 1 and "Choose another folder with --run-dir" in done.stderr


def test_a_limit_for_the_size_of_a_file_shortens_the_log_and_loses_no_verdict(tmp_path: Path) -> None:
    words = [*OCRLAB, "watch", "--run-dir", "run", "--", sys.executable, "-c", BOOM]
    done = run(*words, cwd=tmp_path, before="ulimit -f 20; ")
    assert done.returncode == 1 and "cannot be written" not in done.stderr
    verdict = json.loads((tmp_path / "run/incident/verdict.json").read_text())
    assert "boom" in json.dumps(verdict)
    log = (tmp_path / "run/incident/log_tail.txt").read_text()
    assert len(log) <= 20 * 1024 and log.rstrip().endswith("ValueError: boom")


def test_a_file_above_its_limit_is_not_called_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("OSError: [Errno 27] File too large: 'a.pt'\n")
    text = run(*OCRLAB, "diagnose", "a.log", cwd=tmp_path).stdout
    assert (
        "largest size that this process may write" in text and "ulimit -f" in text and "disk or the quota" not in text
    )
