"""Run folders of strangers under every command that reads one: nothing in them is executed without consent.

Programs are recorded, and commands run, as real processes; what must not be executed would leave a file.
"""

import json
import os
import pickle
import pty
import select
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.debug.flight_record import program_info
from ocrlab.run_folder import provenance
from tests.commands import run_each

ROOT = Path(__file__).parents[2]
SECONDS = 120
LOOP = """
import sys, torch
from torch import nn
import ocrlab

class Box:
    def __init__(self, values):
        self.values = values

torch.manual_seed(0)
net = nn.Linear(4, 1)
with ocrlab.record("run", net, batches="raw", snapshot_every=2) as rec:
    for box in rec.batches([Box(torch.full((1, 4), float(number))) for number in range(5)]):
        loss = net(box.values).sum()
        rec.loss(loss).backward()
        if box.values[0, 0] == 4:
            raise ValueError("planted")
"""


def start(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ocrlab in a folder, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "ocrlab", *words], cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of this user, recorded under watch."""
    place = tmp_path_factory.mktemp("mine")
    (place / "train.py").write_text(LOOP, encoding="utf-8")
    done = start(place, "watch", "--run-dir", "run", "--", sys.executable, "train.py")
    assert done.returncode == 1 and "planted" in done.stderr, done.stderr
    return place


@pytest.fixture
def place(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it, in which a test may change what it likes."""
    shutil.copytree(recorded, tmp_path / "copy")
    return tmp_path / "copy"


def change(path: Path, **values: Any) -> None:
    """Write other values into a JSON file, as somebody else would: its digest stays."""
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def pwned(place: Path) -> Path:
    return place / "PWNED"


def test_ones_own_run_is_replayed_without_a_question(place: Path) -> None:
    """Watch, recorder and replay in one session, and nobody at a terminal: as in a notebook or a job."""
    done = start(place, "replay", "run", "--json")
    record = json.loads(done.stdout)
    assert done.returncode == 0 and record["reproduced"], done.stderr
    assert "ValueError: planted" in record["answer"]
    [line] = [line for line in done.stderr.splitlines() if " starts " in line]
    folder = json.loads((place / "run" / "flight" / "program.json").read_text(encoding="utf-8"))["cwd"]
    assert line == f"ocrlab replay: starts cd {folder} && {sys.executable} train.py"


def shell(place: Path) -> list[str]:
    return ["/bin/sh", "-c", f"touch {pwned(place)}"]


CHANGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "argv": lambda place: {"argv": shell(place), "executable": "/bin/sh"},
    "python -c": lambda place: {"argv": [sys.executable, "-c", f"open({str(pwned(place))!r}, 'w')"]},
    "executable": lambda place: {"executable": str(write_script(place / "python", f"touch {pwned(place)}"))},
    "a variable": lambda place: {"environment": {"PYTHONPATH": str(write_module(place, "sitecustomize"))}},
    "the folder": lambda place: {"cwd": str(write_module(place, "train").parent / "evil")},
    "a training": lambda place: {
        "kind": "ocrlab train",
        "argv": [sys.executable, "-m", "ocrlab", "train"],
        "environment": {"PYTHONPATH": str(write_module(place, "sitecustomize"))},
    },
    "the host": lambda place: {"host": "elsewhere"},
    "cells": lambda place: {"interactive": True, "pid": 1, "made": write_cells(place)},
}


def write_script(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def write_module(place: Path, name: str) -> Path:
    folder = place / "evil"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(f"open({str(pwned(place))!r}, 'w')", encoding="utf-8")
    return folder


def write_cells(place: Path, run: str = "run") -> bool:
    cell = {"number": 1, "code": f"open({str(pwned(place))!r}, 'w')"}
    content = {"schema": 1, "pid": 1, "cwd": str(place), "argv": [], "size": 9, "began": [], "cells": [cell]}
    (place / run / "flight" / "cells-0.json").write_text(json.dumps(content), encoding="utf-8")
    return True


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_program_is_shown_and_refused(place: Path, what: str) -> None:
    change(place / "run" / "flight" / "program.json", **CHANGES[what](place))
    done = start(place, "replay", "run")
    assert done.returncode == 1 and not pwned(place).exists()
    assert "was not recorded by you on this machine, or was changed since" in done.stderr and "--trust" in done.stderr
    shown = {"argv": "/bin/sh -c 'touch ", "a variable": "PYTHONPATH=", "executable": "copy/python train.py"}
    assert shown.get(what, "") in done.stderr, "what would be started is shown"
    assert not list((place / "run" / "flight").glob("replay-*"))


@pytest.mark.parametrize("what", ["argv", "executable", "cells", pytest.param("a variable", marks=pytest.mark.slow)])
def test_with_consent_it_is_started(place: Path, what: str) -> None:
    change(place / "run" / "flight" / "program.json", **CHANGES[what](place))
    done = start(place, "replay", "run", "--trust", "--timeout", "60")
    assert pwned(place).exists(), "else the tests above show nothing"
    assert "starts " in done.stderr


def test_cells_that_were_changed_alone_are_refused(place: Path) -> None:
    program = place / "run" / "flight" / "program.json"
    change(program, interactive=True, pid=1)
    provenance.sign(program)
    write_cells(place)
    done = start(place, "replay", "run")
    assert done.returncode == 1 and "flight/cells-0.json decides" in done.stderr and not pwned(place).exists()


@pytest.mark.parametrize(("answer", "starts"), [("yes", True), ("", False), ("\x04", False)])
def test_on_a_terminal_it_asks(place: Path, answer: str, starts: bool) -> None:
    change(place / "run" / "flight" / "program.json", **CHANGES["argv"](place))
    output = on_terminal(place, answer, "replay", "run", "--timeout", "20")
    assert "Start it? [y/N]" in output and "touch" in output
    assert pwned(place).exists() == starts


def on_terminal(place: Path, answer: str, *words: str) -> str:
    """Run ocrlab on a pseudo terminal, answer its question, and return what it printed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.environ["PYTHONPATH"] = str(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "ocrlab", *words])
    output, deadline, answered = b"", time.monotonic() + SECONDS, False
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                data = os.read(terminal, 4096)
            except OSError:  # its other end is closed
                break
            if not data:
                break
            output += data
        if b"[y/N]" in output and not answered:
            os.write(terminal, (answer if answer == "\x04" else f"{answer}\n").encode())
            answered = True
    os.waitpid(pid, 0)
    os.close(terminal)
    return output.decode(errors="replace")


def test_a_command_hides_nothing_from_who_decides(place: Path) -> None:
    """No line feed, no text that runs backwards, and the end of a long one is named."""
    words = ["/bin/sh", "-c", f"true\nocrlab: all is well\u202e\x1b[2K; touch {pwned(place)} #" + "x" * 9000]
    change(place / "run" / "flight" / "program.json", argv=words, executable="/bin/sh")
    done = start(place, "replay", "run")
    assert "true\\nocrlab: all is well\\u202e\\x1b[2K; touch" in done.stderr and "more characters in" in done.stderr


class Bomb:
    """Its pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def write_bomb(path: Path, marker: Path) -> None:
    """Write what torch.load takes for a file of torch.save, and what runs a command where it is unpickled."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(marker), protocol=2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


@pytest.mark.parametrize("trust", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_batch_is_unpickled_only_where_this_user_wrote_it(place: Path, trust: bool) -> None:
    for batch in (place / "run" / "flight" / "batches").glob("*.pt"):
        write_bomb(batch, pwned(place))
    done = start(place, "replay", "run", "--timeout", "60", *["--trust"] * trust)
    assert pwned(place).exists() == trust
    if not trust:
        assert "Reading this raw batch could run code" in done.stdout + done.stderr


@pytest.mark.parametrize("home", ["/dev/null/x", pytest.param("/proc/1/x", marks=pytest.mark.slow)])
def test_without_a_place_for_a_key_a_training_runs_and_its_replay_asks(tmp_path: Path, home: str) -> None:
    (tmp_path / "train.py").write_text(LOOP, encoding="utf-8")
    command = [sys.executable, "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": home}
    errors = subprocess.run(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, timeout=SECONDS).stderr
    assert b"planted" in errors and not (tmp_path / "run" / "flight" / "ocrlab-errors.log").exists()
    assert (tmp_path / "run" / "flight" / "program.json").is_file()
    assert not list((tmp_path / "run" / "flight").rglob("*.digest"))
    assert "--trust" in start(tmp_path, "replay", "run", XDG_STATE_HOME=home).stderr
    assert "--trust" in start(tmp_path, "replay", "run").stderr


def test_a_command_of_a_report_is_not_run_again_without_consent(place: Path) -> None:
    process = place / "run" / "flight" / "process.json"
    own = json.loads(process.read_text(encoding="utf-8"))["command"]
    change(process, command=[*own[: own.index("--") + 1], *shell(place)])
    done = start(place, "report", "bug", "run", "--verify", "--json")
    assert done.returncode == 0 and "touch" in done.stderr and not pwned(place).exists()
    assert "not recorded by you" in json.loads(done.stdout)["verified"]["why"]
    done = start(place, "report", "bug", "run", "--verify", "--trust", "--json")
    assert pwned(place).exists() and json.loads(done.stdout)["verified"]["runs"]


def test_the_command_of_ones_own_run_is_run_again_for_a_report(place: Path) -> None:
    done = start(place, "report", "bug", "run", "--verify", "--json")
    assert json.loads(done.stdout)["verified"]["same"] == 1, done.stderr


def test_a_strangers_training_is_not_bisected_without_consent(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "flight").mkdir(parents=True)
    (run / "config.yaml").write_text(configs.dump(Config(data=str(tmp_path / "nothing"))))
    done = start(tmp_path, "bisect", "run", "batch_size=2", "--runs", "1")
    assert done.returncode == 1 and "ocrlab train --config run/config.yaml batch_size=2" in done.stderr
    assert "config.yaml decides what is started" in done.stderr and not (run / "flight" / "bisect").exists()
    provenance.sign(run / "config.yaml")
    for more in ([], ["--trust"]):
        done = start(tmp_path, "bisect", "run", "batch_size=2", "--runs", "1", "--minutes", "0.02", *more)
        assert "starts ocrlab train --config run/config.yaml" in done.stderr and "--trust" not in done.stderr


HOSTILE = (
    "runs .", "diagnose RUN", "diagnose RUN/incident/log_tail.txt", "diagnose RUN/report.ipynb",
    "memory why RUN", "memory estimate RUN/config.yaml", "memory fit RUN/config.yaml", "replay RUN",
    "replay RUN --rank 1", "bisect RUN", "bisect RUN --against batch_size=1", "bisect RUN/config.yaml",
    "report bug RUN", "report bug RUN --verify", "report bug RUN/incident --out new/bug.md",
    "report bug RUN/report.ipynb", "report html RUN/report.ipynb --out new.html", "train RUN/config.yaml",
    "train --resume RUN",
    "train weights=RUN/checkpoints/last.ckpt data=DATA runtime.threads=1 trainer.precision=fp32 batch_size=1 crop=64",
    "evaluate --checkpoint RUN/checkpoints/last.ckpt data=DATA split=val",
    "predict DATA/val --checkpoint RUN", "predict DATA/val --checkpoint RUN/checkpoints/last.ckpt",
    "export onnx --checkpoint RUN/checkpoints/last.ckpt --out new.onnx",
)  # fmt: skip


@pytest.fixture
def hostile(place: Path) -> Path:
    """A run folder of a stranger: whatever may name a program or hold a pickle does."""
    marker, run = pwned(place), (place / "run").rename(place / "RUN")
    flight, tag = run / "flight", "!!python/object/apply:os.system"
    module = write_module(place, "sitecustomize")
    variables = {"PYTHONPATH": str(module), "BASH_ENV": str(module / "sitecustomize.py")}
    change(flight / "program.json", argv=shell(place), executable="/bin/sh", environment=variables)
    (flight / "program-1.json").write_text((flight / "program.json").read_text(encoding="utf-8"), encoding="utf-8")
    change(flight / "process.json", command=shell(place), host=os.uname().nodename, folder=str(place))
    (run / "config.yaml").write_text(f"data: {tag} ['touch {marker}']\nbatch_size: 2\n", encoding="utf-8")
    pickles = [*(flight / "batches").glob("*.pt"), *flight.glob("*.pt"), flight / "snapshot-0-0-0.pt"]
    (run / "checkpoints").mkdir(exist_ok=True)
    for path in (*pickles, run / "checkpoints" / "last.ckpt", run / "checkpoints" / "best-000001-hmean0.9999.ckpt"):
        write_bomb(path, marker)
    write_cells(place, "RUN")
    for path in (run / "incident" / "verdict.json", flight / "replay.json"):
        path.write_text(json.dumps({"schema": 1, "experiment": f"touch {marker}", "answer": "x"}), encoding="utf-8")
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<script>1</script>"}}
    cell = {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [output]}
    cell["source"] = f"__import__('os').system('touch {marker}')"
    notebook = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [cell]}
    (run / "report.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    for name in ("sitecustomize.py", "usercustomize.py", "torch.py", "conftest.py"):
        (run / name).write_text(f"open({str(marker)!r}, 'w')", encoding="utf-8")
    (place / "DATA").symlink_to(ROOT / "data_samples")
    return place


def test_no_command_executes_what_a_strangers_run_folder_holds(hostile: Path, tmp_path: Path) -> None:
    for command, done in run_each(HOSTILE, hostile, tmp_path / "notes", seconds=280, memory=16 << 30).items():
        assert "Traceback" not in done.stderr and "OCRLAB_TRACEBACK" not in done.stderr, (command, done.stderr)
        assert done.stdout or done.stderr, command
    assert not pwned(hostile).exists()


def test_a_record_that_was_completed_later_stays_ones_own(tmp_path: Path) -> None:
    program_info.write(tmp_path, "loop")
    program_info.update(tmp_path, 0, from_start=True)
    assert provenance.is_own(tmp_path / "program.json")
    change(tmp_path / "program.json", argv=["x"])
    program_info.update(tmp_path, 0, from_start=False)
    assert not provenance.is_own(tmp_path / "program.json"), "completing it does not vouch for a change"
