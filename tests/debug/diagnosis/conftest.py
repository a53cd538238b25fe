"""A program that hangs, and the findings from its stacks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ocrlab.debug.diagnosis.hangs import hang_cause
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding
from ocrlab.hardware.processes import process_tree, pyspy, stack_dumps

AMPLE = 20.0
Hangs = Callable[..., list[HangFinding]]


@pytest.fixture(scope="session")
def pyspy_works() -> None:
    """Skip where py-spy is missing or may read no other process."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        time.sleep(0.2)
        sample, reason = pyspy.dump(process_tree.descendants(child.pid)[0], time.monotonic() + AMPLE)
        child.kill()
    if not sample:
        pytest.skip(reason)


@pytest.fixture
def hangs(tmp_path: Path, pyspy_works: None) -> Iterator[Hangs]:
    """Start a program and say from two samples which hang it is, as soon as that is `cause`, else after a while."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, cause: str, word: str = "") -> list[HangFinding]:
        (tmp_path / "program.py").write_text(code)
        with (tmp_path / "log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "program.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(tmp_path)},
            )  # fmt: skip
        started.append(child)
        findings: list[HangFinding] = []
        end = time.monotonic() + 90
        while time.monotonic() < end and not (findings and findings[0].id == cause and word in findings[0].why):
            time.sleep(0.3)  # it may still be on its way to the place where it will hang
            before = stack_dumps.take(process_tree.descendants(child.pid), AMPLE, native=False)
            time.sleep(0.1)
            after = stack_dumps.take(process_tree.descendants(child.pid), AMPLE)
            text = (tmp_path / "log").read_text(errors="replace")
            findings = hang_cause.find_hangs(after, {"stacks_before": before, "log": text})
        return findings

    yield run
    for child in started:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
