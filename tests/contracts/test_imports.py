"""What importing costs and touches: nothing heavy for `import ocrlab`, wandb for nobody who did not ask for it."""

import json
import os
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import ocrlab

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "pandas", "matplotlib", "wandb", "numpy", "cv2", "lightning", "pydantic", "yaml", "rich")


@pytest.fixture
def trap(tmp_path) -> dict[str, str]:
    """An environment in which `import wandb` never returns."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text("import time\ntime.sleep(1e6)\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def python(*words: str, env: dict[str, str] | None = None, timeout: float = 60) -> str:
    """Run the interpreter of the tests in a fresh process from the root of the package and return its stdout."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(code: str) -> set[str]:
    """Return the names of the modules that are loaded after `code`."""
    return set(json.loads(python("-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))")))


def test_the_trap_closes(trap):
    with pytest.raises(subprocess.TimeoutExpired):
        python("-c", "import wandb", env=trap, timeout=3)


@pytest.mark.parametrize("words", [["train", "--help"], ["train", "--keys"], ["--help"]])
def test_commands_do_not_notice_a_wandb_that_hangs(words, trap):
    assert "ocrlab" in python("-m", "ocrlab", *words, env=trap) or "--keys" in words


def test_import_ocrlab_loads_nothing_heavy():
    assert loaded("import ocrlab").isdisjoint(HEAVY)


@pytest.mark.parametrize("name", ["train", "evaluate", "predict", "samples"])
def test_help_of_a_command_loads_nothing_heavy(name):
    code = f"from ocrlab.cli import main\nimport os\nkept = os.dup(1)\nos.dup2(2, 1)\nmain(['{name}', '--help'])\n"
    assert loaded(f"{code}import sys; sys.stdout.flush(); os.dup2(kept, 1)").isdisjoint(HEAVY[:7])


@pytest.mark.parametrize("words", ["predict docs", "evaluate data=data_samples", "export onnx --out x"])
def test_a_missing_checkpoint_is_named_without_torch(words):
    modules = loaded(f"from ocrlab.cli import main\nassert main({words.split()} + ['--checkpoint', 'none.ckpt']) == 2")
    assert modules.isdisjoint(("torch", "cv2"))


def test_a_detector_loads_no_torchvision_and_none_of_the_compiler():
    modules = loaded("import ocrlab\nocrlab.Detector.load('receipts')")
    assert "torch" in modules and modules.isdisjoint(("torchvision", "torch._dynamo", "lightning"))


def test_import_ocrlab_takes_no_time():
    def seconds(code: str) -> float:
        start = time.perf_counter()
        python("-c", code)
        return time.perf_counter() - start

    bare, ours = zip(*((seconds("pass"), seconds("import ocrlab")) for _ in range(5)), strict=True)
    assert statistics.median(ours) - statistics.median(bare) < 0.3, "0.1 s on a quiet machine"


@pytest.mark.parametrize("words", ["memory why train.log", "memory watch --count 1", "report bug train.log"])
def test_what_explains_needs_nothing_beyond_the_base(words, tmp_path):
    """The other words of a command may need what trains."""
    (tmp_path / "train.log").write_text("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({HEAVY}))"
    code = f"{blocked}; from ocrlab.cli import main; sys.exit(main({words.split()}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == ocrlab.__version__
