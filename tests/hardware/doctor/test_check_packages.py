"""Packages that are missing, mixed, left over or shadowed, told from what the probe read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware.doctor import check_packages
from ocrlab.hardware.doctor.check_spec import fail
from ocrlab.records import Check


def distribution(
    name: str, version: str, place: str = "/site", needs: tuple[str, ...] = (), installer: str = "pip"
) -> Any:
    return {"name": name, "version": version, "place": place, "needs": list(needs), "installer": installer}


def judged(*distributions: Any, **more: Any) -> dict[str, Check]:
    interpreter = {
        "version": "3.11.7", "implementation": "CPython", "executable": "PY", "environment": True, "bits": 64,
        "machine": "x86_64", "variables": {},
    }  # fmt: skip
    answer: dict[str, Any] = {
        "interpreter": {**interpreter, **more.pop("interpreter", {})},
        "distributions": list(distributions),
        "leftovers": [],
        "found": dict.fromkeys(("torch", "torchvision", "numpy", "cv2"), "/site"),
        "shadows": [],
        "torch": {"version": "2.8.0+cu128", "cuda": "12.8"},
        "conda": {},
    }
    return {check.name: check for check in check_packages.judge([{**answer, **more}], "PY")}


def test_all_is_well() -> None:
    vision = distribution("torchvision", "0.23.0+cu128", needs=("torch==2.8.0", "pillow>=5"))
    checks = judged(distribution("torch", "2.8.0+cu128"), vision, distribution("numpy", "2.1"))
    assert {check.judgement for check in checks.values()} == {"ok"}
    assert "CUDA 12.8" in checks["torch installed"].observed


def test_torchvision_of_another_torch() -> None:
    vision = distribution("torchvision", "0.18.0", needs=("torch==2.3.0",))
    check = judged(distribution("torch", "2.8.0"), vision)["torch and torchvision"]
    assert (check.judgement, check.cause) == ("fail", "build.torchvision")
    assert "torchvision==0.23.*" in check.do


def test_torchvision_of_another_cuda() -> None:
    vision = distribution("torchvision", "0.23.0+cpu", needs=("torch==2.8.0",))
    check = judged(distribution("torch", "2.8.0+cu128"), vision)["torch and torchvision"]
    assert (check.judgement, check.cause) == ("fail", "build.torchvision")
    assert "cu128" in check.do


@pytest.mark.parametrize(
    ("distributions", "more", "word"),
    [
        ([distribution("numpy", "1.26"), distribution("numpy", "2.1", "/user")], {}, "numpy 1.26 and 2.1"),
        ([distribution("opencv-python", "4.11"), distribution("opencv-python-headless", "4.11")], {},
         "overwrite each other"),
        ([distribution("torch", "2.8", needs=('nvidia-cudnn-cu12==9.10.2; platform_system == "Linux"',)),
          distribution("nvidia-cudnn-cu12", "9.1.0")], {}, "torch needs 9.10.2"),
        ([distribution("torch", "2.8")], {"leftovers": ["/site/~orch"]}, "interrupted pip"),
        ([distribution("torch", "2.8")], {"conda": {"pytorch": "2.7"}}, "by conda and by pip"),
    ],
)  # fmt: skip
def test_mixed_packages(distributions: list[Any], more: dict[str, Any], word: str) -> None:
    check = judged(*distributions, **more)["packages mixed"]
    assert word in check.observed
    assert check.do


def test_missing_and_shadowed() -> None:
    checks = judged(found={"torch": None, "torchvision": None, "numpy": "/site", "cv2": None}, torch={})
    assert checks["torch installed"].judgement == "fail"
    assert "torchvision opencv-python" in checks["packages present"].do
    check = judged(shadows=["/here/random.py"])["names shadowed"]
    assert (check.judgement, check.do) == ("fail", "mv /here/random.py /here/random_of_mine.py")
    check = judged(shadows=["/here/test/__init__.py"])["names shadowed"]
    assert (check.judgement, check.do) == ("warn", "mv /here/test /here/test_of_mine")


def test_files_of_pythonpath_hide_modules_too(tmp_path: Path) -> None:
    for name in ("random", "numpy", "mine"):
        (tmp_path / f"{name}.py").touch()
    origins = {"torch": "/site", "numpy": str(tmp_path / "numpy.py")}
    interpreter = {"variables": {"PYTHONPATH": f"/nowhere:{tmp_path}"}}
    check = judged(found=origins, interpreter=interpreter)["names shadowed"]
    assert check.judgement == "fail"
    assert str(tmp_path / "random.py") in check.observed and str(tmp_path / "numpy.py") in check.observed
    assert "mine.py" not in check.observed


def test_an_import_that_fails_of_a_hidden_module_needs_no_installation() -> None:
    facts = {
        "packages": [{"shadows": ["/here/json.py", "/here/torch.py"], "interpreter": {"variables": {}}, "found": {}}]
    }
    broken = fail("import torch", "AttributeError", "it returns", "PY -m pip install --force-reinstall torch")
    assert check_packages.first_cause(broken, facts).do == "mv /here/torch.py /here/torch_of_mine.py"
    assert check_packages.first_cause(replace(broken, name="import cv2"), facts).do.startswith("mv /here/json.py")
    explained = replace(broken, cause="build.system_libs")
    assert check_packages.first_cause(explained, facts) == explained
    assert check_packages.first_cause(broken, {}) == broken


def test_interpreters() -> None:
    assert judged(interpreter={"bits": 32})["interpreter"].judgement == "fail"
    assert judged(interpreter={"implementation": "PyPy"})["interpreter"].judgement == "fail"
    assert judged(interpreter={"variables": {"PYTHONHOME": "/x"}})["interpreter"].do == "unset PYTHONHOME"
    assert "/mine" in judged(interpreter={"variables": {"PYTHONPATH": "/mine"}})["interpreter"].observed
