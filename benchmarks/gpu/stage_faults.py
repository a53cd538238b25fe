"""Stage B: real CUDA faults under `ocrlab watch`, and a replay where there is a record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from stage import Done, Stage, build_kernels, whole_card

HERE = Path(__file__).parent
SILENCE = 15.0  # seconds without progress that are a hang; a dry run's hang is known to be one
SURE = 0.8  # a wrong first cause with this confidence is worse than none


class Fault(NamedTuple):
    """A program of fault_programs.py, the causes that are right, and whether a replay must name the module."""

    name: str
    causes: tuple[str, ...]
    replayed: bool = False
    alone: bool = False  # it needs the whole memory of the card
    variables: tuple[tuple[str, str], ...] = ()


FAULTS = (
    Fault("illegal", ("kernel.illegal_address",), replayed=True),
    Fault("triton", ("kernel.illegal_address",)),
    Fault("misaligned", ("kernel.misaligned",), replayed=True),
    Fault("assert", ("data.index_range",), replayed=True),
    Fault("trap", ("kernel.illegal_instruction", "kernel.launch_failure")),  # 715 or 719, as the driver has it
    Fault("endless", ("hang.gpu_kernel",)),
    Fault("resources", ("kernel.launch_resources",)),
    Fault("sticky", ("data.index_range",), replayed=True),
    Fault("nan", ("num.nonfinite",), replayed=True),
    Fault("race", ("kernel.stream_race",), variables=(("TORCH_CUDA_SANITIZER", "1"),)),
    Fault("capacity", ("gpumem.capacity",), alone=True),
    Fault("fragmentation", ("gpumem.fragmentation",), alone=True),
    Fault("foreign", ("gpumem.foreign",), alone=True),
)
NEED_NVCC = ("illegal", "misaligned", "trap", "endless", "resources")
BRIEF = ("illegal", "endless", "sticky", "nan", "capacity")  # a brief run tries one fault of each kind


def run(stage: Stage) -> None:
    """Run the faults, those that need the whole card one after the other, and judge the causes."""
    library = build_kernels(stage)
    faults = [fault for fault in FAULTS if library or fault.name not in NEED_NVCC or stage.dry_run]
    faults = [fault for fault in faults if fault.name in BRIEF or not stage.brief]
    together = [fault for fault in faults if not fault.alone]
    with ThreadPoolExecutor(2 if stage.dry_run else 5) as pool:
        results = list(pool.map(lambda fault: watch(stage, fault, library), together))
    with whole_card(stage):
        results += [watch(stage, fault, library) for fault in faults if fault.alone]
    right = sum(result is True for result, _ in results)
    sure = sum(result is False and confidence >= SURE for result, confidence in results)
    stage.row("first cause right", f"{right} of {len(results)}", "10 of 12", right >= 10)
    stage.row("wrong and sure (0.8 or more)", str(sure), "0", sure == 0)


def watch(stage: Stage, fault: Fault, library: str) -> tuple[bool, float]:
    """Run one program under the watcher and replay it; returns whether the first cause is right, and its confidence."""
    record, incident = stage.folder / fault.name / "record", stage.folder / fault.name / "watched"
    silence = 5.0 if stage.dry_run and fault.name == "endless" else SILENCE
    words: list[str | Path] = ["-m", "ocrlab", "watch", "--run-dir", incident, "--silence", str(silence)]
    words += ["--on-hang", "kill", "--", sys.executable, HERE / "fault_programs.py", fault.name, record]
    words += ["--dry-run"] if stage.dry_run else []
    done = stage.child(words, 60, FAULT_KERNELS=library, **dict(fault.variables))
    verdict = read_verdict(incident)
    causes = verdict.get("causes") or []
    first, confidence = (causes[0]["id"], float(causes[0]["confidence"])) if causes else ("unknown", 0.0)
    correct = first in fault.causes
    text = f"{first} ({confidence:.2f}), status {done.status}, {done.seconds:.0f} s"
    text += f"; {causes[0]['explanation']}" if causes and causes[0].get("explanation") else ""
    stage.row(f"fault {fault.name}", text, " or ".join(fault.causes), correct, dry_run_too=fault.name != "endless")
    if fault.replayed and (fault.name == "illegal" or not stage.dry_run):
        replay(stage, fault, record, library)
    return correct, confidence


def read_verdict(folder: Path) -> dict[str, Any]:
    """Return the verdict of a watched run, {} where there is none."""
    path = folder / "incident" / "verdict.json"
    return Done(0, path.read_text(encoding="utf-8") if path.exists() else "", "", 0.0).json()


def replay(stage: Stage, fault: Fault, record: Path, library: str) -> None:
    """Replay the recorded step; the module, the operator and the sample must be named."""
    done = stage.child(["-m", "ocrlab", "replay", record, "--timeout", "60", "--json"], 75, FAULT_KERNELS=library)
    answer = done.json()
    place = answer.get("fault") or {}
    samples = place.get("names") or answer.get("samples") or []
    module, operator = place.get("path", "no module"), place.get("op") or place.get("function") or "no operator"
    text = f"module {module}, operator {operator}, {shown(samples)}; {done.seconds:.0f} s"
    correct = str(module).startswith("fusion") and "scan-13.png" in samples
    in_time = correct and (stage.dry_run or done.seconds <= 60)
    stage.row(f"replay of {fault.name}", text, "module fusion, scan-13.png, 60 s", in_time, dry_run_too=True)


def shown(samples: Sequence[str]) -> str:
    """Return the first samples as text."""
    return ", ".join(samples[:4]) or "no sample"
