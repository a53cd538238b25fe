"""A torch that is missing, raises, hangs, floods or dies at import is a finding with a cause; the rest is reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware.doctor import check_imports, check_packages, doctor_job
from ocrlab.hardware.doctor.check_spec import PROBES, Options, Probe
from ocrlab.records import Check

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
def test_a_broken_torch(source: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "torch"
    place.mkdir()
    (place / "__init__.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    [ask, vision, *_] = check_imports.asks(options)
    quick = [Probe(**{**vars(ask), "idle": 1.0, "after": ()}), Probe(**{**vars(vision), "after": ("import torch",)})]
    checks = climbed(quick, options)
    cause, observed, do = BROKEN[source]
    check = checks["import torch"]
    assert (check.judgement, check.cause) == ("fail", cause)
    assert observed in check.observed
    assert do in check.do
    assert checks["import torchvision"].judgement == "skip"


@pytest.mark.parametrize("forbidden", ["1", ""])
def test_files_that_are_compiled_at_each_start(
    forbidden: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "a b" / "torch"
    package.mkdir(parents=True)
    for number in range(210):
        (package / f"part{number}.py").touch()
    parts = ", ".join(f"part{number}" for number in range(210))
    (package / "__init__.py").write_text(f"__version__ = '9.9'\nfrom torch import {parts}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", forbidden)
    monkeypatch.chdir(tmp_path)
    ask = Probe(
        2,
        "import torch",
        PROBES / "import_probe.py",
        "imported",
        check_imports.asks(options)[0].judge,
        20,
        {"name": "torch"},
    )
    check = climbed([ask], options)["import torch"]
    if forbidden:
        assert (
            check.judgement == "warn" and "211 files" in check.observed and "PYTHONDONTWRITEBYTECODE" in check.observed
        )
        assert check.do.endswith(f"-m compileall -q '{package.parent}'")
    else:
        assert (check.judgement, check.observed[:10]) == ("ok", "torch 9.9 ")


def test_compiled_files_that_cannot_be_written_go_elsewhere() -> None:
    answer = {
        "name": "torch",
        "version": "9.9",
        "seconds": 3.0,
        "compiled": 900,
        "stored": True,
        "file": "/x/torch/a.py",
    }
    [check] = check_imports.judge("torch", [{"imported": True, **answer}], "PY")
    assert check.judgement == "warn" and "could not write" in check.observed
    assert "PYTHONPYCACHEPREFIX" in check.do and "compileall" not in check.do


def test_torch_that_is_not_there(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')  # without site-packages
    bare.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    checks = climbed([*check_packages.asks(options), *check_imports.asks(options)], Options(str(bare), tmp_path))
    assert checks["torch installed"].judgement == "fail"
    assert "-m pip install torch" in checks["torch installed"].do
    assert {checks[f"import {name}"].judgement for name in ("torch", "torchvision", "cv2", "wandb")} == {"skip"}


def error(kind: str, message: str) -> Check:
    return check_imports.broken("import x", "x", {"type": kind, "message": message, "where": "a/b.py:3"}, "PY")


@pytest.mark.parametrize(
    ("kind", "message", "cause", "do"),
    [
        ("ImportError", "libGL.so.1: cannot open shared object file: No such file", "build.system_libs", "headless"),
        ("ImportError", "libgthread-2.0.so.0: cannot open shared object file", "build.system_libs", "libglib2.0-0"),
        ("ImportError", "libcudnn.so.9: cannot open shared object file", "build.cuda_libraries", "LD_LIBRARY_PATH"),
        ("OSError", "libcublasLt.so.12: cannot open shared object file", "build.cuda_libraries", "reinstall torch"),
        ("ImportError", "/lib/libm.so.6: version `GLIBC_2.38' not found", "build.system_libs", "LD_LIBRARY_PATH"),
        ("ImportError", "libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "build.system_libs", "libstdcxx"),
        ("ImportError", "_C.so: undefined symbol: _ZN2at4_ops", "build.abi", "reinstall x"),
        ("AttributeError", "_ARRAY_API not found", "build.abi", "numpy<2"),
        ("RuntimeError", "operator torchvision::nms does not exist", "build.torchvision", "torch torchvision"),
        ("ModuleNotFoundError", "No module named 'sympy.core'", None, "PY -m pip install sympy"),
        ("AttributeError", "partially initialized module 'x' has no attribute 'y'", None, "rename"),
    ],
)
def test_what_an_import_error_says(kind: str, message: str, cause: str | None, do: str) -> None:
    check = error(kind, message)
    assert (check.judgement, check.cause) == ("fail", cause)
    assert do in check.do


def test_nms_is_really_called() -> None:
    came = {"name": "torchvision", "imported": True, "seconds": 1.0, "version": "0.29"}
    for answer, judgement in (
        ({"nms": [0, 2]}, "ok"),
        ({"nms": [0]}, "fail"),
        ({"nms": None, "error": {"type": "RuntimeError", "message": "no kernel"}}, "fail"),
    ):
        *_, check = check_imports.torchvision([came, answer], {}, "PY")
        assert (check.name, check.judgement) == ("torchvision.ops.nms", judgement)
        assert check.cause == (None if judgement == "ok" else "build.torchvision")


def test_a_slow_import_is_a_warning() -> None:
    came: dict[str, Any] = {"name": "cv2", "imported": True, "seconds": 99.0, "version": "5"}
    [check] = check_imports.judge("cv2", [came], "PY")
    assert check.judgement == "warn"
