"""The result of an import is reported, also if it raises or exits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ocrlab.hardware import import_probe


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the search path for modules that a test makes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("made_"):
            del sys.modules[name]


def test_an_import_tells_version_file_and_time(packages: Path) -> None:
    (packages / "made_well.py").write_text("__version__ = '1.2'\n")
    answer = import_probe.attempt("made_well")
    assert (answer["imported"], answer["version"], answer["file"]) == (True, "1.2", str(packages / "made_well.py"))
    assert answer["seconds"] >= 0


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(1)", "SystemExit"),
        ("import made_nowhere", "ModuleNotFoundError"),
    ],
)
def test_an_import_that_fails_tells_why_and_where(packages: Path, source: str, kind: str) -> None:
    (packages / "made_badly.py").write_text(f"\n{source}\n")
    answer = import_probe.attempt("made_badly")
    assert not answer["imported"]
    assert answer["error"]["type"] == kind
    assert "made_badly.py:2" in answer["error"]["where"]


@pytest.mark.parametrize(
    ("path", "matches"),
    [
        ("/s/nvidia/cudnn/lib/libcudnn.so.9", True),
        ("/s/libcudnn_ops.so.9", True),
        ("/s/libgomp-24e2ab19.so.1", True),
        ("/usr/lib/libcuda.so.1", True),
        ("/usr/lib/libc.so.6", False),
        ("/s/libcupti.so.12", False),
    ],
)
def test_the_families_of_libraries(path: str, matches: bool) -> None:
    assert (import_probe.FAMILIES.search(path) is not None) == matches


def test_what_is_mapped_here_can_be_listed() -> None:
    assert all(place.startswith("/") for place in import_probe.mapped())
