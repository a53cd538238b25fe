"""The layout of the package: layers, names in texts that lead somewhere, public names, what needs no torch."""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "ocrlab").rglob("*.py")
)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
CAN_CRASH = ("torch", "torchvision", "lightning", "cv2", "numba", "wandb")
RENAMED = ("ocrlab.trace", "ocrlab.train")  # the old imports, which warn
DOTTED = re.compile(r"(?<![\w./@-])ocrlab(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w./])(?:ocrlab|tests|benchmarks|notebooks)/[\w/.-]+\.(?:py|toml|ipynb)\b")


def contract(text: str) -> dict[str, list[str]]:
    [contract] = [name for name in CONTRACTS if text in name["name"]]
    return contract


def test_import_rules_hold() -> None:
    code = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_part_is_in_a_layer() -> None:
    layers = {name.strip() for row in contract("downwards")["layers"] for name in re.split(r"[|:]", row)}
    parts = {
        name for name in MODULES if name.count(".") == 1 and name not in ("ocrlab.__main__", "ocrlab.debug", *RENAMED)
    }
    parts |= {name for name in MODULES if name.startswith("ocrlab.debug.") and name.count(".") == 2}
    assert parts == layers


def test_no_module_imports_itself_through_others() -> None:
    """Not inside a function either; what is imported for types alone is never imported."""
    graph = grimp.build_graph("ocrlab", exclude_type_checking_imports=True, cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_what_runs_beside_a_training_needs_nothing_that_can_crash() -> None:
    """Every module of the contract is imported in one child where torch and its like cannot be imported."""
    sources = contract("never imports torch")["source_modules"]
    modules = [name for name in MODULES if any(name == source or name.startswith(f"{source}.") for source in sources)]
    assert len(modules) > 100
    code = f"import importlib, sys\nsys.modules.update(dict.fromkeys({CAN_CRASH}))\n"
    code += f"for name in {modules}: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def texts() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=False, timeout=30).stdout.decode().split("\0")
    kinds, folders = (".py", ".md", ".ipynb", ".toml"), ("ocrlab", "tests", "benchmarks", "notebooks", "docs")
    paths = [ROOT / name for name in names if name.startswith(tuple(f"{folder}/" for folder in folders))]
    paths = [path for path in paths if path.suffix in kinds and "results" not in path.parts and path.is_file()]
    return [*paths, ROOT / "pyproject.toml", ROOT / "README.md"]


def leads_somewhere(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute that a module's source defines."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        module = ".".join(words[:count])
        if module in MODULES:
            rest = words[count:]
            return not rest or defines(module, rest[0])
    return False


def defines(module: str, name: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    return re.search(rf"\b{re.escape(name)}\b", source) is not None


# Names that a text makes up: a decoder that the reader writes, a module in a test's own string, attributes of modules.
ELSEWHERE = (
    "ocrlab/model/sum.py", "tests/model/test_sum.py", "tests/x.py", "ocrlab.x",
    "ocrlab.debug.recorder.nothing", "ocrlab.cli.report_", "__path__", "__file__",
)  # fmt: skip


def test_every_dotted_name_and_path_in_a_text_leads_somewhere() -> None:
    """`-m ocrlab.x`, import_module, entry points, prefixes of frames, docs: what is moved is moved there too."""
    lost = []
    for path in texts():
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(ROOT)
        lost += [f"{place}: {name}" for name in {*DOTTED.findall(text)} if not leads_somewhere(name)]
        lost += [f"{place}: {name}" for name in {*PATH.findall(text)} if not (ROOT / name).exists()]
    assert sorted(reference for reference in lost if not reference.endswith(ELSEWHERE)) == []


PUBLIC = {
    "ocrlab": {"Config", "Detector", "Recorder", "check_step", "record"},
    "ocrlab.debug": {
        *("watch_layers", "watch_dataloader", "watch_memory", "watch_leaks", "profile_steps"),
        *("diagnose", "largest_batch"),
    },
    "ocrlab.data": {"load", "convert", "audit_folder"},
    "ocrlab.evaluation": {"decode", "score", "compare"},
    "ocrlab.inference": {"Detector", "export_onnx", "hmean_upper_bound"},
    "ocrlab.training": {"fit", "resume"},
    "ocrlab.hardware": {"run_doctor", "environment"},
    "ocrlab.reports": {"notebook_to_html", "write_bug_report", "list_runs"},
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_the_documented_ones(package: str) -> None:
    module = importlib.import_module(package)
    assert {name for name in module.__all__ if name != "__version__"} == PUBLIC[package]
    for name in PUBLIC[package]:
        assert callable(getattr(module, name)) and name in dir(module)
        assert getattr(module, name).__doc__, f"{package}.{name} has no docstring"
        assert f"{package}.{name}" not in MODULES, "a module hides it"
    with pytest.raises(AttributeError, match="its public names are"):
        _ = module.no_such_name


@pytest.mark.parametrize("package", PUBLIC)
def test_a_package_with_public_names_loads_nothing_until_they_are_used(package: str) -> None:
    code = f"import {package}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    heavy = {"torch", "numpy", "lightning", "pandas", "matplotlib", "wandb", "pydantic", "rich", "cv2", "numba", "yaml"}
    assert heavy.isdisjoint(json.loads(done.stdout))


def test_old_imports_still_work_and_warn() -> None:
    names = ("contract", "layers", "leaks", "loader", "memory", "profile")
    code = "from ocrlab.train.recorder import Recorder, recording\nimport ocrlab\nassert Recorder is ocrlab.Recorder\n"
    for name in names:
        code += f"from ocrlab.trace import {name}\nimport ocrlab.trace.{name} as again\nassert again is {name}\n"
        code += f"assert {{'watch', 'check', 'steps'}} & vars({name}).keys()\n"
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "<string>:1: DeprecationWarning: ocrlab.train.recorder is deprecated; use ocrlab.record" in done.stderr
    for name in names:
        assert f"DeprecationWarning: ocrlab.trace.{name} is deprecated; use ocrlab." in done.stderr


def test_each_file_says_in_its_first_line_what_it_is() -> None:
    silent = [name for name in MODULES if not ast.get_docstring(ast.parse(_source(name)))]
    assert silent == []


def _source(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
