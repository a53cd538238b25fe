"""Probes of the environment: imports, packages, OpenMP, the smoke ladder, a DataLoader."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.hardware import installed_packages, openmp, torch_probe
from ocrlab.hardware.doctor import probe_runner


def test_cuda_openmp_and_cxx_libraries_count_as_mapped() -> None:
    names = "cudnn.so.9 cudnn_ops.so.9 cuda.so.1 gomp-2.so.1 iomp5.so omp.so.5 stdc++.so.6 c.so.6 cupti.so.12".split()
    assert [name for name in names if not torch_probe.FAMILIES.search(f"/s/lib{name}")] == names[-2:]


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
    assert "needs" not in by_name["some-thing"]
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
    expected = ["random.py", "torch/__init__.py"]
    assert sorted(Path(place).relative_to(tmp_path).as_posix() for place in installed_packages.shadows()) == expected


def test_waiting_threads_sleep_soon_unless_somebody_has_chosen() -> None:
    env: dict[str, str] = {}
    openmp.sleep_soon(env)
    assert env == {"GOMP_SPINCOUNT": "1000"}
    for chosen in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        env = dict(chosen)
        openmp.sleep_soon(env)
        assert env == chosen


@pytest.mark.parametrize("variables", [{}, pytest.param({"OMP_WAIT_POLICY": "active"}, marks=pytest.mark.slow)])
def test_libgomp_reads_it(variables: dict[str, str]) -> None:
    env = {name: text for name, text in os.environ.items() if name not in openmp.SETTINGS} | variables
    openmp.sleep_soon(env)
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.ones(9)"], env={**env, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ("GOMP_SPINCOUNT = '1000'" in done.stderr) == (not variables)


torch = pytest.importorskip("torch")


def test_every_rung_of_the_processor_holds() -> None:
    answers = list(torch_probe.ladder("cpu"))
    rungs = answers[-1]["rungs"]
    assert [rung["rung"] for rung in rungs if not rung["ok"]] == []
    assert [rung["rung"] for rung in rungs][-2:] == ["convolution step fp32", "convolution step bf16"]
    for before, after in zip(answers[1::2], answers[2::2], strict=True):
        assert before["at"] == after["rungs"][-1]["rung"]  # each is announced before it is climbed


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_batches_come_back_whole(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = probe_runner.run(sys.executable, Path(torch_probe.__file__), "batches", {"method": method}, deadline=120)
    assert ran.done, ran.errors
    batches = torch_probe.ITEMS // 2
    assert (ran.answer["same"], ran.answer["batches"]) == (True, batches)
    assert ran.answer["at"] == f"batch {batches} of {batches}"
