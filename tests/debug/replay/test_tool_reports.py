"""What compute-sanitizer reports, in the forms of its versions, and what anomaly mode says."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ocrlab.debug.replay import recorded_step, replay_summary, tool_reports, variants
from ocrlab.debug.replay.trial import TrialResult, run_variant

ROOT = Path(__file__).parents[3]
NEW = """========= COMPUTE-SANITIZER
epoch 1, loss 0.3
========= Invalid __global__ read of size 4 bytes
=========     at void gather<float>(const float *, const long *, int)+0x1a0 in scan.cu:61
=========     by thread (65,0,0) in block (2,0,0)
=========     Access to 0x7bd889c03044 is out of bounds
=========     and is 3,141 bytes after the nearest allocation at 0x7bd889c02000 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: gather_cuda(at::Tensor) [0xacd4] in scan.so
=========
========= Invalid __global__ read of size 4 bytes
=========     at void gather<float>(const float *, const long *, int)+0x1a0 in scan.cu:61
=========     by thread (66,0,0) in block (2,0,0)
=========     Access to 0x7bd889c03048 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call
=========
========= ERROR SUMMARY: 3 errors
"""
OLD = """========= COMPUTE-SANITIZER
========= Invalid __shared__ write of size 8 bytes
=========     at 0x160 in demo.cu:6:unaligned_kernel(void)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x401 is misaligned
=========
========= Out-of-range Shared or Local Address
=========     at 0x148 in spill(int*)
=========     by thread (0,0,0) in block (1,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Read access at sum(int *)+0x10 in sum.cu:3
=========     and Write access at sum(int *)+0x20 in sum.cu:4 [2 hazards]
=========
========= Error: Race reported between Write access at sum(float *, int)+0x580
=========     in sum.cu:25
=========     and Read access at sum(float *, int)+0x890 in sum.cu:31
=========     [4080 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
UNWRITTEN = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in memset.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= Barrier error detected. Divergent thread(s) in warp.
=========     at 0x2c8 in kernel(float *)
========= ERROR SUMMARY: 2 errors
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
ILLEGAL = {"kind": "exception", "exception": "RuntimeError: CUDA error: an illegal memory access was encountered"}


def test_a_report_names_kernel_line_thread_and_address() -> None:
    reports = tool_reports.parse_reports(NEW)
    assert [(report["times"], report["thread"], report["block"]) for report in reports] == [(2, "(65,0,0)", "(2,0,0)")]
    assert tool_reports.reports_text(reports) == (
        "Invalid __global__ read of size 4 bytes in kernel `void gather<float>(const float *, const long *, int)` at "
        "`scan.cu:61`, thread (65,0,0) of block (2,0,0), address 0x7bd889c03044 is out of bounds, 3,141 bytes after "
        "the nearest allocation at 0x7bd889c02000 of size 1,024 bytes, 1 more like it"
    )


def test_reports_of_older_versions_and_of_the_hardware_are_read() -> None:
    reports = tool_reports.parse_reports(OLD)
    assert [(report["what"], report["kernel"], report.get("file")) for report in reports] == [
        ("Invalid __shared__ write of size 8 bytes", "unaligned_kernel(void)", "demo.cu:6"),
        ("Out-of-range Shared or Local Address", "spill(int*)", None),
    ]
    assert tool_reports.reports_text(reports).endswith("address 0x401 is misaligned, and 1 other report")


def test_reports_of_races_of_memory_that_nobody_wrote_and_of_barriers_are_read() -> None:
    _, race = tool_reports.parse_reports(RACE)
    assert tool_reports.reports_text([race]) == (
        "Error: Race reported between Write access in kernel `sum(float *, int)` at `sum.cu:25` "
        "and Read access at sum(float *, int)+0x890 in sum.cu:31"
    )
    unwritten, barrier = tool_reports.parse_reports(UNWRITTEN)
    assert (unwritten["kernel"], unwritten["address"]) == ("vectorAdd(int *)", "0x7f3c7ec000fc")
    expected = ("Barrier error detected. Divergent thread(s) in warp.", "kernel(float *)")
    assert (barrier["what"], barrier["kernel"]) == expected
    assert tool_reports.parse_reports(CLEAN) == tool_reports.parse_reports("Invalid __global__ read of size 4\n") == []
    long = tool_reports.parse_reports(OLD.replace("spill(int*)", "k<" + "at::native::f, " * 90 + ">"))[1]
    assert len(long["kernel"]) <= tool_reports.LONGEST


def trial_result(tmp_path: Path, text: str | None, **more: object) -> TrialResult:
    if text is not None:
        (tmp_path / tool_reports.LOGS.format(7)).write_text(text)
    return tool_reports.add_reports(TrialResult(variants.MEMCHECK, **more), tmp_path)  # type: ignore[arg-type]


def test_a_report_is_a_fault_and_is_reported_with_the_fault_that_it_explains(tmp_path: Path) -> None:
    shown = TrialResult(variants.BLOCKING, {**ILLEGAL, "step": 212, "path": "scan"})
    outcome = trial_result(tmp_path, NEW, error_text="ended as failed, exit status 86")
    assert outcome.error_text == "" and outcome.fault is not None and outcome.fault["kind"] == "report"
    (sentence,) = replay_summary._apart([shown, outcome])
    assert sentence.startswith(
        "compute-sanitizer reports Invalid __global__ read of size 4 bytes in kernel `void gather"
    )
    assert variants.settles(outcome.variant, ILLEGAL, outcome.fault)
    assert "Invalid __global__ read" in replay_summary.rows([shown, outcome])[2][1]
    raised = trial_result(tmp_path, NEW, fault=dict(ILLEGAL))
    assert raised.fault is not None and raised.fault["kind"] == "exception" and raised.fault["report"]
    assert (
        replay_summary._apart([shown, raised]) == [sentence] and replay_summary.decided([shown, raised]) is shown.fault
    )
    assert trial_result(tmp_path, RACE).fault["report"][0]["what"].startswith("Error")  # type: ignore[index]


STACK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at illegal(float *, int)+0xb0
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x8064a297a800 is out of bounds
=========     and is 1,099,374,765,569 bytes after the nearest allocation at 0x7f64aac00000 of size 512 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch_illegal [0x145d] in kernels.so
=========         Host Frame: forward in scan.py:4
=========         Host Frame: apply in function.py:596
=========         Host Frame: forward in train.py:3
=========         Host Frame: <module> in train.py:6
=========
========= ERROR SUMMARY: 1 error
"""


def test_the_line_that_launched_a_kernel_is_the_innermost_of_the_program_itself(tmp_path: Path) -> None:
    program = tmp_path / "program"
    (program / "ops").mkdir(parents=True)
    (program / "train.py").write_text("class Net:\n    def forward(self):\n        pass\n\n\nNet().forward()\n")
    (program / "ops" / "function.py").write_text("def apply():\n    pass\n")
    outcome = tool_reports.add_reports(_logged(tmp_path / "a", STACK), tmp_path / "a", [program])
    line = f"{program / 'train.py'}:3 forward"
    assert outcome.fault is not None and outcome.fault["line"] == line, "a namesake has no such function at that line"
    assert tool_reports.reports_text(outcome.fault["report"]).endswith(f"of size 512 bytes, launched at `{line}`")
    assert json.dumps(outcome.fault) and "frames" not in outcome.fault["report"][0]
    (program / "ops" / "scan.py").write_text("class Scan:\n\n    def forward(x):\n        launch(x)\n")
    outcome = tool_reports.add_reports(_logged(tmp_path / "b", STACK), tmp_path / "b", [program])
    assert outcome.fault is not None and outcome.fault["line"] == f"{program / 'ops' / 'scan.py'}:4 forward"
    outcome = tool_reports.add_reports(_logged(tmp_path / "c", STACK), tmp_path / "c", [tmp_path / "gone"])
    assert outcome.fault is not None and "line" not in outcome.fault


def _logged(place: Path, text: str) -> TrialResult:
    place.mkdir()
    (place / tool_reports.LOGS.format(7)).write_text(text)
    return TrialResult(variants.MEMCHECK)


def test_a_tool_that_reports_nothing_is_believed_only_where_it_ran(tmp_path: Path) -> None:
    shown = TrialResult(variants.BLOCKING, dict(ILLEGAL))
    clean = trial_result(tmp_path, CLEAN)
    assert not clean.error_text and replay_summary._apart([shown, clean]) == [
        "does not happen under compute-sanitizer",
        "compute-sanitizer reports nothing",
    ]
    assert trial_result(tmp_path, CLEAN, fault=dict(ILLEGAL)).fault == ILLEGAL
    refused = trial_result(
        tmp_path, CLEAN.replace("========= E", "========= Error: Device not supported. Please\n========= E")
    )
    assert "Device not supported" in refused.error_text and replay_summary._apart([shown, refused]) == []
    assert tool_reports.NOTHING in trial_result(tmp_path, f"========= {tool_reports.NOTHING} API call\n").error_text
    (tmp_path / tool_reports.LOGS.format(7)).unlink()
    assert trial_result(tmp_path, None).error_text == "compute-sanitizer: it wrote no report"
    other = TrialResult(variants.CUDNN)
    assert (
        tool_reports.add_reports(other, tmp_path) is other
        and tool_reports.with_log_file(variants.CUDNN, tmp_path) is variants.CUDNN
    )


PROGRAM = """
import os, sys, torch
from torch import nn
from ocrlab.debug.recorder.loop_recorder import recording
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with recording(sys.argv[1], net, optimizer) as rec:
    for x in rec.batches([torch.ones(2, 2)] * 3):
        rec.loss(net(x).sum()).backward()
        optimizer.step()
print("caching", os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"))
"""
TOOL = """#!/bin/sh
while [ "$1" != --log-file ]; do shift; done
log=$(printf %s "$2" | sed "s/%p/$$/")
shift 2
"$@"
cp "$REPORT" "$log"
exit 86
"""


def test_what_the_tool_reports_of_a_step_that_goes_well_is_a_fault(tmp_path, monkeypatch):
    program, tool, run = tmp_path / "train.py", tmp_path / "bin" / "compute-sanitizer", tmp_path / "run"
    program.write_text(PROGRAM)
    tool.parent.mkdir()
    tool.write_text(TOOL)
    tool.chmod(0o755)
    (tmp_path / "report.txt").write_text(NEW)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, program, run], env=environment, cwd=tmp_path, check=True, timeout=120)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("REPORT", str(tmp_path / "report.txt"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert variants.MEMCHECK in variants.contrasts(ILLEGAL, on_gpu=True)
    about, where = recorded_step.find(run, 2), tmp_path / "cell"
    outcome = tool_reports.add_reports(
        run_variant(about, tool_reports.with_log_file(variants.MEMCHECK, where), where, 60.0), where
    )
    assert outcome.fault is not None and outcome.fault["report"][0]["file"] == "scan.cu:61" and not outcome.error_text
    fault = replay_summary.record(about, [outcome], "", 1.0)["cells"][0]["fault"]
    assert json.loads(json.dumps(fault))["report"][0]["times"] == 2


ANOMALY = """
import torch

def length(x):
    return torch.where(x > 0, x.sqrt(), x)

x = torch.zeros(2, requires_grad=True)
with torch.autograd.set_detect_anomaly(True):
    length(x).sum().backward()
"""


def test_the_line_of_the_forward_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(ANOMALY)
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    (tmp_path / "output.txt").write_text(ended.stderr)
    fault = {"kind": "nonfinite", "phase": "backward", "tensor": "gradient", "value": "NaN"}
    outcome = tool_reports.add_forward_line(TrialResult(variants.ANOMALY, dict(fault)), tmp_path)
    assert outcome.fault is not None and outcome.fault["forward"] == f"{program}:5 length", ended.stderr
    (sentence,) = replay_summary._apart([TrialResult(variants.TRACED, fault), outcome])
    assert sentence == f"anomaly mode names `SqrtBackward0`, made in the forward at `{program}:5 length`"
    (tmp_path / "output.txt").write_text("RuntimeError: Function 'SqrtBackward0' returned nan values")
    silent = tool_reports.add_forward_line(TrialResult(variants.ANOMALY, dict(fault)), tmp_path)
    assert replay_summary._apart([TrialResult(variants.TRACED, fault), silent]) == ["still happens under anomaly mode"]
    assert tool_reports.add_forward_line(TrialResult(variants.TRACED, dict(fault)), tmp_path).fault == fault
