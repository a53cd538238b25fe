"""What a CUDA device allows a kernel, asked of its driver; no CUDA toolkit and no torch is needed."""

from __future__ import annotations

import sys
from pathlib import Path

from ocrlab.hardware import nvidia_driver
from ocrlab.hardware.doctor import probe_runner
from ocrlab.records import Reading

SECONDS = 20.0  # a first cuInit wakes the device; a driver that needs longer is stuck


def device_limits(device: int = 0, seconds: float = SECONDS) -> Reading:
    """Return the limits of a device by the names of `launch_limits.Limits`, or why the driver does not give them.

    They are asked for in a child, because cuInit may hang or kill.
    """
    probe, arguments = Path(nvidia_driver.__file__), {"device": device}
    ran = probe_runner.run(sys.executable, probe, "limits", arguments, deadline=seconds, own=True)
    answer = ran.answer
    if ran.ended == "deadline":
        return Reading("device_limits", missing=f"the driver gave no answer within {seconds:g} s")
    if "capability" not in answer:
        why = answer.get("raised", {}).get("message") or ran.errors or f"the child ended with {ran.signal or ran.code}"
        return Reading("device_limits", missing=why)
    return Reading("device_limits", {**answer, "block": tuple(answer["block"]), "grid": tuple(answer["grid"])})
