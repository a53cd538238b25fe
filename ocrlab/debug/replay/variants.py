"""The variants of a replay's matrix: what each changes, what it would tell, and which one is worth running next.

Sources: the CUDA C++ programming guide (CUDA_LAUNCH_BLOCKING), PyTorch's CUDA stream sanitizer (TORCH_CUDA_SANITIZER).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.replay import fault_match

LIBRARY_OPS = re.compile(r"conv|mm\b|addmm|linear|matmul|batch_norm|pool|relu|softmax|mkldnn|bmm")
EARLIER = (8, 200)  # steps that are looked at before one that began with bad weights, at least and at most
LOOKING = (20.0, 15.0)  # seconds for all of them, and times longer that a step takes when it is looked at
AFTER_LOOP = "after the last batch"  # in place of a phase
BEFORE_STEP = "before the step"  # the same, of a step that began in a dead CUDA context
HALF = re.compile(r"\b(?:bf16|fp16)\b")


@dataclass(frozen=True)
class Variant:
    """One way to run the step again: its name, the way in words, options for the process, and variables."""

    name: str
    label: str  # goes away ..., stays ..., fails otherwise ...; none where the answer does not mention it
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""  # added to the answer if the fault goes away


TIMING = "it depends on timing"
TRACED = Variant("traced", "when every operator is traced", {"trace": True}, remark=TIMING)
AS_IT_WAS = Variant("as it was", "as the program was")
VALIDATION = Variant(
    "whole validation", "", {"trace": True, "validate": 0}, remark="it was there before the validation"
)
ALONE = "samples alone"  # its seconds come from the traced variant
FP32 = Variant("fp32", "in fp32", {"trace": True, "fp32": True})
THREAD = Variant("one thread", "with one thread", {"trace": True, "threads": 1}, {"OMP_NUM_THREADS": "1"})
MKLDNN = Variant("mkldnn off", "without oneDNN", {"trace": True, "mkldnn": False})
BLOCKING = Variant(
    "CUDA_LAUNCH_BLOCKING=1", "with CUDA_LAUNCH_BLOCKING=1", {"trace": True}, {"CUDA_LAUNCH_BLOCKING": "1"}, TIMING
)
CPU = Variant(
    "on the CPU",
    "on the CPU",
    {"trace": True, "config": {"trainer.accelerator": "cpu"}},
    {"CUDA_VISIBLE_DEVICES": ""},
)
CUDNN = Variant("cuDNN off", "without cuDNN", {"trace": True, "cudnn": False})
SANITIZER = Variant(
    "stream sanitizer", "under the stream sanitizer", {}, {"TORCH_CUDA_SANITIZER": "1"}, remark="no race is seen"
)
ALTERED = (FP32, THREAD, MKLDNN, CPU, CUDNN, SANITIZER)  # another fault may come first there, not the run's
SLOW = (CPU, SANITIZER)  # a hang there may only be slowness


def per_sample(seconds: float, fault: Mapping[str, Any] | None = None) -> Variant:
    """Return the variant in which each sample of the micro-batch of a fault is tried by itself, `seconds` for each."""
    like = {name: value for name, value in (fault or {}).items() if name in ("kind", "phase", "path", "exception")}
    options = {"trace": True, "alone": seconds, "micro": (fault or {}).get("micro"), "like": like, "threads": 1}
    return Variant(ALONE, "", options, {"OMP_NUM_THREADS": "1"})


def earlier(number: int, seconds: float, on_gpu: bool = False) -> Variant:
    """Return the variant that looks for what had spoilt the weights or the CUDA context before step `number`, and for
    exceptions that the program has swallowed; a recorded step took `seconds`.
    """
    (least, most), (whole, times) = EARLIER, LOOKING
    steps = min(most, max(least, int(whole / times / max(seconds, 1e-3))))
    options = {"trace": True, "trace_from": max(0, number - steps), "swallowed": True}
    return Variant("steps before", "", options, BLOCKING.environment if on_gpu else {})


def begun(variant: Variant) -> Variant:
    """Return the same variant, run from the program's beginning on."""
    return replace(variant, name=f"{variant.name}, from the beginning")


def was_passed(fault: Mapping[str, Any], steps: Sequence[Step], ended: int | None = None) -> bool:
    """Return whether a program failed at a step after which the record has others: so it was not what had failed.

    `ended` is the micro-batch in which an exception ended it, where one did: a NaN may be noticed later than it arose.
    """
    if (fault.get("kind") != "exception" and ended is None) or fault.get("swallowed"):
        return False
    micro, number = fault.get("micro") if ended is None else ended, fault.get("step")
    return any(
        step.micro > micro if micro is not None else number is not None and step.number > number for step in steps
    )


def is_carried_over(fault: Mapping[str, Any]) -> bool:
    """Return whether a bad value is older than the first operator and not of the batch: the program had stored it."""
    return fault.get("kind") == "nonfinite" and fault.get("tensor") == "input"


def spoilt(fault: Mapping[str, Any]) -> bool:
    """Return whether weights, state or the CUDA context were bad already when the step began, or the program failed
    after its loop: the fault is an earlier one.
    """
    if fault.get("phase") in (AFTER_LOOP, BEFORE_STEP):
        return True
    return bool(fault.get("before")) and str(fault.get("tensor", "")).startswith(("weight", "buffer", "optimizer"))


def contrasts(fault: Mapping[str, Any], on_gpu: bool) -> list[Variant]:
    """Return what may tell a fault apart, the most telling variant first; empty where its place already answers."""
    kind, is_value = fault.get("kind"), fault.get("kind") == "nonfinite"
    if kind in ("target", "index", "data") or fault.get("before"):
        return []  # a value that was wrong before anything was computed is wrong everywhere
    precise = [FP32] if is_half(fault) else []
    if on_gpu:  # a race between streams is not how an operator makes a bad value
        return [*precise, CPU, CUDNN, *([] if is_value and is_placed(fault) else [SANITIZER])]
    if kind in ("crash", "hang") and LIBRARY_OPS.search(str(fault.get("op") or "")):
        return [MKLDNN, THREAD]
    return precise if is_value or kind == "crash" else []


def is_placed(fault: Mapping[str, Any]) -> bool:
    """Return whether a fault has its module, or the operator and its line."""
    return bool(fault.get("path") or fault.get("module") or (fault.get("op") and fault.get("line")))


def settles(variant: Variant, fault: Mapping[str, Any], fault_there: Mapping[str, Any] | None) -> bool:
    """Return whether nothing more is to be asked about a fault, as a variant shows none, or what a kernel refused."""
    if fault_there is not None and fault_match.is_race(fault_there):
        return True
    if variant == CPU and (fault_match.of_cuda(fault) or fault.get("kind") == "crash"):  # nearly always gone on a CPU
        return fault_there is not None and bool(fault_match.of_cuda(fault)) and fault_match.names_value(fault_there)
    return fault_there is None and says(variant, None, fault)


def is_half(fault: Mapping[str, Any]) -> bool:
    """Return whether a fault lies where numbers of 16 bits are computed with."""
    return bool(HALF.search(" ".join([*map(str, fault.get("inputs") or ()), str(fault.get("shape") or "")])))


def says(variant: Variant, fault_there: Mapping[str, Any] | None, shown: Mapping[str, Any] | None = None) -> bool:
    """Return whether a variant was what it is called, and says something about the fault that was `shown`.

    A program that casts by itself computes in 16 bits with fp32 too, and one that asks for a GPU does nothing without.
    """
    if fault_there is None:  # a bad value after which the program goes on is seen only by a trace
        silent = shown is not None and shown.get("kind") == "nonfinite" and not shown.get("exception")
        return not silent or bool(variant.options.get("trace"))
    if variant == CPU and fault_match.wants_gpu(fault_there):
        return False
    if variant in SLOW and fault_there.get("kind") == "hang" and shown is not None and shown.get("kind") != "hang":
        return False
    return variant != FP32 or not is_half(fault_there)


def is_of_samples(fault: Mapping[str, Any]) -> bool:
    """Return whether a fault may be that of a sample: it is none of what the model and the optimizer keep, and not one
    that all samples have.
    """
    if (
        fault.get("ahead")
        or is_carried_over(fault)
        or (fault.get("from_weights") and fault.get("kind") == "nonfinite")  # made of nothing but weights
        or str(fault.get("tensor", "")).startswith(("weight", "buffer", "optimizer"))
    ):
        return False
    return fault.get("kind") != "data" and fault.get("phase") != "data" and not fault.get("everyone")


def wants_alone(fault: Mapping[str, Any], count: int, on_gpu: bool) -> bool:
    """Return whether trying each sample by itself would say more: the fault does not show whose it is."""
    if (
        on_gpu
        or count < 2
        or (fault.get("kind") == "target" and not fault.get("guessed"))
        or (fault.get("phase") in ("validation", AFTER_LOOP) and fault.get("micro") is None)  # its batch was never ours
        or not is_of_samples(fault)
    ):
        return False
    samples: Sequence[int] | None = fault.get("samples")
    return samples is None or len(samples) == count or bool(fault.get("guessed"))
