"""Facts about the machine, each a Reading or the reason why it is missing; a probe never raises and never blocks.

Public: `run_doctor()` checks what a training needs, `environment()` describes the machine. torch is never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocrlab.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ocrlab.hardware.doctor.doctor_job import run_doctor
    from ocrlab.hardware.host import environment

__all__ = ["environment", "run_doctor"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"environment": "ocrlab.hardware.host", "run_doctor": "ocrlab.hardware.doctor.doctor_job"}
)
