"""Each fault ends as it says: by an exception, by a signal, not at all, or well. A few here, all of them under slow."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ocrlab.fault_lab import FAULTS, setup

QUICK = ("import_symbol", "label_json_cut", "segv", "thread_exception", "mapped_file", "oom_main", "lock_order")
RUNS = [(each.name, method) for each in FAULTS.values() for method in (each.start_methods or ("",))]
BY_SIGNAL = {
    "SIGSEGV": "segv segv_told import_segv c_recursion py_recursion", "SIGILL": "opcode import_opcode",
    "SIGFPE": "divide", "SIGABRT": "assertion heap thread_exception",
    "SIGBUS": "mapped_file shm_block", "SIGXFSZ": "file_size_signal", "SIGXCPU": "cpu_limit",
    "SIGKILL": "oom_main killed_main trainer_killed", "SIGTERM": "sigterm time_limit",
    "SIGHUP": "sighup", "SIGINT": "sigint",
}  # fmt: skip
SIGNALS = {name: number for number, names in BY_SIGNAL.items() for name in names.split()}


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder that other users can enter; every process that was given it as TMPDIR is ended afterwards."""
    folder = tmp_path_factory.mktemp("fault")
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(parent.stat().st_mode | 0o011)
    yield folder
    marker = f"TMPDIR={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
    setup.clear_groups()


def start(place: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ocrlab.fault_lab", *words]
    environment = {**os.environ, "TMPDIR": str(place)}
    with (place / "output.txt").open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )


def ended(place: Path, name: str, method: str, patience: float) -> None:
    """Run a fault and hold it to what it says of its end; a hang must go on for `patience` seconds."""
    lab = FAULTS[name]
    lacking = lab.lacks()
    if lacking:
        pytest.skip(f"this machine lacks {lacking}")
    process = start(place, name, *(("--start-method", method) if method else ()))
    try:
        status = process.wait(patience if lab.ends == "hung" else 120)
    except subprocess.TimeoutExpired:
        assert lab.ends == "hung", "it goes on for ever"
        return
    output = (place / "output.txt").read_text(errors="replace")
    assert lab.ends != "hung", f"it ended with {status}: {output}"
    if lab.ends == "killed":
        assert status == -signal.Signals[SIGNALS[name]], output
    else:
        assert (status, "Traceback" in output) == ((1, True) if lab.ends == "failed" else (0, False)), output


@pytest.mark.parametrize("name", QUICK)
def test_a_few_faults_end_as_documented(place: Path, name: str) -> None:
    ended(place, name, "", patience=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), RUNS)
def test_every_fault_ends_as_it_says(place: Path, name: str, method: str) -> None:
    ended(place, name, method, patience=10)


def test_a_fault_says_how_it_ends_and_why() -> None:
    for each in FAULTS.values():
        assert each.ends in ("failed", "killed", "hung", "healthy")
        assert bool(each.causes) == (each.ends != "healthy"), each.name
        assert (each.name in SIGNALS) == (each.ends == "killed"), each.name
        function = getattr(each.run, "func", each.run)
        assert each.name != function.__name__ or not each.causes, "the name of the function is in the stack"


def test_the_causes_are_of_the_list(shared: Path) -> None:
    causes = set(re.findall(r"^\| `([\w.]+)`", (shared / "diagnosis" / "causes.md").read_text(), re.MULTILINE))
    assert {cause for each in FAULTS.values() for cause in each.causes} <= causes


def test_the_list_is_cheap_and_complete() -> None:
    code = "import sys, runpy\nsys.argv[1:] = ['--list', '--json']\n"
    code += "runpy.run_module('ocrlab.fault_lab', run_name='__main__')\n"
    code += "assert not {'torch', 'cv2', 'wandb', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    listed = json.loads(done.stdout)
    assert [each["name"] for each in listed] == list(FAULTS)
    keys = {"name", "family", "does", "ends", "causes", "needs", "start_methods"}
    assert all(set(each) == keys for each in listed)


def test_an_unknown_fault_is_wrong_use(place: Path) -> None:
    process = start(place, "no_such_fault")
    assert process.wait(60) == 2
    assert "no_such_fault" in (place / "output.txt").read_text()
