"""Rules of the repository that a machine can check: imports, notebooks, and what must not be in a file."""

import ast
import functools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import ocrlab

ROOT = Path(__file__).parents[1]
# Spelt so that this file does not hold what it looks for.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b")
REGISTRIES = re.compile("|".join(re.escape(a + b) for a, b in (("py", "pi.org"), ("python", "hosted.org"))))
# Names that do not say what a value is: `match`, `text`, `state` or the noun of the thing do.
VAGUE = frozenset(
    "told tell said say heard hear seen kept held found made drawn known given "
    "one usual guilty stray doubt spot".split()
)
MACHINE = re.compile(r"(?<![\w.:/<>*-])/(work|home|root|Users)/\w")


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each function, class, argument, variable, attribute and alias that is defined."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
                yield node.lineno, bound
            case ast.arg(arg=bound) | ast.Name(id=bound, ctx=ast.Store()) | ast.Attribute(attr=bound, ctx=ast.Store()):
                yield node.lineno, bound
            case ast.ExceptHandler(name=str(bound)) | ast.MatchAs(name=str(bound)) | ast.MatchStar(name=str(bound)):
                yield node.lineno, bound
            case ast.MatchMapping(rest=str(bound)) | ast.alias(asname=str(bound)):
                yield node.lineno, bound


@functools.cache
def files() -> list[Path]:
    """Return the tracked and the new files, or every file where this is not a git checkout."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, timeout=30).stdout.decode().split("\0")
    except (OSError, subprocess.SubprocessError):
        folders = ("ocrlab", "tests", "benchmarks", "docs", "notebooks", "data_samples")
        listed = [str(path.relative_to(ROOT)) for name in folders for path in (ROOT / name).rglob("*")]
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


def test_nothing_is_unfinished() -> None:
    names = [name(path) for path in python("ocrlab", "benchmarks") if UNFINISHED.search(path.read_text())]
    assert names == []


def test_no_test_is_switched_off() -> None:
    """A test skips for a reason that it finds out when it runs, never always."""
    off = re.compile(r"pytest\.mark\." + r"(skip\b(?!if)|xfail\((?!.*strict))")
    names = [name(path) for path in python("tests") if path.name != "conftest.py" and off.search(path.read_text())]
    assert names == []


def test_no_registry_and_no_place_of_this_machine_is_written_down() -> None:
    lines: list[str] = []
    for path in files():
        text = text_of(path)
        if text is not None:
            lines += [f"{name(path)}: {match[0]}" for match in REGISTRIES.finditer(text)]
            lines += [f"{name(path)}: {match[0]}" for match in MACHINE.finditer(text)]
            if len(str(ROOT)) > 4 and str(ROOT) + "/" in text:
                lines.append(f"{name(path)}: the place of this checkout")
    assert lines == []


def test_samples_fit_into_eight_megabytes() -> None:
    assert (
        sum(path.stat().st_size for path in files() if path.relative_to(ROOT).parts[0] == "data_samples") <= 8_000_000
    )


def test_names_are_nouns_of_the_thing() -> None:
    sources = [(name(path), path.read_text()) for path in python("ocrlab", "tests", "benchmarks")]
    for path in notebooks():
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources += [(name(path), "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    vague = [
        f"{path}:{line}: {bound}"
        for path, source in sources
        for line, bound in bound_names(ast.parse(source))
        if bound.strip("_").lower() in VAGUE
    ]
    assert vague == []


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


def test_the_readme_shows_every_part() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    places = [path.relative_to(ROOT).parts for path in files()]
    parts = {place[0] + "/" for place in places if len(place) > 1 and place[0][0] != "."}
    parts |= {place[1] + "/" for place in places if place[0] == "ocrlab" and len(place) > 2}
    parts |= {place[2] + "/" for place in places if place[:2] == ("ocrlab", "debug") and len(place) > 3}
    parts |= {place[1] for place in places if place[0] == "ocrlab" and len(place) == 2 and place[1][0] != "_"}
    assert sorted(part for part in parts if part not in readme) == []
