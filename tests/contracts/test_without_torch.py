"""The half that watches, where torch is missing or broken: a bare Python, an old one, a torch that kills or hangs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.10", *(pytest.param(version, marks=pytest.mark.slow) for version in ("3.12", "3.13")))
KILLS = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
HANGS = "import time\ntime.sleep(1e6)\n"


def find(version: str) -> str | None:
    """Return a Python of this version: on the path, where it may be a shim of pyenv's that does not run, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/{version}.*/bin/python3")
    for python in filter(None, [shutil.which(f"python{version}"), *map(str, pyenv)]):
        if not subprocess.run([python, "-c", "import ssl"], capture_output=True, timeout=60, check=False).returncode:
            return python
    return None


@pytest.fixture(scope="module", params=[pytest.param("this", marks=pytest.mark.slow), *VERSIONS])
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with nothing installed; where it has no tomllib it borrows the copy that pip carries."""
    base = sys.executable if request.param == "this" else find(request.param)
    if base is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    place = tmp_path_factory.mktemp("bare")
    subprocess.run([base, "-m", "venv", str(place / "venv")], check=True, capture_output=True, timeout=180)
    python = place / "venv" / "bin" / "python"
    [inside] = place.glob("venv/lib/python*/site-packages")
    if not (Path(f"{inside.parent}/tomllib")).exists() and (inside / "pip/_vendor/tomli").is_dir():
        shutil.copytree(inside / "pip" / "_vendor" / "tomli", inside / "tomli")
    return str(python)


def ocrlab(python: str, *words: str, stdin: str = "", path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of ocrlab with another Python, ocrlab and `path` alone on its import path."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    places = [str(place) for place in (path, ROOT) if place]
    env = {**environment, "PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-m", "ocrlab", *words]
    return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def verdict(folder: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((folder / "incident" / "verdict.json").read_text())
    return record


def first(folder: Path) -> str:
    causes = verdict(folder)["causes"]
    assert isinstance(causes, list)
    return str(causes[0]["id"]) if causes else "unknown"


def test_watch_names_a_crash(bare: str, tmp_path: Path) -> None:
    program = "import os; print('step 1', flush=True); os.abort()"
    done = ocrlab(bare, "watch", "--run-dir", str(tmp_path / "run"), "--", bare, "-c", program)
    assert done.returncode == 134, done.stderr
    assert done.stdout == "step 1\n"
    assert first(tmp_path / "run") == "native.abort"


def test_diagnose_reads_a_log(bare: str) -> None:
    log = "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU\n"
    done = ocrlab(bare, "diagnose", "-", "--json", stdin=log)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["causes"][0]["id"] == "driver.none"


def test_kernel_and_help(bare: str) -> None:
    assert ocrlab(bare, "kernel", "--block", "64", "--capability", "8.6").returncode == 0
    assert "doctor" in ocrlab(bare, "--help").stdout


def test_what_is_not_installed_is_named(bare: str) -> None:
    done = ocrlab(bare, "train")
    assert done.returncode == 1
    assert "pip install 'ocrlab[train]'" in done.stderr


def test_doctor_says_that_torch_is_missing(bare: str) -> None:
    done = ocrlab(bare, "doctor", "--json")
    assert done.returncode in (0, 1), done.stderr
    record = json.dumps(json.loads(done.stdout))
    assert "torch" in record


@pytest.mark.parametrize(("torch", "cause"), [(KILLS, "build.cpu_isa"), (HANGS, "hang.import")])
def test_a_torch_that_kills_or_hangs(torch: str, cause: str, tmp_path: Path) -> None:
    """What watches does not import it; what it watches does, and the verdict says how that ended."""
    broken = tmp_path / "broken"
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text(torch)
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    words = ["--silence", "1.5", "--on-hang", "kill", "--", sys.executable, str(script)]
    done = ocrlab(sys.executable, "watch", "--run-dir", str(tmp_path / "run"), *words, path=broken)
    assert done.returncode in (132, 124), done.stderr
    assert first(tmp_path / "run") == cause
    log = "RuntimeError: CUDA error: an illegal instruction was encountered\n"
    done = ocrlab(sys.executable, "diagnose", "-", "--json", stdin=log, path=broken)
    assert json.loads(done.stdout)["symptom"] == "kernel.illegal_instruction", done.stderr
