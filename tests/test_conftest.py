"""What a machine lacks becomes a skip with a reason that is counted in the last line; every other failure stays one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = "libGL.so.1: cannot open shared object file: No such file or directory"
SUITE = {
    "test_at_import.py": f"raise ImportError({LIBRARY!r})",
    "test_inside.py": f"""
import pytest
def test_library(): raise ImportError({LIBRARY!r})
def test_compiler(): raise RuntimeError('InvalidCxxCompiler: No working C++ compiler found')
def test_other_library(): raise ImportError('libother.so: cannot open shared object file')
def test_wrong(): assert 1 == 2
@pytest.mark.browser
def test_browser(): assert True
def test_right(): assert True
def test_shared(shared): assert True
""",
}


def outcome(tmp_path: Path, **env: str) -> tuple[str, dict[str, int]]:
    """Run the suite above with this project's conftest; returns the output and the counts of its last line."""
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tests)
    for file, text in SUITE.items():
        (tests / file).write_text(text)
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(tmp_path), str(tests)]
    path = {"PYTHONPATH": str(ROOT), "OCRLAB_SHARED": str(tmp_path / "absent")}
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | path | env, capture_output=True, text=True, timeout=120, check=False
    )
    last = done.stdout.rstrip().splitlines()[-1]
    return done.stdout, {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", last)}


def test_a_machine_without_library_compiler_browser_and_data(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    said, counts = outcome(tmp_path, CXX="no-such-compiler", PATH=str(tmp_path / "bin"))
    assert {key: counts[key] for key in ("passed", "failed", "skipped")} == {"passed": 1, "failed": 2, "skipped": 5}
    for reason in ("libGL.so.1", "no C++ compiler", "not installed: chromium", "no shared data at"):
        assert reason in said


@pytest.mark.skipif(
    not (shutil.which("g++") and Path(sysconfig.get_path("include"), "Python.h").exists()),
    reason="no C++ compiler here",
)
def test_a_compiler_that_is_there_and_fails_is_a_failure(tmp_path: Path) -> None:
    said, counts = outcome(tmp_path, CXX="g++")
    assert counts["failed"] == 3
    assert "no C++ compiler" not in said
