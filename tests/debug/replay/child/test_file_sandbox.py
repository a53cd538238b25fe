"""A replayed program finds what it has written, and nothing of the user's is written over or removed."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.debug.replay.child import file_sandbox
from ocrlab.debug.watch import error_hook

PROGRAM = """
import glob, io, os, pathlib, shutil, subprocess, sys, tempfile
import numpy as np

shutil.rmtree("run")
os.makedirs("run/checkpoints")
log = open("run/log.csv", "w")
log.write("0,1\\n")
log.close()
assert pathlib.Path("run/log.csv").read_text() == "0,1\\n" and os.path.getsize("run/log.csv") == 4
with open("notes.txt", "a") as notes:
    notes.write("more")
assert open("notes.txt").read() == "mine, more"
with io.open("notes.txt", "r+") as notes:
    notes.write("here")
assert open("notes.txt").read() == "here, more"
np.save("array.npy", np.zeros(3))
assert np.load("array.npy").shape == (3,)
with open("best.tmp", "w") as best:
    best.write("new")
os.replace("best.tmp", "best.txt")
assert open("best.txt").read() == "new" and not os.path.exists("best.tmp")
os.rename("old.txt", "older.txt")
assert open("older.txt").read() == "old"
for path in glob.glob("checkpoint-*"):
    os.remove(path)
    pathlib.Path(path).unlink()  # what is still seen may be removed again
try:
    open("best.txt", "x")
except FileExistsError:
    print("exclusive")
try:
    os.remove("nothing")
except FileNotFoundError:
    print("missing")
pathlib.Path("deep/er").mkdir(parents=True)
pathlib.Path("deep/er/file").write_bytes(b"1")
os.truncate("notes.txt", 1)
assert open("notes.txt").read() == "h"
os.chmod("array.npy", 0o600)
os.chmod("kept.txt", 0o000)
os.truncate("kept.txt", 0)
descriptor = os.open("kept.txt", os.O_WRONLY | os.O_TRUNC)
os.write(descriptor, b"gone")
os.close(descriptor)
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
    file.write(b"1")
assert not os.path.exists(folder)
class Keeps:
    read, remove = open, os.remove
Keeps().read("kept.txt").close()
shutil.rmtree("nowhere", ignore_errors=True)
code = "open('kept.txt', 'w').write('child'); import os; os.remove('array.npy')"
subprocess.run([sys.executable, "-c", code], check=True)
print("done")
"""
FILES = {"run/log.csv": "a whole night", "run/flight/ring": "steps", "notes.txt": "mine, ", "old.txt": "old"}
FILES |= {"checkpoint-1.pt": "1", "checkpoint-2.pt": "2", "kept.txt": "kept", "best.txt": "best", "array.npy": "array"}


def run_sandboxed(folder: Path, program: str, out: Path, **more: str) -> list[str]:
    """Run a program in a folder as a replay would, and return its lines."""
    first = folder.parent / "first"
    for path in (first, out):
        path.mkdir(exist_ok=True)
    shutil.copyfile(file_sandbox.__file__, first / "_sandbox.py")
    (first / "sitecustomize.py").write_text(error_hook.FIRST.replace(error_hook.MODULE, "_sandbox"))
    (folder / "program.py").write_text(program)
    environment = os.environ | file_sandbox.tracker_variables(str(out)) | {file_sandbox.VARIABLE: str(out)}
    environment |= {"TMPDIR": str(out), "PYTHONPATH": str(first), **more}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "users" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "users" / name).write_text(text)
    return tmp_path / "users"


@pytest.mark.parametrize("temporary", [True, False])
def test_no_file_of_the_user_is_written_over_or_removed(tmp_path: Path, users: Path, temporary: bool) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (users / "program.py").write_text(PROGRAM)
    before = {path: path.stat().st_mode for path in users.rglob("*")}
    lines = run_sandboxed(users, PROGRAM, out, TMPDIR=str(tmp_path if temporary else other))
    assert lines == ["exclusive", "missing", "done"]
    assert {name: (users / name).read_text() for name in FILES} == FILES
    now = {path: path.stat().st_mode for path in users.rglob("*")}
    assert {path: now.get(path) for path in before} == before
    new = {str(path.relative_to(users)) for path in now.keys() - before.keys() if path.is_file()}
    assert new <= ({"deep/er/file", "best.tmp", "older.txt"} if temporary else set())
    assert (out / "aside" / str(users / "kept.txt").lstrip("/")).read_text() == "child"


def test_without_its_variable_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(file_sandbox.VARIABLE, raising=False)
    file_sandbox.begin()
    assert open is file_sandbox.OPEN and os.remove is file_sandbox.REMOVE and shutil.rmtree is file_sandbox.RMTREE


def test_a_large_file_that_is_changed_in_place_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sandbox, "folders", {"copies": str(tmp_path / "aside"), "temporary": "/nowhere"})
    monkeypatch.setattr(file_sandbox, "LARGE", 3)
    (tmp_path / "data").write_text("four")
    path = str(tmp_path / "data")
    assert file_sandbox.write_path(path, keep_content=True) == path
    assert file_sandbox.write_path(path, keep_content=False) == f"{tmp_path}/aside{path}"


RESUMES = """
import os, pathlib, sys
for name in ("last.pt", "old.pt"):
    print(os.path.exists(name), pathlib.Path(name).is_file())
try:
    print(open("last.pt").read())
except FileNotFoundError:
    print("missing")
open("log.csv", "a").write("1")
print(open("log.csv").read(), open("old.pt").read())
sys.modules["_sandbox"].end_hiding()
print(os.path.exists("last.pt"), open("last.pt").read())
"""


@pytest.mark.parametrize("how", ["hide", "note"])
def test_files_written_after_the_run_began_are_hidden_or_listed_until_the_first_batch(tmp_path, users, how):
    files = {"old.pt": ("old", 50), "last.pt": ("last", 150), "log.csv": ("0", 150)}
    for name, (text, time) in files.items():
        (users / name).write_text(text)
        os.utime(users / name, (time, time))
    out = tmp_path / "out"
    lines = run_sandboxed(users, RESUMES, out, **{file_sandbox.BEGAN: f"100 {how} {users}/flight"})
    hidden = how == "hide"
    assert lines == [
        f"{not hidden} {not hidden}", "True True", "missing" if hidden else "last",
        f"{'' if hidden else '0'}1 old", "True last",
    ]  # fmt: skip
    later = out / file_sandbox.LATER
    assert (later.read_text().split() if later.exists() else []) == ([] if hidden else [str(users / "last.pt")])
    assert {name: (users / name).read_text() for name in files} == {name: text for name, (text, _) in files.items()}


TRACKERS = {  # module: what it is, how a program calls it with what it says itself, and what must come of it
    "wandb": ("def init(project=None, mode=None): print(mode)", "wandb.init('mine', mode='online')", "disabled"),
    "swanlab": ("def init(project=None, mode=None): print(mode)", "swanlab.init('mine', 'cloud')", "disabled"),
    "neptune": ("def init_run(project=None, mode=None): print(mode)", "neptune.init_run(mode='async')", "debug"),
    "comet_ml": ("def start(api_key=None, online=None): print(online)", "comet_ml.start(online=True)", "False"),
    "mlflow": (
        "def set_tracking_uri(uri): print(uri)",
        "mlflow.set_tracking_uri('http://mine')",
        "file://{out}/mlruns",
    ),
    "aim": (
        "class Run:\n    def __init__(self, run_hash=None, *, repo=None): print(repo)",
        "aim.Run('3', repo='.')",
        "{out}",
    ),
}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_is_off_whatever_the_program_sets(tmp_path: Path, users: Path, name: str) -> None:
    text, call, wanted = TRACKERS[name]
    (users / f"{name}.py").write_text(text)
    out = tmp_path / "out"
    assert run_sandboxed(users, f"import {name}\n{call}", out) == [wanted.format(out=out)]


STORES = """
import os, sqlite3
for name in ("study.db", "file:study.db?mode=rwc"):
    with sqlite3.connect(name, uri=name.startswith("file:")) as store:
        store.execute("insert into trials values (2)")
    print(store.execute("select count(*) from trials").fetchone()[0])
    store.close()
print(sqlite3.connect(":memory:").execute("select 3").fetchone()[0])
"""


def test_a_sqlite_database_is_a_copy(tmp_path: Path, users: Path) -> None:
    with sqlite3.connect(users / "study.db") as store:
        store.execute("create table trials (number)")
        store.execute("insert into trials values (1)")
    store.close()
    before = (users / "study.db").read_bytes()
    out = tmp_path / "out"
    assert run_sandboxed(users, STORES, out) == ["2", "3", "3"]
    assert (users / "study.db").read_bytes() == before


EVENTS = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("logs")
writer.add_scalar("loss", 1.0, 3)
writer.close()
import tensorboard.compat
print(tensorboard.compat.tf.__version__)
"""


def test_tensorboard_writes_no_events_among_those_of_the_run(tmp_path: Path, users: Path) -> None:
    pytest.importorskip("tensorboard")
    out = tmp_path / "out"
    assert run_sandboxed(users, EVENTS, out) == ["stub"], "TensorFlow would write in C++"
    assert not list(users.glob("logs/*")) and list(out.glob("aside/**/events.out*"))
