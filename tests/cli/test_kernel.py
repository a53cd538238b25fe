"""`ocrlab kernel`: its three questions, and wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ocrlab.cli import main


def test_a_broken_limit_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "--block", "32,64", "--capability", "8.6"]) == 1
    out = capsys.readouterr().out
    assert "threads per block" in out
    assert "at most 1024" in out
    assert main(["kernel", "--block", "32,32", "--capability", "sm_86"]) == 0


def test_limits_alone_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "--capability", "9.0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limits"]["shared_per_block"] == 227 * 1024


def test_the_compilers_figures_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "build.log"
    log.write_text(
        "ptxas info    : Compiling entry function 'k' for 'sm_86'\n"
        "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 128 registers, 384 bytes smem, 380 bytes cmem[0]\n"
    )
    assert main(["kernel", "--block", "1024", "--ptxas", str(log), "--capability", "8.6"]) == 1
    out = capsys.readouterr().out
    assert "131072: cudaErrorLaunchOutOfResources (701)" in out
    assert "8 bytes of registers live in local memory" in out


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "--block", "1,2,3,4", "--capability", "8.6"]) == 2
    assert main(["kernel", "--block", "-1", "--capability", "8.6"]) == 2
    assert main(["kernel", "--capability", "1.0"]) == 2
    assert main(["kernel", "--ncu", str(tmp_path / "none.csv")]) == 2
    assert "none.csv cannot be read" in capsys.readouterr().err
