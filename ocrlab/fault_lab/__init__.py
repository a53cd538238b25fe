"""The fault lab: programs that really fail, as a user's would, run in a child: `python -m ocrlab.fault_lab NAME`.

Nothing here is imported by what diagnoses, and nothing of what diagnoses is known here. torch is imported inside a
fault, where it needs it. A function is named after what its program wants to do: its name is in the stack.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from ocrlab.fault_lab import (
    checkpoint,
    compilation,
    data,
    dataloader,
    dataloader_limits,
    deadlocks,
    disk,
    distributed,
    gpu,
    healthy,
    imports,
    memory,
    native_code,
    notebook,
    numerics,
    resource_limits,
    shared_memory,
    signals,
    tracker,
)
from ocrlab.fault_lab.fault import Fault

FAMILIES: tuple[ModuleType, ...] = (
    *(imports, data, dataloader, dataloader_limits, native_code, memory, shared_memory, resource_limits, disk),
    *(checkpoint, deadlocks, numerics, distributed, tracker, notebook, signals, compilation, gpu, healthy),
)
FAULTS: dict[str, Fault] = {
    fault.name: replace(fault, family=family.__name__.rpartition(".")[2])
    for family in FAMILIES
    for fault in family.FAULTS
}
