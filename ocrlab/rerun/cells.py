"""The cells of a replay's matrix: what each changes, what it would tell, and which one is worth running next.

Sources: the CUDA C++ programming guide (CUDA_LAUNCH_BLOCKING), PyTorch's notes on CUDA semantics
(PYTORCH_NO_CUDA_MEMORY_CACHING), its CUDA stream sanitizer (TORCH_CUDA_SANITIZER), NVIDIA's Compute Sanitizer.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ocrlab.flight.ring import Step

LIBRARY_OPS = re.compile(r"conv|mm\b|addmm|linear|matmul|batch_norm|pool|relu|softmax|mkldnn|bmm")
EARLIER = (8, 200)  # steps that are looked at before one that began with bad weights, at least and at most
LOOKING = (20.0, 15.0)  # seconds for all of them, and times longer that a step takes when it is looked at
BEHIND = "after the last batch"  # in place of a phase
HALF = re.compile(r"\b(?:bf16|fp16)\b")


@dataclass(frozen=True)
class Cell:
    """One way to run the step again: its name, options for the process, variables, and `gone` in words."""

    name: str
    gone: str  # how the sentence goes on where the fault is not there
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()


TRACED = Cell("traced", "goes away when every operator is looked at: it depends on timing", {"trace": True})
AS_IT_WAS = Cell("as it was", "does not come again")
VALIDATION = Cell("whole validation", "was there before", {"trace": True, "validate": 0})
ALONE = "samples alone"  # its seconds come from the traced cell
FP32 = Cell("fp32", "goes away in fp32", {"trace": True, "fp32": True})
THREAD = Cell("one thread", "goes away with one thread", {"trace": True, "threads": 1}, {"OMP_NUM_THREADS": "1"})
MKLDNN = Cell("mkldnn off", "goes away without oneDNN", {"trace": True, "mkldnn": False})
ANOMALY = Cell("anomaly mode", "is not seen by anomaly mode", {"trace": True, "anomaly": True})
BLOCKING = Cell(
    "CUDA_LAUNCH_BLOCKING=1", "goes away with CUDA_LAUNCH_BLOCKING=1", {"trace": True}, {"CUDA_LAUNCH_BLOCKING": "1"}
)
SYNC = Cell("synchronised", "goes away with a synchronise after each module", {"sync": True})
CPU = Cell(
    "on the CPU",
    "goes away on the CPU",
    {"trace": True, "config": {"trainer.accelerator": "cpu"}},
    {"CUDA_VISIBLE_DEVICES": ""},
)
CUDNN = Cell("cuDNN off", "goes away without cuDNN", {"trace": True, "cudnn": False})
CACHING = Cell(
    "no caching allocator", "goes away without the caching allocator", {}, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
)
SANITIZER = Cell("stream sanitizer", "is no race between streams", {}, {"TORCH_CUDA_SANITIZER": "1"})
MEMCHECK = Cell(
    "compute-sanitizer", "is not seen by compute-sanitizer", {}, {}, ("compute-sanitizer", "--target-processes", "all")
)


def alone(seconds: float, fault: Mapping[str, Any] | None = None) -> Cell:
    """Return the cell in which each sample of the micro-batch of a fault is tried by itself, `seconds` for each."""
    like = {name: value for name, value in (fault or {}).items() if name in ("kind", "phase", "path", "exception")}
    options = {"trace": True, "alone": seconds, "micro": (fault or {}).get("micro"), "like": like, "threads": 1}
    return Cell(ALONE, "needs more than one sample", options, {"OMP_NUM_THREADS": "1"})


def earlier(number: int, seconds: float) -> Cell:
    """Return the cell that looks for what had spoilt the weights before step `number`, and for exceptions that the
    program has swallowed; a recorded step took `seconds`.
    """
    (least, most), (whole, times) = EARLIER, LOOKING
    steps = min(most, max(least, int(whole / times / max(seconds, 1e-3))))
    options = {"trace": True, "trace_from": max(0, number - steps), "swallowed": True}
    return Cell("steps before", "was there before", options)


def widened(before: Cell) -> Cell:
    """Return the cell that traces a step, with the steps before it as `before` does, all in one start."""
    return Cell(TRACED.name, TRACED.gone, before.options)


def uncounted(cell: Cell) -> Cell:
    """Return the same cell, in which the program's own counting begins anew: what it belongs to may not be there."""
    return replace(cell, name=f"{cell.name}, counting anew", options={**cell.options, "counters": False})


def begun(cell: Cell) -> Cell:
    """Return the same cell, run from the program's beginning on."""
    return replace(cell, name=f"{cell.name}, from the beginning")


def was_passed(fault: Mapping[str, Any], steps: Sequence[Step]) -> bool:
    """Tell whether a program failed at a step behind which the record has others: so it was not what had failed."""
    if fault.get("kind") != "exception" or fault.get("swallowed"):
        return False
    micro, number = fault.get("micro"), fault.get("step")
    return any(
        step.micro > micro if micro is not None else number is not None and step.number > number for step in steps
    )


def is_kept(fault: Mapping[str, Any]) -> bool:
    """Tell whether a value was bad when the first operator saw it and is none of the batch: the program had kept it."""
    return fault.get("kind") == "nonfinite" and fault.get("tensor") == "input"


def spoilt(fault: Mapping[str, Any]) -> bool:
    """Tell whether weights or state were wrong already when the step began, or the program failed behind its loop: the
    fault is an earlier one.
    """
    if fault.get("phase") == BEHIND:
        return True
    return bool(fault.get("before")) and str(fault.get("tensor", "")).startswith(("weight", "buffer", "optimiser"))


def first(cuda: bool) -> list[Cell]:
    """Return the cells that come first: where it happens. On a GPU operators are waited for where they are traced."""
    return [BLOCKING, AS_IT_WAS] if cuda else [TRACED]


def contrasts(fault: Mapping[str, Any], cuda: bool, compiled: bool = False) -> list[Cell]:
    """Return what may tell a fault apart, the most telling cell first; empty where its place already answers."""
    kind, half = fault.get("kind"), is_half(fault)
    if kind in ("target", "index", "data") or fault.get("before"):
        return []  # a value that was wrong before anything was computed is wrong everywhere
    if cuda:
        tools = [MEMCHECK] if shutil.which(MEMCHECK.wrapper[0]) else []
        precise = [FP32] if half else []
        return [CPU, *precise, CUDNN, SYNC, CACHING, SANITIZER, *tools]
    if kind == "nonfinite":
        unplaced = fault.get("phase") == "backward" and not fault.get("line")  # else it has nothing to add
        return ([FP32] if half else []) + ([ANOMALY] if unplaced else [])
    if kind in ("crash", "hang") and LIBRARY_OPS.search(str(fault.get("op") or "")):
        return [MKLDNN, THREAD]
    return [FP32] if half and kind == "crash" else []


def is_half(fault: Mapping[str, Any]) -> bool:
    """Tell whether a fault lies where numbers of 16 bits are computed with."""
    return bool(HALF.search(" ".join([*map(str, fault.get("inputs") or ()), str(fault.get("shape") or "")])))


def says(cell: Cell, fault: Mapping[str, Any] | None) -> bool:
    """Tell whether a cell was what it is called: a program that casts by itself computes in 16 bits with fp32 too."""
    return cell.name != FP32.name or fault is None or not is_half(fault)


def is_of_samples(fault: Mapping[str, Any]) -> bool:
    """Tell whether a fault may be that of a sample: it is none of what the model and the optimiser keep, and not one
    that all samples have.
    """
    if (
        fault.get("ahead")
        or is_kept(fault)
        or str(fault.get("tensor", "")).startswith(("weight", "buffer", "optimiser"))
    ):
        return False
    return fault.get("kind") != "data" and fault.get("phase") != "data" and not fault.get("everyone")


def wants_alone(fault: Mapping[str, Any], count: int, cuda: bool) -> bool:
    """Tell whether trying each sample by itself would say more: the fault does not show whose it is."""
    if (
        cuda
        or count < 2
        or (fault.get("kind") == "target" and not fault.get("guessed"))
        or (fault.get("phase") in ("validation", BEHIND) and fault.get("micro") is None)  # its batch was never ours
        or not is_of_samples(fault)
    ):
        return False
    samples: Sequence[int] | None = fault.get("samples")
    return samples is None or len(samples) == count or bool(fault.get("guessed"))
