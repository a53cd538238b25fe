"""Step 6: does the device compute, and compute right? From one allocation to a training step in fp32 and bf16."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_driver import no_gpu
from ocrlab.hardware.doctor.check_imports import torch_facts, torchless
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok
from ocrlab.records import Check

CAUSES = (  # what a rung says when it fails -> cause, what to do; the first that is found
    (r"no kernel image|invalid device function", "build.arch", "uv pip install -U --torch-backend=auto torch"),
    (r"out of memory", "gpumem.foreign", "nvidia-smi names who holds the memory"),
    (r"busy or unavailable", "driver.device_busy", "nvidia-smi names the process that has the GPU for itself"),
    (r"uncorrectable ECC|NVLink error|fallen off", "hw.gpu", "dmesg | grep -i xid; nvidia-smi -q -d ECC"),
    (r"CUDNN_STATUS|CUBLAS_STATUS|cudnn", "build.cuda_libraries", "env -u LD_LIBRARY_PATH ocrlab doctor"),
    (r"illegal memory access", "kernel.illegal_address", "dmesg | grep -i xid; lower the clocks: nvidia-smi -lgc 1200"),
    (r"illegal instruction", "kernel.illegal_instruction",
     "dmesg | grep -i xid; lower the clocks: nvidia-smi -lgc 1200"),
    (r"unspecified launch failure", "kernel.launch_failure", "dmesg | grep -i xid"),
    (r"differ|wrong", "hw.gpu", "again with lower clocks: sudo nvidia-smi -lgc 1200; then dcgmi diag -r 3"),
)  # fmt: skip
SURFACED = (
    "a CUDA error is told at the next call that waits: .cpu() before .item() cannot avoid an access that already "
    "happened; CUDA_LAUNCH_BLOCKING=1 names the call"
)


def asks(options: Options) -> list[Probe]:
    """Return the asks of step 6; a first convolution on a GPU loads cuDNN for up to 20 s from a cold disk."""
    probe = PROBES / "smoke_test.py"
    return [
        Probe(6, "smoke test: CPU", probe, "ladder", lambda a, f: judge("smoke test: CPU", a), 60, {"device": "cpu"},
            20, after=("import torch", "driver"), skip=mute, hang="hang.deadlock"),
        Probe(6, "smoke test: GPU", probe, "ladder", lambda a, f: judge("smoke test: GPU", a), 90, {"device": "cuda:0"},
            30, after=("driver", "import torch", "torch and the GPU"), skip=blind, hang="hang.gpu_kernel"),
    ]  # fmt: skip


def mute(facts: Facts) -> str | None:
    """Return why the processor cannot be tried: torch's backward asks a driver for its GPUs, used or not."""
    if "driver" not in facts and not torchless(facts):
        return "the driver did not answer, and torch's backward pass asks it on the CPU too: it would not return"
    return torchless(facts)


def blind(facts: Facts) -> str | None:
    """Return why there is no GPU to climb on."""
    why = torchless(facts) or (None if torch_facts(facts).get("hip") else no_gpu(facts))
    return why if why or torch_facts(facts).get("devices") else "torch sees no GPU, see step 4"


def judge(label: str, answers: Answers) -> Iterator[Check]:
    """Yield the finding on a ladder: how far it was climbed."""
    rungs: list[dict[str, Any]] = [answer for answer in answers if "rung" in answer]
    if not rungs:
        yield fail(label, "no rung was climbed", "an allocation", "ocrlab doctor")
        return
    broken = [rung for rung in rungs if not rung["ok"]]
    done = [rung["rung"] for rung in rungs if rung["ok"]]
    if not broken:
        seconds = sum(rung["seconds"] for rung in rungs)
        yield ok(
            label, f"{len(rungs)} of {len(rungs)} rungs, to a convolution step in fp32 and bf16, in {seconds:.1f} s"
        )
        return
    first = broken[0]
    cause, do = next(
        ((c, d) for pattern, c, d in CAUSES if re.search(pattern, first["error"])), (None, "ocrlab doctor")
    )
    observed = f"fails at {first['rung']}: {first['error'].splitlines()[0]}; before it {len(done)} rungs were climbed"
    if "CUDA error" in first["error"]:
        observed += f". Note: {SURFACED}"
    yield fail(label, observed, "every result is the CPU's", do, None if label.endswith("CPU") else cause)
