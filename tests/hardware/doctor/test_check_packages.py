"""Packages and imports: missing, mixed, shadowed, slow, broken, or as they should be."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from ocrlab.hardware.doctor import check_packages, doctor_job
from ocrlab.hardware.doctor.check_spec import Options, Probe, fail
from ocrlab.records import Check


def distribution(name, version, place="/site", needs=(), installer="pip"):
    return {"name": name, "version": version, "place": place, "needs": list(needs), "installer": installer}


def judge_distributions(*distributions: Any, **more: Any) -> dict[str, Check]:
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
    return {check.name: check for check in check_packages.judge_packages("PY", {**answer, **more}, {})}


def test_torchvision_of_another_torch() -> None:
    vision = distribution("torchvision", "0.18.0", needs=("torch==2.3.0",))
    check = judge_distributions(distribution("torch", "2.8.0"), vision)["torch and torchvision"]
    assert (check.judgement, check.cause) == ("fail", "build.torchvision")
    assert "torchvision==0.23.*" in check.do


def test_torchvision_of_another_cuda() -> None:
    vision = distribution("torchvision", "0.23.0+cpu", needs=("torch==2.8.0",))
    check = judge_distributions(distribution("torch", "2.8.0+cu128"), vision)["torch and torchvision"]
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
    check = judge_distributions(*distributions, **more)["packages mixed"]
    assert word in check.observed
    assert check.do


def test_missing_and_shadowed() -> None:
    checks = judge_distributions(found={"torch": None, "torchvision": None, "numpy": "/site", "cv2": None}, torch={})
    assert checks["torch installed"].judgement == "fail"
    assert "torchvision opencv-python" in checks["packages present"].do
    check = judge_distributions(shadows=["/here/random.py"])["names shadowed"]
    assert (check.judgement, check.do) == ("fail", "mv /here/random.py /here/random_of_mine.py")
    check = judge_distributions(shadows=["/here/test/__init__.py"])["names shadowed"]
    assert (check.judgement, check.do) == ("warn", "mv /here/test /here/test_of_mine")


def test_files_of_pythonpath_hide_modules_too(tmp_path) -> None:
    for name in ("random", "numpy", "mine"):
        (tmp_path / f"{name}.py").touch()
    origins = {"torch": "/site", "numpy": str(tmp_path / "numpy.py")}
    interpreter = {"variables": {"PYTHONPATH": f"/nowhere:{tmp_path}"}}
    check = judge_distributions(found=origins, interpreter=interpreter)["names shadowed"]
    assert check.judgement == "fail"
    assert str(tmp_path / "random.py") in check.observed and str(tmp_path / "numpy.py") in check.observed
    assert "mine.py" not in check.observed


def test_an_import_that_fails_of_a_hidden_module_needs_no_installation() -> None:
    facts = {
        "packages": {"shadows": ["/here/json.py", "/here/torch.py"], "interpreter": {"variables": {}}, "found": {}}
    }
    broken = fail("import torch", "AttributeError", "it returns", "PY -m pip install --force-reinstall torch")
    assert check_packages.explain_by_shadowing(broken, facts).do == "mv /here/torch.py /here/torch_of_mine.py"
    assert check_packages.explain_by_shadowing(replace(broken, name="import cv2"), facts).do.startswith(
        "mv /here/json.py"
    )
    explained = replace(broken, cause="build.system_libs")
    assert check_packages.explain_by_shadowing(explained, facts) == explained
    assert check_packages.explain_by_shadowing(broken, {}) == broken


ILLEGAL = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("62f1fd48ffff"))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
BROKEN = {  # content of torch/__init__.py -> cause, what the finding says, what it tells to do
    "raise RuntimeError('of its own')": (None, "RuntimeError: of its own", "--force-reinstall torch"),
    "import time; time.sleep(1e6)": ("hang.import", "did not return within", "-X importtime"),
    ILLEGAL: ("build.cpu_isa", "62 f1 fd 48 ff ff", "-cpu host"),
    "import os; os.kill(os.getpid(), 11)": ("native.segv", "SIGSEGV", "-X faulthandler"),
    "import os; os._exit(0)": (None, "exited with status 0 and no answer", "-X faulthandler"),
    "raise SystemExit(3)": (None, "SystemExit: 3", "torch"),
    "while True: print('x' * 100000)": (None, "printed more than", "torch"),
    "import not_there_at_all": (None, "not_there_at_all", "pip install not_there_at_all"),
}


def climbed(planned: list[Probe], options: Options) -> dict[str, Check]:
    return {check.name: check for check in doctor_job.run(options, planned=planned)}


@pytest.mark.parametrize("source", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_torch(source: str, options: Options, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "torch"
    place.mkdir()
    (place / "__init__.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    [_, ask, vision, *_] = check_packages.package_probes(options)
    quick = [Probe(**{**vars(ask), "idle": 1.0, "after": ()}), Probe(**{**vars(vision), "after": ("import torch",)})]
    checks = climbed(quick, options)
    cause, observed, do = BROKEN[source]
    check = checks["import torch"]
    assert (check.judgement, check.cause) == ("fail", cause)
    assert observed in check.observed
    assert do in check.do
    assert checks["import torchvision"].judgement == "skip"


def test_torch_that_is_not_there(options: Options, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')  # without site-packages
    bare.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    checks = climbed(check_packages.package_probes(options), Options(str(bare), tmp_path))
    assert checks["torch installed"].judgement == "fail"
    assert "-m pip install torch" in checks["torch installed"].do
    assert {checks[f"import {name}"].judgement for name in ("torch", "torchvision", "cv2", "wandb")} == {"skip"}


def test_nms_is_really_called() -> None:
    came = {"name": "torchvision", "imported": True, "seconds": 1.0, "version": "0.29"}
    for answer, judgement in (
        ({"nms": [0, 2]}, "ok"),
        ({"nms": [0]}, "fail"),
        ({"nms": None, "error": {"type": "RuntimeError", "message": "no kernel"}}, "fail"),
    ):
        *_, check = check_packages.judge_torchvision("PY", {**came, **answer}, {})
        assert (check.name, check.judgement) == ("torchvision.ops.nms", judgement)
        assert check.cause == (None if judgement == "ok" else "build.torchvision")
