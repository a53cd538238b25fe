"""The rules of the house that a machine can check: sizes, names, mirrors, notebooks, and what must not be in a file."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import ocrlab

ROOT = Path(__file__).parents[1]
LINES, FUNCTION_LINES, SMALL_BYTES = 400, 60, 30_000
VAGUE = re.compile(r"^_*(utils?|helpers?|common|misc|base)$")
WATCHES = ("probes", "diagnose", "watch", "doctor", "report", "rerun", "metrics", "geometry", "flight", "redact")
WATCHES += ("history", "config", "settings", "records", "errors")
ACROSS = {"contracts", "faults", "notebooks", "browser", "gpu", "conftest", "house", "packaging", "benchmarks"}
ACROSS |= {
    "end_to_end",
    "main",
    "forms",
    "messages",
    "families",
}  # of the commands; real messages against the whole catalogue
ACROSS |= {"benchmarks_flight", "docs", "faulty_ranks", "forked_ranks", "parts"}
# Spelt so that this file does not hold what it looks for.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b")
REGISTRIES = re.compile("|".join(re.escape(a + b) for a, b in (("py", "pi.org"), ("python", "hosted.org"))))
MACHINE = re.compile(r"(?<![\w.:/<>*-])/(work|home|root|Users)/\w")


@functools.cache
def files() -> list[Path]:
    """Return the tracked and the new files, or every file where this is no git checkout."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, timeout=30).stdout.decode().split("\0")
    except (OSError, subprocess.SubprocessError):
        kept = ("ocrlab", "tests", "benchmarks", "docs", "notebooks", "data_samples")
        listed = [str(path.relative_to(ROOT)) for name in kept for path in (ROOT / name).rglob("*")]
        listed = [name for name in listed if "__pycache__" not in name]
    return [ROOT / name for name in sorted(listed) if name and (ROOT / name).is_file()]


def python(*folders: str) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def notebooks() -> list[Path]:
    return [path for path in files() if path.suffix == ".ipynb"]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str | None:
    data = path.read_bytes()
    return None if b"\0" in data[:8192] else data.decode("utf-8", errors="replace")


def test_files_and_functions_can_be_read_in_one_sitting() -> None:
    long: list[str] = []
    for path in python("ocrlab", "tests", "benchmarks"):
        source = path.read_text(encoding="utf-8")
        if source.count("\n") > LINES:
            long.append(f"{name(path)}: {source.count(chr(10))} lines, the limit is {LINES}")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > FUNCTION_LINES:
                    long.append(f"{name(path)}:{node.lineno} {node.name}: {size} lines, the limit is {FUNCTION_LINES}")
    assert long == []


def test_no_file_or_folder_has_a_name_that_says_nothing() -> None:
    assert [
        name(path) for path in files() if any(VAGUE.match(Path(part).stem) for part in path.relative_to(ROOT).parts)
    ] == []


def test_depth_is_two() -> None:
    assert [name(path) for path in python("ocrlab") if len(path.relative_to(ROOT).parts) > 3] == []


def test_every_test_has_its_module() -> None:
    """`tests/` mirrors `ocrlab/`; what goes across it has folders or names of its own."""
    strays = []
    for path in python("tests"):
        folder, *_ = parts = path.relative_to(ROOT / "tests").parts
        subject = path.stem.removeprefix("test_")
        if folder in ACROSS or subject in ACROSS:
            continue
        module = ROOT.joinpath("ocrlab", *parts[:-1], subject)
        if not (module.with_suffix(".py").exists() or module.is_dir()):
            strays.append(name(path))
    assert strays == []


def test_every_module_has_its_test() -> None:
    """A module that does something has a test file of its name, or at least a test that imports it."""
    tests = python("tests")
    stems = {path.stem for path in tests}
    imported = {found for path in tests for found in imports(path)}
    untested = []
    for path in python("ocrlab"):
        module = name(path)[:-3].replace("/", ".").removesuffix(".__init__")
        does = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.parse(path.read_text()).body)
        if does and f"test_{path.stem}" not in stems and module not in imported:
            untested.append(name(path))
    assert untested == []


def imports(path: Path) -> set[str]:
    """Return the dotted names that a file imports; of `from a import b` both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_nothing_is_unfinished() -> None:
    found = [name(path) for path in python("ocrlab", "benchmarks") if UNFINISHED.search(path.read_text())]
    assert found == []


def test_no_test_is_switched_off() -> None:
    """A test skips for a reason that it finds out when it runs, never always."""
    off = re.compile(r"pytest\.mark\." + r"(skip\b(?!if)|xfail\((?!.*strict))")
    found = [name(path) for path in python("tests") if path.name != "conftest.py" and off.search(path.read_text())]
    assert found == []


def test_no_registry_and_no_place_of_this_machine_is_written_down() -> None:
    found: list[str] = []
    for path in files():
        text = text_of(path)
        if text is not None:
            found += [f"{name(path)}: {match[0]}" for match in REGISTRIES.finditer(text)]
            found += [f"{name(path)}: {match[0]}" for match in MACHINE.finditer(text)]
            if len(str(ROOT)) > 4 and str(ROOT) + "/" in text:
                found.append(f"{name(path)}: the place of this checkout")
    assert found == []


def test_small_things_are_small() -> None:
    large = [name(path) for path in notebooks() if path.stat().st_size > SMALL_BYTES]
    for path in files():
        if path.suffix == ".json" and path.relative_to(ROOT).parts[0] not in ("data_samples", "benchmarks"):
            large += [name(path)] if path.stat().st_size > SMALL_BYTES else []
    assert large == []


def test_samples_fit_into_eight_megabytes() -> None:
    assert (
        sum(path.stat().st_size for path in files() if path.relative_to(ROOT).parts[0] == "data_samples") <= 8_000_000
    )


@pytest.mark.parametrize("path", notebooks(), ids=name)
def test_notebooks_are_thin(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) <= 12
    for cell in cells:
        source = "".join(cell["source"])
        asked = "parameters" in cell["metadata"].get("tags", [])  # a line for each
        assert len(source.splitlines()) <= (10 if asked else 8), source
        assert not re.search(r"^\s*[%!]", source, re.MULTILINE), f"magic or shell: {source}"
        nodes = list(ast.walk(ast.parse(source)))
        heavy = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.Lambda)
        assert not [node for node in nodes if isinstance(node, heavy)], source
    assert [cell["metadata"].get("tags") for cell in cells].count(["parameters"]) == 1


@pytest.mark.parametrize("path", notebooks(), ids=name)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert "papermill" not in notebook["metadata"]
    assert "widgets" not in notebook["metadata"]
    for cell in notebook["cells"]:
        assert "papermill" not in cell["metadata"]
        if "keep_output" not in cell["metadata"].get("tags", []):
            assert not cell.get("outputs"), "strip it with nbstripout"


def test_the_changelog_has_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(ocrlab.__version__)}\b", changelog, re.MULTILINE)


def test_the_readme_shows_every_room() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rooms = {path.relative_to(ROOT).parts[0] + "/" for path in files() if len(path.relative_to(ROOT).parts) > 1}
    rooms |= {f"{path.parent.name}/" for path in python("ocrlab") if path.parent != ROOT / "ocrlab"}
    rooms |= {path.name for path in python("ocrlab") if path.parent == ROOT / "ocrlab" and path.stem[0] != "_"}
    assert sorted(room for room in rooms if room[0] != "." and room not in readme) == []


def test_the_contract_of_what_watches_names_all_of_it() -> None:
    """import-linter refuses modules that are not there, so that each must be added when it is made."""
    there = {path.relative_to(ROOT).with_suffix("").parts[1] for path in python("ocrlab")}
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    [contract] = [contract for contract in linter["contracts"] if "torch" in contract.get("forbidden_modules", [])]
    assert set(contract["source_modules"]) == {f"ocrlab.{room}" for room in WATCHES if room in there}


def test_import_rules_hold() -> None:
    code = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_imports_itself_through_others() -> None:
    """Not late, inside a function, either; what is imported for types alone is never imported."""
    graph = grimp.build_graph("ocrlab", exclude_type_checking_imports=True, cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_what_watches_runs_without_what_can_crash() -> None:
    """All of it is imported in one child where torch and its like cannot be imported."""
    watches = [path for path in python("ocrlab") if path.relative_to(ROOT).with_suffix("").parts[1] in WATCHES]
    modules = [name(path)[:-3].replace("/", ".").removesuffix(".__init__") for path in watches]
    assert "ocrlab.run_folder.folder" in modules
    blocked = ("torch", "torchvision", "lightning", "cv2", "numba", "wandb")
    code = f"import importlib, sys\nsys.modules.update(dict.fromkeys({blocked}))\n"
    code += f"for name in {modules}: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
