"""From the events of torch.profiler to rows: each operator in each module, forward and backward, with its own time.

A backward function belongs to the module whose forward made it: both carry the same sequence number.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ocrlab.debug.instruments.profiler.module_ranges import PREFIX

BACKWARD = "autograd::engine::evaluate_function: "
STEP = "ProfilerStep"
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
COPIES = ("cudaMemcpy", "cudaMemcpyAsync")


@dataclass(frozen=True)
class Operator:
    """One operator in one module: seconds of its own over all profiled steps, on the host and on the device."""

    name: str
    module: str  # "" outside of every module
    phase: str  # forward, backward, optimizer, data, other
    calls: int
    host: float
    device: float
    share: float  # of the profiled time: of the device's where there is one, else of the host's
    shapes: str  # the inputs' most frequent ones


def operators(events: Sequence[Any], total: float, device: bool) -> list[Operator]:
    """Return the operators by their share; `total` are the seconds of the profiled steps."""
    modules: dict[int, str] = {}  # in whose forward an operator took a sequence number
    for event in events:
        if event.sequence_nr >= 0 and event.scope == 0 and not event.name.startswith(BACKWARD):
            module, phase = _module_and_phase(event.cpu_parent, modules)
            if phase == "forward":
                modules.setdefault(event.sequence_nr, module)
    groups: defaultdict[tuple[str, str, str], list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if not event.name.startswith((STEP, PREFIX)) and not on_device(event):
            spent = (event.self_cpu_time_total / 1e6, event.self_device_time_total / 1e6, _shapes(event))
            groups[(operator_name(event.name), *_module_and_phase(event, modules))].append(spent)
    rows = []
    for key, calls in groups.items():
        host, there = sum(call[0] for call in calls), sum(call[1] for call in calls)
        by_shape: Counter[str] = Counter()
        for host_seconds, device_seconds, shape in calls:
            by_shape[shape] += host_seconds + device_seconds  # type: ignore[assignment]
        share = (there if device else host) / total if total else 0.0
        rows.append(Operator(*key, len(calls), host, there, share, by_shape.most_common(1)[0][0]))
    return sorted(rows, key=lambda row: (-row.share, row.name))


def _module_and_phase(event: Any, modules: dict[int, str]) -> tuple[str, str]:
    """Return the module and the phase of an operator, by the events around it."""
    while event is not None:
        if event.name.startswith(PREFIX):
            return event.name.removeprefix(PREFIX), "forward"
        if event.name.startswith(BACKWARD) or event.scope == 1:
            return modules.get(event.sequence_nr, ""), "backward"
        if event.name.startswith("Optimizer."):
            return "", "optimiser"
        if event.name.startswith("enumerate(DataLoader)"):
            return "", "data"
        event = event.cpu_parent
    return "", "other"


def on_device(event: Any) -> bool:
    """Return whether an event is a kernel or a copy: its time is counted at the operator that launched it."""
    return "CPU" not in str(event.device_type)


def operator_name(name: str) -> str:
    """Return an operator's name without the prefix of autograd or torch.library."""
    if name.startswith("enumerate(DataLoader)"):
        return "next batch of the DataLoader"
    custom = re.fullmatch(r"GeneratedBackwardFor_(\w+?)_default", name)  # how torch.library calls an operator's forward
    return custom[1] if custom else name.removeprefix(BACKWARD)


def waiting_seconds(events: Iterable[Any]) -> float:
    """Return the seconds that the host spent in calls that wait for a CUDA device."""
    return sum(e.self_cpu_time_total for e in events if e.name in WAITS or e.name in COPIES) / 1e6


def busy_seconds(events: Iterable[Any]) -> float:
    """Return the seconds in which the device had work: kernels and copies, those that overlap counted once.

    A range of the profile (a module, the step) is mirrored on the device with the gaps between its kernels: not work.
    """
    work = (e for e in events if on_device(e) and not getattr(e, "is_user_annotation", False))
    spans = sorted((e.time_range.start, e.time_range.end) for e in work)
    total, end = 0.0, float("-inf")
    for start, stop in spans:
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e6


def is_compiled(events: Iterable[Any]) -> bool:
    """Return whether torch.compile's code ran."""
    return any("Torch-Compiled Region" in e.name or e.name.startswith("CompiledFunction") for e in events)


def _shapes(event: Any) -> str:
    """Return the shapes of an operator's input tensors."""
    shapes = [shape for shape in (event.input_shapes or []) if shape]
    return " ".join("×".join(str(size) for size in shape) for shape in shapes[:3] if not isinstance(shape[0], list))
