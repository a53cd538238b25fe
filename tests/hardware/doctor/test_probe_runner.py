"""A child can do no harm: whatever it does, its end is reported in time, and nothing of it is left."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware.doctor import failed_probe, probe_runner
from ocrlab.hardware.doctor.probe_runner import ProbeResult


@pytest.fixture
def run(planted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a function that runs a planted probe; afterwards nothing that bears our mark may live."""
    monkeypatch.setenv("OCRLAB_TESTED", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def call(function: str, deadline: float = 20, **more: Any) -> probe_runner.ProbeResult:
        return probe_runner.run(sys.executable, planted, function, more.pop("arguments", {}), deadline=deadline, **more)

    yield call
    limit = time.monotonic() + 5
    while left(tmp_path) and time.monotonic() < limit:
        time.sleep(0.01)
    assert left(tmp_path) == []


def left(place: Path) -> list[int]:
    """Return the processes that a child of this test has left behind."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"OCRLAB_TESTED={place}".encode() in (entry / "environ").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


def test_it_answers(run: Any) -> None:
    ran = run("answer", arguments={"number": 3})
    assert (ran.answer, ran.done, ran.ended, ran.code, ran.signal) == ({"told": {"number": 3}}, True, "itself", 0, None)


def test_an_illegal_instruction_is_named_with_its_library(run: Any) -> None:
    ran = run("illegal")
    assert ran.answer["illegal"]["code"].startswith("62f1fd48ffff")
    assert "Fatal Python error: Illegal instruction" in ran.errors
    observed, *_ = failed_probe.explain({**ran.answer["illegal"], "library": "/x/libtorch_cpu.so"}, [], {"avx2"})
    assert "62 f1 fd 48 ff ff" in observed and "in libtorch_cpu.so+" in observed and "lacks avx512f" in observed


@pytest.mark.parametrize(("code", "kind", "flag"), [
    ("62f17c4858c1", "AVX-512 or AVX10", "avx512f"),  # vaddps zmm0, zmm0, zmm1
    ("c5fc58c1", "AVX", "avx"),  # vaddps ymm0, ymm0, ymm1
    ("c4e27518c0", "AVX2", "avx2"),  # vbroadcastss ymm0, xmm0
    ("c4e275b8c2", "FMA", "fma"),  # vfmadd231ps
    ("c4e2fbf7c0", "BMI", "bmi2"),  # shrx
    ("c4e27850c1", "AVX-VNNI", "avx_vnni"),  # vpdpbusd
    ("c4e27849c0", "AMX", "amx_tile"),  # tilerelease
    ("f3480fb8c1", "POPCNT", "popcnt"),
    ("660f3817c0", "SSE4", "sse4_1"),  # ptest
    ("f20f38f1c1", "SSE4.2", "sse4_2"),  # crc32
    ("660f38dcc1", "AES", "aes"),  # aesenc
    ("0f0b", "ud2", ""),
    ("90", "unknown", ""),
])  # fmt: skip
def test_the_instruction_set_of_an_instruction(code: str, kind: str, flag: str) -> None:
    assert failed_probe.name(bytes.fromhex(code)) == (kind, flag)


def test_a_sleeping_hang_ends_when_idle_and_says_where(run: Any) -> None:
    ran = run("hang", deadline=60, idle=1)
    assert ran.ended == "idle"
    assert ran.seconds < 30
    assert "in hang" in ran.errors


def test_a_busy_hang_ends_at_the_deadline(run: Any) -> None:
    ran = run("spin", deadline=3, idle=1)
    assert ran.ended == "deadline"
    assert "in spin" in ran.errors


def test_the_whole_family_of_a_hanging_child_is_ended(run: Any) -> None:
    assert run("hang_with_family", deadline=1).ended == "deadline"


def test_an_orphan_that_holds_the_pipes_does_not_hold_the_report_up(run: Any) -> None:
    ran = run("orphan_holds_the_pipes")
    assert (ran.done, ran.ended, ran.code) == (True, "itself", 0)


def test_a_gigabyte_of_output_fills_nothing(run: Any) -> None:
    ran = run("flood")
    assert ran.ended == "flood"
    assert probe_runner.FLOOD < ran.printed < 2 * probe_runner.FLOOD
    assert len(ran.out) <= probe_runner.TAIL


def test_an_interpreter_that_is_none(planted: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        ran = probe_runner.run(str(path), planted, "answer", {}, deadline=5)
        assert ran.ended == "unstarted"
    text = tmp_path / "text"
    text.write_text("no program\n")
    text.chmod(0o755)
    assert probe_runner.run(str(text), planted, "answer", {}, deadline=5).ended == "unstarted"


def test_the_childs_world(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    ran = run("environment", arguments={"names": ["WANDB_MODE", "PYTHONPATH"]})
    answer = ran.answer
    assert answer["told"] == {"WANDB_MODE": "disabled", "PYTHONPATH": str(tmp_path / "mine")}
    assert answer["path"][:2] == [str(tmp_path), str(tmp_path / "mine")]  # as for a script in this folder
    assert not any(place.endswith("ocrlab/hardware/doctor") for place in answer["path"])
    assert answer["limits"][0] == 0  # no core files
    answer = run("environment", arguments={"names": []}, own=True).answer
    assert str(tmp_path) not in answer["path"] and str(tmp_path / "mine") not in answer["path"]
    assert str(probe_runner.ROOT) in answer["path"]


def test_a_module_of_this_folder_does_not_break_the_child_itself(run: Any, tmp_path: Path) -> None:
    for name in ("json", "traceback", "signal", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    assert run("answer").done


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_other_pythons_understand_it_and_the_probes(version: str) -> None:
    import ast

    probes = Path(probe_runner.ROOT, "ocrlab", "hardware")
    for file in (
        probe_runner.BOOT,
        *(probes / f"{name}.py" for name in ("torch_probe", "installed_packages")),
    ):
        ast.parse(file.read_text(encoding="utf-8"), feature_version=tuple(map(int, version.split("."))))


DUMP = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/site/packages/torch/nn/modules/conv.py", line 7 in forward
  File "/site/packages/torch/nn/modules/module.py", line 9 in _call
  File "<frozen importlib._bootstrap>", line 3 in _load
  File "/x/ocrlab/hardware/doctor/probe_child.py", line 4 in main
"""


def test_a_signal_with_its_stage_and_frame(ask: Any) -> None:
    ran = ProbeResult({"at": "a convolution"}, code=-11, errors=DUMP)
    [check] = failed_probe.checks(ask("answer", "smoke test"), ran)
    assert check.observed.startswith("died of SIGSEGV at a convolution")
    assert "forward (nn/modules/conv.py:7)" in check.observed


@pytest.mark.parametrize("cause", failed_probe.REMEDIES)
def test_a_hang_with_a_cause_has_its_remedy(cause: str, ask: Any) -> None:
    [check] = failed_probe.checks(ask("answer", hang=cause), ProbeResult(ended="deadline", seconds=9))
    assert (check.cause, check.do) == (cause, failed_probe.REMEDIES[cause])
