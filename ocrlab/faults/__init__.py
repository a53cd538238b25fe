"""The fault lab: programs that really fail, as a user's would; only ever run in a child: python -m ocrlab.faults NAME.

Nothing here is imported by what diagnoses, and nothing of what diagnoses is known here. torch is imported inside a
fault, where it needs it. A function is named after what its program wants to do: its name is in the stack.
"""

from __future__ import annotations

import itertools
from types import ModuleType

from ocrlab.faults import (
    checkpoint,
    compiling,
    data,
    descriptors,
    disk,
    distributed,
    gpu,
    healthy,
    imports,
    loader,
    loader_limits,
    locks,
    memory,
    native,
    notebook,
    numerics,
    shm,
    signals,
    tracker,
)
from ocrlab.faults.fault import Fault

CPU: tuple[ModuleType, ...] = (imports, data, loader, loader_limits, native, memory, shm, descriptors, disk, checkpoint)
CPU += (locks, numerics, distributed, tracker, notebook, signals, compiling)
FAULTS: dict[str, Fault] = {
    fault.name: fault for fault in itertools.chain(*(family.FAULTS for family in (*CPU, gpu, healthy)))
}
