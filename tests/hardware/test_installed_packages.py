"""What would be imported, read from folders that are made for it; nothing of them is ever executed."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from ocrlab.hardware import installed_packages


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is all of the search path."""
    place = tmp_path / "lib" / "site-packages"
    place.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(place)])
    monkeypatch.chdir(tmp_path)
    return place


def install(site: Path, name: str, version: str, *needs: str, module: str = "") -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    (folder / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    (folder / "INSTALLER").write_text("pip\n")
    package = site / (module or name)
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("raise SystemExit('it was executed')\n")


def test_distributions_with_what_matters_of_them(site: Path) -> None:
    install(site, "torch", "2.8.0+cu128", "nvidia-cudnn-cu12==9.10.2", "numpy; extra == 'more'")
    install(site, "Some_Thing", "1.0", "torch")
    (site / "broken-1.0.dist-info").mkdir()
    by_name = {distribution["name"]: distribution for distribution in installed_packages.distributions()}
    assert by_name["torch"]["version"] == "2.8.0+cu128"
    assert by_name["torch"]["needs"] == ["nvidia-cudnn-cu12==9.10.2"]
    assert by_name["some-thing"]["needs"] == []
    assert by_name["torch"]["place"] == str(site)
    assert "broken" not in by_name


def test_torch_tells_its_build_without_being_imported(site: Path) -> None:
    assert installed_packages.torch_version() == {}
    install(site, "torch", "2.8.0")
    text = "from typing import Optional\n__version__ = '2.8.0+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\n"
    (site / "torch" / "version.py").write_text(text + "hip: Optional[str] = None\n")
    build = installed_packages.torch_version()
    assert (build["version"], build["cuda"]) == ("2.8.0+cu128", "12.8")
    assert "hip" not in build


def test_shadows(site: Path, tmp_path: Path) -> None:
    assert installed_packages.shadows() == []
    (tmp_path / "random.py").write_text("")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "numbering.py").write_text("")
    assert sorted(Path(place).relative_to(tmp_path).as_posix() for place in installed_packages.shadows()) == [
        "random.py",
        "torch/__init__.py",
    ]


def test_the_real_environment_is_reported_as_json() -> None:
    facts = json.loads(json.dumps(installed_packages.facts()))
    assert facts["interpreter"]["version"] == platform.python_version()
    assert facts["interpreter"]["bits"] == 64
    assert any(distribution["name"] == "pytest" for distribution in facts["distributions"])
