"""What a watched Python reports about its errors, in programs that really fail, on each Python of this machine."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.watch import error_hook


@cache
def python(version: str) -> str:
    """Return a Python of a version that starts; empty where there is none."""
    candidates = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for path in (sys.executable, *map(str, candidates), shutil.which(f"python{version}")):
        words = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
        output = subprocess.run([path, "-c", words], capture_output=True, text=True).stdout if path else ""
        if output.startswith(f"{version} "):
            return output.split(maxsplit=1)[1].strip()
    return ""


@pytest.fixture(params=["3.10", "3.11", "3.12", "3.13"])
def version(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if not python(name):
        pytest.skip(f"there is no Python {name} here")
    return name


def run(version: str, folder: Path, program: str, **more: str) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    scratch = folder / "scratch"
    scratch.mkdir()
    (folder / "program.py").write_text(program, encoding="utf-8")
    env = {**os.environ, "OCRLAB_WATCH": str(scratch), **more}
    env |= error_hook.environment(scratch, {name: env[name] for name in more})
    ended = subprocess.run([python(version), "program.py"], capture_output=True, text=True, env=env, cwd=folder)
    return ended, error_hook.read(scratch)


HIDDEN = """
def train():
    try:
        raise ValueError("the first")
    except Exception:
        try:
            open("no/such/err.txt", "w")
        except OSError:
            raise RuntimeError("the last") from None
train()
"""


def test_an_error_behind_from_none_is_reported_and_the_output_is_as_ever(version: str, tmp_path: Path) -> None:
    ended, records = run(version, tmp_path, HIDDEN)
    last = records[-1]
    assert last["kind"] == "uncaught" and [link["says"] for link in last["chain"]][::2] == ["the last", "the first"]
    assert last["chain"][2]["frames"][-1][1:] == (4, "train")
    bare = subprocess.run([python(version), "program.py"], capture_output=True, text=True, cwd=tmp_path)
    assert (ended.stdout, ended.stderr, ended.returncode) == (bare.stdout, bare.stderr, bare.returncode)


def test_what_is_handled_when_a_program_leaves_is_reported(version: str, tmp_path: Path) -> None:
    program = "import sys\ntry:\n    {}['loss']\nexcept KeyError:\n    sys.exit('no loss')\n"
    ended, records = run(version, tmp_path, program)
    assert (ended.returncode, ended.stderr) == (1, "no loss\n")
    assert [(record["status"], record["chain"][0]["type"]) for record in records if record["kind"] == "exit"] == [
        ("no loss", "KeyError")
    ]


def test_what_a_handler_takes_is_reported_once_and_counted(version: str, tmp_path: Path) -> None:
    program = (
        "import json\nfor step in range(12):\n    try:\n        raise ValueError(step)\n    except Exception:\n"
        "        pass\n    try:\n        json.loads('x')\n    except ValueError:\n        next(iter(()), None)\n"
    )
    _, records = run(version, tmp_path, program)
    if version < "3.12":  # Python tells nobody
        assert records == []
        return
    handled = [record for record in records if record["kind"] == "handled"]
    assert [record["chain"][0]["type"] for record in handled] == ["ValueError", "json.decoder.JSONDecodeError"]
    assert [record["count"] for record in records if record["kind"] == "times"] == [10, 10, 12, 12]


def test_a_program_finds_its_python_as_it_is(version: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'here'\n", encoding="utf-8")
    program = (
        "import pickle, sys, sitecustomize\nprint(mine, [p for p in sys.path if 'scratch' in p])\n"
        "print(pickle.loads(pickle.dumps(sys.exit)) is sys.exit, sys.excepthook is sys.__excepthook__)\n"
        "print(sitecustomize.__file__)\n"
    )
    ended, _ = run(version, tmp_path, program, PYTHONPATH=str(mine))
    assert ended.stdout.splitlines() == ["here []", "True True", str(mine / "sitecustomize.py")], ended.stderr


def test_an_error_of_a_fork_is_the_forks_own(version: str, tmp_path: Path) -> None:
    program = (
        "import os, sys\npid = os.fork()\nif pid == 0:\n    try:\n        raise OSError('in the fork')\n"
        "    except OSError:\n        sys.exit(3)\nos.waitpid(pid, 0)\nraise TypeError('in the parent')\n"
    )
    _, records = run(version, tmp_path, program)
    pids = {record["chain"][0]["says"]: record["pid"] for record in records if record["kind"] in ("exit", "uncaught")}
    assert set(pids) == {"in the fork", "in the parent"} and len(set(pids.values())) == 2


def test_a_message_that_is_more_than_words_is_not_asked_for(version: str, tmp_path: Path) -> None:
    program = (
        "class Tensor:\n    def __str__(self):\n        print('asked')\n        return 'x'\n    __repr__ = __str__\n"
        "class Odd(Exception):\n    def __str__(self):\n        raise ZeroDivisionError\n"
        "try:\n    raise ValueError(Tensor())\nexcept ValueError:\n    raise Odd('word') from None\n"
    )
    ended, records = run(version, tmp_path, program)
    assert "asked" not in ended.stdout
    assert [link["says"] for link in records[-1]["chain"]] == ["", "(Tensor)"]


def test_a_python_that_is_older_or_isolated_is_left_alone(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "OCRLAB_WATCH": str(scratch), **error_hook.environment(scratch, {})}
    for command in ([sys.executable, "-I"], ["python2.7"], ["python3.6"]):
        if shutil.which(command[0]):
            ended = subprocess.run([*command, "-c", "raise ValueError(1)"], capture_output=True, text=True, env=env)
            assert "sitecustomize" not in ended.stderr
    assert error_hook.read(scratch) == []


MANY = """
import sys, time
lost = {}
def many(n):
    for i in range(n):
        try:
            lost[i]
        except KeyError:
            pass
def fastest():
    best = 9e9
    for _ in range(5):
        began = time.perf_counter()
        many(200_000)
        best = min(best, time.perf_counter() - began)
    return best
def train():
    try:
        raise ValueError("the first")
    except Exception:
        sys.exit(3)
print(fastest(), sys.exit)
train()
"""


@pytest.mark.parametrize("version", ["3.12", "3.13"], indirect=True)
def test_a_million_handled_errors_cost_little_and_hide_nothing_that_comes_later(version: str, tmp_path: Path) -> None:
    ended, records = run(version, tmp_path, MANY)
    alone = subprocess.run([python(version), "program.py"], capture_output=True, text=True, cwd=tmp_path)
    (seconds, function), (without, _) = (process.stdout.split(maxsplit=1) for process in (ended, alone))
    assert function.startswith("<built-in function exit>")
    assert float(seconds) < 2.5 * float(without)  # four times as long where each of them is counted
    assert [process["chain"][0]["says"] for process in records if process["kind"] == "exit"] == ["the first"]
    assert "the first" in [process["chain"][0]["says"] for process in records if process["kind"] == "handled"]
    assert max(process["count"] for process in records if process["kind"] == "times") >= 1000
