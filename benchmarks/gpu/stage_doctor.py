"""Stage A: the doctor beside a real driver, and what nvidia-smi and torch say of the same card."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from stage import ROOT, Stage

FAKE_DRIVER = ROOT / "tests" / "hardware" / "doctor" / "fake_libcuda.c"
SLOW = 10.0  # seconds of one check that a person would notice


def run(stage: Stage) -> None:
    """Run the doctor, and compare what it says with the driver's own tools."""
    variables = fake_driver(stage.folder) if stage.dry_run else {}
    done = stage.child(["-m", "ocrlab", "doctor", "--json", "--runs", stage.folder / "runs"], **variables)
    report = done.json()
    checks = report.get("checks", [])
    limit = "0 (ok or warn), every check answers"
    stage.row("doctor", f"status {report.get('status')}, exit status {done.status}, {done.seconds:.0f} s", limit,
              done.status == 0 and bool(checks))  # fmt: skip
    for check in checks:
        if check["judgement"] != "ok" or check["seconds"] > SLOW or check["step"] in (4, 5):
            text = f"{check['judgement']}: {check['seen']} ({check['seconds']:.1f} s)"
            stage.row(f"doctor, {check['name']}", text)
    everything = " ".join(check["seen"] for check in checks)
    for what, expected in driver_facts(stage).items():
        stage.row(f"doctor names the {what}", f"{expected}: {'yes' if expected in everything else 'no'}", "yes",
                  expected in everything)  # fmt: skip


def driver_facts(stage: Stage) -> dict[str, str]:
    """Return name and driver version by nvidia-smi, and name and CUDA version by torch."""
    facts: dict[str, str] = {}
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout
        facts["card (nvidia-smi)"], facts["driver (nvidia-smi)"] = answer.splitlines()[0].split(", ")
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        stage.row("nvidia-smi", f"{type(error).__name__}: {error}")
    code = "import torch; print(torch.cuda.get_device_name(0)); print(torch.version.cuda)"
    answered = stage.child(["-c", code], 60).out.splitlines()
    if len(answered) == 2:
        facts["card (torch)"], facts["CUDA of torch"] = answered
    return facts


def fake_driver(folder: Path) -> dict[str, str]:
    """Build the libcuda of the tests, where there is a compiler; returns the variable that puts it first."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not FAKE_DRIVER.exists():
        return {}
    library = folder / "driver" / "libcuda.so.1"
    library.parent.mkdir(exist_ok=True)
    words = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(FAKE_DRIVER)]
    subprocess.run([compiler, *words], check=True, timeout=60)
    return {"LD_LIBRARY_PATH": str(library.parent)}
