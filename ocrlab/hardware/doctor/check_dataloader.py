"""Step 10, first half: a DataLoader with two workers, by fork and by spawn."""

from __future__ import annotations

from collections.abc import Iterator

from ocrlab.hardware.doctor.check_imports import torchless
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, warn
from ocrlab.records import Check

SLOW = 30.0  # seconds; a spawned worker imports torch again
CAUSES = {"fork": "loader.fork_deadlock", "spawn": "loader.hang_sample"}


def asks(options: Options) -> list[Probe]:
    """Return the asks of the loader; a spawned worker imports torch anew, from a cold disk in half a minute."""
    return [
        Probe(10, f"DataLoader by {method}", PROBES / "dataloader_probe.py", "batches", judge, 60, {"method": method},
            15, after=("import torch",), skip=torchless, hang=CAUSES[method], crash="loader.worker_crash")
        for method in ("fork", "spawn")
    ]  # fmt: skip


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the finding on one round trip."""
    [result] = [answer for answer in answers if "same" in answer]
    label, observed = (
        f"DataLoader by {result['method']}",
        f"{result['batches']} batches of 2 workers in {result['seconds']:.1f} s",
    )
    if not result["same"]:
        need = "the batches that were sent"
        yield fail(label, f"{observed}, and they differ from what was sent", need, "check the memory: memtest86+", None)
    elif result["seconds"] > SLOW:
        do = "install the environment on a local disk; persistent_workers=True"
        yield warn(label, observed, f"less than {SLOW:.0f} s", do)
    else:
        yield ok(label, observed)
