"""What is installed is what is needed: wheel, environment file and locks say the same as pyproject.toml."""

import ast
import ensurepip
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ocrlab.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
LOCKS = {"requirements.lock": PYTHONS, "requirements-oldest.lock": ("3.11",)}


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def everything(*extras: str) -> list[str]:
    """Return what `ocrlab[extras]` needs; an extra that names another one of ocrlab brings that along."""
    about = project()
    lines: list[str] = list(about["dependencies"])
    for extra in extras:
        for line in about["optional-dependencies"][extra]:
            wanted = Requirement(line)
            lines += everything(*wanted.extras) if wanted.name == "ocrlab" else [line]
    return list(dict.fromkeys(lines))


def ranges(lines: list[str]) -> dict[str, str]:
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): str(requirement.specifier) for requirement in requirements}


def locked(file: str, python: str) -> dict[str, str]:
    """Return name -> version of what a lock installs for this Python on Linux."""
    machine = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    machine |= {"platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
    versions: dict[str, str] = {}
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
        if line and line[0] not in " #":
            requirement = Requirement(line.rstrip("\\ "))
            if requirement.marker is None or requirement.marker.evaluate(machine):
                assert requirement.name not in versions, f"{file} pins {requirement.name} twice for Python {python}"
                [pin] = requirement.specifier
                assert pin.operator == "==", line
                versions[requirement.name] = pin.version
    return versions


def test_environment_yml_names_the_same_packages() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    [pip] = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    assert ranges(pip) == ranges(everything("notebooks"))
    plain = [part.replace(" ", "") for part in environment["dependencies"] if isinstance(part, str)]
    assert plain == ["python>=3.11,<3.14", "pip"]
    assert environment["name"] == "ocrlab"


def test_what_the_user_chose_is_there() -> None:
    chosen = "torch torchvision jupyterlab papermill matplotlib pandas wandb ipywidgets nbval opencv-python"
    assert set(chosen.split()) <= ranges(everything("notebooks")).keys()


def test_what_watches_needs_no_torch_to_be_installed() -> None:
    assert ranges(project()["dependencies"]).keys() == {"py-spy", "tomli"}


@pytest.mark.parametrize("file", LOCKS)
def test_a_lock_has_hashes_and_no_address(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-[-\w]*(index|find|extra|trusted)", text, re.MULTILINE)
    packages = [part for part in re.split(r"\n(?=[^ #])", text) if part.strip()]
    assert len(packages) > 100
    for package in packages:
        name, *hashes = package.split("--hash=")
        assert hashes, name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest.strip(" \\\n")) for digest in hashes), name


@pytest.mark.parametrize(("file", "python"), [(file, python) for file, pythons in LOCKS.items() for python in pythons])
def test_a_lock_holds_what_pyproject_asks_for(file: str, python: str) -> None:
    pins = locked(file, python)
    for line in everything("dev"):
        wanted = Requirement(line)
        if wanted.marker and not wanted.marker.evaluate({"python_version": python}):
            continue
        version = pins.get(canonicalize_name(wanted.name))
        assert version, f"{wanted.name} is not in {file}; run make lock"
        assert wanted.specifier.contains(version, prereleases=True), f"{wanted.name} {version} in {file}, {line} needed"


def test_the_oldest_lock_is_the_oldest() -> None:
    pins = locked("requirements-oldest.lock", "3.11")
    for name, wanted in ranges(everything("notebooks")).items():
        if name == "tomli":  # of an older Python than the lock's
            continue
        lowest = wanted.removeprefix(">=")
        assert f"{pins[name]}.".startswith(f"{lowest}.") or name in ("pyclipper", "opencv-python"), name
    assert pins["torch"].startswith("2.8.")


def test_every_import_is_declared() -> None:
    """A package that only comes along with another one may go with it."""
    declared = ranges(everything("notebooks", "onnx", "tensorboard")).keys()
    owners = importlib.metadata.packages_distributions()
    strays: set[str] = set()
    for path in (ROOT / "ocrlab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            tops = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"ocrlab"}
            strays |= {f"{path.name}: {top}" for top in tops if not declared & _distributions(owners, top)}
    assert sorted(strays) == []


def _distributions(owners: Any, top: str) -> set[str]:
    return {canonicalize_name(name) for name in owners.get(top, [top])}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the back end that pyproject.toml names, without a network."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [wheel_file] = place.glob("*.whl")
    return wheel_file


def test_the_wheel_holds_every_file_and_the_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ocrlab").rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name and not Path(name).name.startswith(".")}
    assert {name for name in names if name.startswith("ocrlab/")} == ours
    assert wheel.name.endswith("py3-none-any.whl"), "pure Python: one wheel for every Python and every machine"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.split("/")[0] in ("tests", "benchmarks")]


def commands() -> list[tuple[str, ...]]:
    """Return the words of every command and subcommand, and none at all."""
    paths: list[tuple[str, ...]] = [()]
    for name in COMMANDS:
        words = getattr(importlib.import_module(f"ocrlab.cli.{name}"), "WORDS", ())
        paths += [(name,), *((name, word) for word in words)]
    return paths


def test_every_help_needs_the_standard_library_alone() -> None:
    """What a base install has: no package is within reach of an interpreter that reads no site-packages."""
    code = """
import contextlib, io, json, sys
sys.path.insert(0, sys.argv[1])
from ocrlab.cli import main
for words in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        main([*words, "--help"])
    print(json.dumps(output.getvalue()))
"""
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT), json.dumps(commands())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for words, text in zip(commands(), map(json.loads, done.stdout.splitlines()), strict=True):
        assert text.startswith(f"usage: {' '.join(('ocrlab', *words))}")


def test_the_wheel_works_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are lent by this environment through a .pth file; ocrlab itself is only in the new one."""
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], timeout=120, check=True)
    pip = next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"), None)
    if pip is None:
        pytest.skip("this Python comes without pip")
    python = place / "bin" / "python"
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))}

    def call(*words: str) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=outside, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call(str(python), str(pip / "pip"), "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel))
    inside = Path(call(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (inside / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = "import ocrlab.data, ocrlab.debug, ocrlab.model; print(ocrlab.__file__)"
    assert Path(call(str(python), "-c", code).strip()).is_relative_to(inside)
    assert "train" in call(str(place / "bin" / "ocrlab"), "--help")
    assert "train" in call(str(python), "-m", "ocrlab", "--help")
